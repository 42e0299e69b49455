"""The last step of every answer: what a model would read unseen is shown, and secrets in errors are masked."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from fastmcp.exceptions import FastMCPError
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from fastmcp.tools import ToolResult
from mcp.types import CallToolRequestParams, TextContent

from kernelexec.untrusted_text import escape_invisible, escape_notes_in_json, escape_value, has_invisible, quote_output


class VisibleText(Middleware):
    """Middleware that shows invisible characters of answers and errors as escapes, and masks secrets in errors.

    An error may repeat an argument of the client or a name that a kernel chose, so it has no mark of our notes either.
    """

    def __init__(self, mask: Callable[[str], str]) -> None:
        self._mask = mask

    async def on_request(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:  # noqa: ANN401 - fastmcp's
        """See fastmcp's ``Middleware``."""
        try:
            return await call_next(context)
        except FastMCPError as exc:
            exc.args = tuple(quote_output(self._mask(arg)) if isinstance(arg, str) else arg for arg in exc.args)
            raise

    async def on_call_tool(
        self, context: MiddlewareContext[CallToolRequestParams], call_next: CallNext[CallToolRequestParams, ToolResult]
    ) -> ToolResult:
        """See fastmcp's ``Middleware``."""
        answer = await call_next(context)
        return show_invisible(answer) if isinstance(answer, ToolResult) else answer


def show_invisible(answer: ToolResult) -> ToolResult:
    """Return an answer with nothing invisible, and without marks of our notes in the text of a structure."""
    show = escape_invisible
    if answer.structured_content is not None:
        is_changed = has_invisible(json.dumps(answer.structured_content, ensure_ascii=False))
        show = partial(_show_structured, is_changed=is_changed)
        if is_changed:
            answer.structured_content = escape_value(answer.structured_content)
    for block in answer.content:
        if isinstance(block, TextContent):
            block.text = show(block.text)
    if answer.meta is not None and has_invisible(json.dumps(answer.meta, ensure_ascii=False)):
        answer.meta = escape_value(answer.meta)
    return answer


def _show_structured(text: str, *, is_changed: bool) -> str:
    """Return the text of an answer with a structure, which is that as JSON or says the same in words."""
    if not is_changed and escape_notes_in_json(text) == text:  # as nearly always: it need not be known which of them
        return escape_invisible(text)
    try:
        value = json.loads(text)
    except ValueError:
        return escape_invisible(text)
    return escape_notes_in_json(json.dumps(escape_value(value), ensure_ascii=False) if is_changed else text)
