"""A session for the OpenAI Agents SDK: function tools, and the executor of a ``ShellTool``."""

from __future__ import annotations

import base64
import json
from typing import Any

from kernelexec.adapters.shared.blocks import remove_start_notes
from kernelexec.adapters.shared.commands import await_result, explain_end, join_report
from kernelexec.adapters.tools import TEXT_BYTES, ToolAnswer, function_tools
from kernelexec.adapters.tools import FunctionTool as SessionTool
from kernelexec.errors import KernelexecError
from kernelexec.executor.blocking import Session
from kernelexec.results import ExecutionResult, model_notes
from kernelexec.text import format_notes, quote_output

try:
    from agents import (
        FunctionTool,
        ShellCallOutcome,
        ShellCommandOutput,
        ShellCommandRequest,
        ShellResult,
        ToolOutputImage,
        ToolOutputText,
    )
    from agents.tool_context import ToolContext
except ImportError as exc:
    raise ImportError(
        "kernelexec.adapters.openai_agents needs the OpenAI Agents SDK: pip install 'kernelexec[openai-agents]'."
    ) from exc

_FAILED = 1


def session_tools(session: Session, *, text_bytes: int = TEXT_BYTES) -> list[FunctionTool]:
    """Return ``execute_code``, ``execute_command`` and ``read_output`` for ``Agent(tools=...)``.

    Variables, ``cd`` and ``export`` last from call to call and from run to run. Pictures of a cell are image outputs. A
    cancelled call interrupts the cell.

    Args:
        session: an open session, which the caller closes.
        text_bytes: the limit of text per call, in bytes.

    Raises:
        InvalidConfig: ``text_bytes`` is not such a number.
    """
    return [_make_tool(tool) for tool in function_tools(session, text_bytes=text_bytes)]


class SessionShell:
    """The executor of a ``ShellTool``: commands of a session, so ``cd`` and ``export`` last from call to call.

    Args:
        session: an open session, which the caller closes.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    async def __call__(self, request: ShellCommandRequest) -> ShellResult:
        """Run the commands of a call one after the other, up to the first timeout."""
        action = request.data.action
        timeout = None if action.timeout_ms is None else max(action.timeout_ms, 1) / 1000
        outputs: list[ShellCommandOutput] = []
        for command in action.commands:
            outputs.append(await self._run(command, timeout))
            if outputs[-1].status == "timeout":
                break
        return ShellResult(output=outputs, max_output_length=action.max_output_length)

    async def _run(self, command: str, timeout: float | None) -> ShellCommandOutput:
        try:
            result = await await_result(self._session, lambda session: session.execute_command(command, timeout=timeout))
        except KernelexecError as exc:
            return ShellCommandOutput(stderr=str(exc), outcome=ShellCallOutcome("exit", _FAILED), command=command)
        result = remove_start_notes(result, self._session)
        is_timeout = result.interrupted == "timeout"
        outcome = ShellCallOutcome("timeout") if is_timeout else ShellCallOutcome("exit", result.exit_code)
        stdout = quote_output(result.stdout)
        return ShellCommandOutput(stdout=stdout, stderr=_report(result), outcome=outcome, command=command)


def _report(result: ExecutionResult) -> str:
    """Return stderr, with a report to the model about a failed command."""
    stderr = quote_output(result.stderr)
    if result.ok:
        return stderr
    return join_report(stderr, explain_end(result) or format_notes(model_notes(result)))


def _make_tool(tool: SessionTool) -> FunctionTool:
    async def call(_: ToolContext[Any], arguments: str) -> Any:  # noqa: ANN401 - an answer's content
        try:
            values = json.loads(arguments or "{}")
        except ValueError as exc:
            return f"{tool.name}: the arguments must be JSON: {exc}"
        if not isinstance(values, dict):
            return f"{tool.name}: the arguments must be a JSON object."
        return _content(await tool.run_async(values))

    return FunctionTool(
        name=tool.name, description=tool.description, params_json_schema=dict(tool.parameters), on_invoke_tool=call
    )


def _content(answer: ToolAnswer) -> str | list[ToolOutputText | ToolOutputImage]:
    """Return an answer's text, with the pictures if there are any."""
    if not answer.pictures:
        return answer.text
    urls = (f"data:{picture.mime};base64,{base64.b64encode(picture.content).decode()}" for picture in answer.pictures)
    return [ToolOutputText(text=answer.text), *(ToolOutputImage(image_url=url) for url in urls)]
