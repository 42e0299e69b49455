"""The server's middleware: reading of arguments, visible text in answers, the log of calls, and the wait for the executor."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from fastmcp.exceptions import FastMCPError, NotFoundError, ToolError, ValidationError
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from fastmcp.tools import ToolResult
from mcp.types import CallToolRequestParams, TextContent

from kernelexec.errors import did_you_mean
from kernelexec.mcp.logs import log_call
from kernelexec.mcp.run import Opening
from kernelexec.text import clean_text, escape_invisible, escape_notes_in_json, escape_value, has_invisible, quote_output

T = TypeVar("T")
_VALUE_CHARS = 100
_ERRORS_MAX = 10
#: Arguments whose text is passed on as it is, whatever it looks like.
_VERBATIM = frozenset({"code", "command", "content", "stdin", "text", "tests", "grep", "old_text", "new_text"})
_ABSENT = frozenset({"", "null", "None", "undefined"})
#: At most fifteen digits before the point: a float holds such whole numbers exactly.
_NUMBER = re.compile(r"[-+]?\d{1,15}(?:\.\d{0,15})?(?:[eE][-+]?\d{1,3})?")
#: A number of seconds with its unit, as in ``30s``.
_SECONDS = re.compile(rf"({_NUMBER.pattern}) ?s(?:ec(?:ond)?s?)?", re.IGNORECASE)
_BOOLEANS = {"true": True, "false": False}
_LIST_CHARS = 1_000_000
#: Usual guesses of names of tools and arguments, with the names here.
_GUESSES = """
    run_python=execute_code run_code=execute_code python=execute_code shell=execute_command bash=execute_command
    terminal=execute_command ls=list_files cat=read_file view=read_file create_file=write_file pip_install=install_packages
    stop=interrupt_kernel command=code source=code script=code filename=path file=path file_path=path cwd=work_dir
    old_string=old_text new_string=new_text kernel=session name=session code=command
"""
_SYNONYMS = dict(re.findall(r"(\w+)=(\w+)", _GUESSES))


class ArgumentReader(Middleware):
    """Middleware to accept arguments with a plain meaning and to explain invalid arguments, a line for each."""

    async def on_call_tool(
        self, context: MiddlewareContext[CallToolRequestParams], call_next: CallNext[CallToolRequestParams, ToolResult]
    ) -> ToolResult:
        """See fastmcp's ``Middleware``."""
        message, server = context.message, context.fastmcp_context and context.fastmcp_context.fastmcp
        tool = await server.get_tool(message.name) if server else None
        if tool is not None and message.arguments:
            arguments = read_arguments(message.arguments, tool.parameters)
            context = context.copy(message=message.model_copy(update={"arguments": arguments}))
        try:
            return await call_next(context)
        except NotFoundError as exc:
            names = [tool.name for tool in await server.list_tools()] if server else []
            reason = f"There is no tool {message.name!r:.{_VALUE_CHARS}}{suggest(message.name, names)}."
            raise ToolError(f"{reason} The tools are: {', '.join(names) or 'none'}.") from exc
        except ValidationError as exc:
            cause: Any = exc.__cause__
            if not hasattr(cause, "errors"):
                raise
            argument_names = list(tool.parameters.get("properties", {})) if tool else []
            raise ToolError(explain_errors(cause.errors(), argument_names)) from exc


