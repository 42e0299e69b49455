"""A session as tools of LangChain: text and pictures are content blocks, and the result of a cell is the artifact."""

from __future__ import annotations

import base64
from typing import Any

from kernelexec.adapters.tools import TEXT_BYTES, FunctionTool, ToolAnswer, function_tools
from kernelexec.executor.blocking import Session
from kernelexec.results import ExecutionResult

try:
    from langchain_core.tools import BaseTool, StructuredTool
except ImportError as exc:
    raise ImportError("kernelexec.adapters.langchain needs LangChain: pip install 'kernelexec[langchain]'.") from exc


def session_tools(session: Session, *, text_bytes: int = TEXT_BYTES) -> list[BaseTool]:
    """Return ``execute_code``, ``execute_command`` and ``read_output`` for ``create_agent(tools=...)``.

    Variables, ``cd`` and ``export`` last from call to call. A message's artifact is the cell's ``ExecutionResult``. A cancelled
    ``ainvoke`` interrupts the cell.

    Args:
        session: an open session, which the caller closes.
        text_bytes: the limit of text per call, in bytes.

    Raises:
        InvalidConfig: ``text_bytes`` is not such a number.
    """
    return [_make_tool(tool) for tool in function_tools(session, text_bytes=text_bytes)]


def _make_tool(tool: FunctionTool) -> BaseTool:
    def call(**arguments: Any) -> tuple[Any, ExecutionResult | None]:  # noqa: ANN401 - a model's arguments
        return _content(tool.run(arguments))

    async def acall(**arguments: Any) -> tuple[Any, ExecutionResult | None]:  # noqa: ANN401 - the same
        return _content(await tool.run_async(arguments))

    return StructuredTool(
        name=tool.name,
        description=tool.description,
        args_schema=dict(tool.parameters),
        func=call,
        coroutine=acall,
        response_format="content_and_artifact",
    )


def _content(answer: ToolAnswer) -> tuple[str | list[dict[str, Any]], ExecutionResult | None]:
    """Return an answer's text, with the pictures if there are any, and the artifact."""
    if not answer.pictures:
        return answer.text, answer.result
    pictures = [
        {"type": "image", "base64": base64.b64encode(picture.content).decode(), "mime_type": picture.mime}
        for picture in answer.pictures
    ]
    return [{"type": "text", "text": answer.text}, *pictures], answer.result