def read_arguments(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by the JSON Schema of the tool.

    Null, an empty text and ``"null"`` omit an optional argument. Numbers, booleans and lists may come as text. Code and other
    texts of a user are passed on unchanged.
    """
    properties, required = schema.get("properties", {}), frozenset(schema.get("required", ()))
    values: dict[str, Any] = {}
    for name, value in arguments.items():
        is_text = isinstance(value, str) and name not in _VERBATIM
        if name in properties and name not in required and (value is None or (is_text and value.strip() in _ABSENT)):
            continue
        values[name] = _read_text(value, _types(properties.get(name, {}))) if is_text else value
    return values


def _types(schema: Mapping[str, Any]) -> frozenset[str]:
    """Return the JSON types allowed by a schema."""
    choices = [schema, *schema.get("anyOf", ())]
    return frozenset(str(choice["type"]) for choice in choices if isinstance(choice.get("type"), str))


def _read_text(text: str, types: frozenset[str]) -> Any:  # noqa: ANN401 - any JSON
    """Return the number, boolean, list or object in a text, for an argument of such a type; any other text unchanged."""
    word = text.strip()
    # First: an argument that may also be a text keeps "5" and "true" as they were sent.
    if "string" in types:
        return text
    if "boolean" in types:
        return _BOOLEANS.get(word.lower(), text)
    if "number" in types and (seconds := _SECONDS.fullmatch(word)):
        word = seconds[1]
    if types & {"number", "integer"} and _NUMBER.fullmatch(word) and math.isfinite(number := float(word)):
        return int(number) if number.is_integer() and "number" not in types else number
    if types & {"array", "object"} and len(text) <= _LIST_CHARS:
        with suppress(ValueError, RecursionError):
            value = json.loads(text)
            return value if isinstance(value, list | dict) else text
    return text


def suggest(name: str, known: list[str]) -> str:
    """Return the hint of ``did_you_mean``, also for usual guesses and for names with a server's name before them."""
    word = re.split(r"__|[.:/]", name)[-1].lower()
    return did_you_mean(next((near for near in (word, _SYNONYMS.get(word, "")) if near in known), word), known)


def explain_errors(errors: Sequence[dict[str, Any]], known: list[str]) -> str:
    """Return a line about the first unknown arguments, and lines about the first other errors."""
    lines, unknown = [], []
    for error in errors:
        path = ".".join(map(str, error["loc"]))
        if error["type"] == "unexpected_keyword_argument":
            unknown.append(path)
        elif error["type"] == "missing_argument":
            lines.append(f"{path} is required.")
        else:
            lines.append(f"{path}: {error['msg']} (given: {error['input']!r:.{_VALUE_CHARS}}).")
    if unknown:
        names = [f"{name[:_VALUE_CHARS]!r}{suggest(name, known)}" for name in unknown[:_ERRORS_MAX]]
        more = f" and {len(unknown) - _ERRORS_MAX} more" * (len(unknown) > _ERRORS_MAX)
        lines.insert(0, f"Unknown arguments: {', '.join(names)}{more}. The arguments are: {', '.join(known) or 'none'}.")
    return clean_text("\n".join(lines[:_ERRORS_MAX]))


class VisibleText(Middleware):
    """Middleware to show invisible characters of answers and errors as escapes, and to mask secrets in errors.

    Errors may repeat a client's argument or a name chosen by a kernel, so marks of our notes are escaped in errors too.
    """

    def __init__(self, mask: Callable[[str], str]) -> None:
        self._mask = mask

    async def on_request(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:  # noqa: ANN401 - fastmcp's
        """See fastmcp's ``Middleware``."""
        try:
            return await call_next(context)
        except FastMCPError as exc:
            # In place: the error keeps its type and its cause.
            exc.args = tuple(quote_output(self._mask(arg)) if isinstance(arg, str) else arg for arg in exc.args)
            raise

    async def on_call_tool(
        self, context: MiddlewareContext[CallToolRequestParams], call_next: CallNext[CallToolRequestParams, ToolResult]
    ) -> ToolResult:
        """See fastmcp's ``Middleware``."""
        answer = await call_next(context)
        return show_invisible(answer) if isinstance(answer, ToolResult) else answer


def show_invisible(answer: ToolResult) -> ToolResult:
    """Return an answer with escapes for invisible characters, and without marks of our notes in the text of a structure."""
    show = escape_invisible
    if answer.structured_content is not None:
        is_changed = has_invisible(json.dumps(answer.structured_content, ensure_ascii=False))
        show = partial(_show_structured, is_changed=is_changed)
        if is_changed:
            answer.structured_content = escape_value(answer.structured_content)
    for block in answer.content:  # fastmcp repeats the structure here as JSON, so both are changed alike
        if isinstance(block, TextContent):
            block.text = show(block.text)
    if answer.meta is not None and has_invisible(json.dumps(answer.meta, ensure_ascii=False)):
        answer.meta = escape_value(answer.meta)
    return answer


def _show_structured(text: str, *, is_changed: bool) -> str:
    """Return the visible text of an answer with a structure: the structure as JSON, or the same facts in words."""
    if not is_changed and escape_notes_in_json(text) == text:  # as nearly always: it need not be known which of them
        return escape_invisible(text)
    try:
        value = json.loads(text)
    except ValueError:
        return escape_invisible(text)
    return escape_notes_in_json(json.dumps(escape_value(value), ensure_ascii=False) if is_changed else text)


class OpeningGate(Middleware):
    """Middleware to delay calls of tools, resources and prompts until the executor is open; the list of tools needs none."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening

    async def on_list_tools(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:  # noqa: ANN401 - fastmcp's
        """See fastmcp's ``Middleware``."""
        self._opening.request_soon()  # clients ask for the list and then call a tool
        return await call_next(context)

    async def _wait_until_open(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:  # noqa: ANN401 - the same
        await self._opening.wait_until_open()
        return await call_next(context)

    on_call_tool = on_read_resource = on_get_prompt = _wait_until_open


class CallLogger(Middleware):
    """Middleware to log each call of a tool, prompt or resource with the outcome."""

    async def on_request(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:  # noqa: ANN401 - fastmcp's
        """See fastmcp's ``Middleware``."""
        target = getattr(context.message, "name", None) or getattr(context.message, "uri", None)
        if target is None:
            return await call_next(context)
        return await measure(call_next(context), partial(log_call, context.method or "", str(target)))


async def measure(call: Awaitable[T], report: Callable[[str, float], None]) -> T:
    """Await a call and report outcome (``ok``, ``error`` or ``cancelled``) and seconds."""
    began, outcome = time.monotonic(), "cancelled"  # a cancellation is no Exception, so this value stays
    try:
        answer = await call
        outcome = "error" if getattr(answer, "is_error", False) else "ok"
    except Exception:
        outcome = "error"
        raise
    finally:
        report(outcome, time.monotonic() - began)
    return answer
