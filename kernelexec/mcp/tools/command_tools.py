"""Tool for shell commands: text for a model, and the fields of a program's answer without those that say nothing."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from fastmcp import Context
from fastmcp.tools import InputRequiredToolResult, ToolResult
from mcp.types import TextContent
from pydantic import TypeAdapter

from kernelexec.errors import KernelexecError
from kernelexec.mcp.answers import TIMEOUT_ADVICE, AnswerOptions, preview, render_answer, render_stream
from kernelexec.mcp.calls.progress import PartialResult
from kernelexec.mcp.calls.sessions import SessionService
from kernelexec.mcp.server_options import ServerOptions
from kernelexec.results import ExecutionResult, model_notes
from kernelexec.text import clean_text
from kernelexec.untrusted_text import escape_line, format_note, quote_output

_FILES_MAX = 100
_INTERRUPT = "KeyboardInterrupt"

_ALWAYS = ("success", "exit_code", "stdout", "stderr")


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """Result of a command. A refused command has exit_code -1, the reason in stderr, and no output.

    The fields with a default are omitted where they have it, and those of the request itself, unless a program asks for all.
    """

    success: bool
    exit_code: int | None
    stdout: str
    stderr: str
    execution_time: float = 0.0
    command: str = ""
    work_dir: str = ""
    status: str = "ok"
    execution_id: str = ""
    timed_out: bool = False
    truncated: bool = False
    state: str = "kept"
    files: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_structure(self, *, is_whole: bool) -> dict[str, Any]:
        """Return the answer as a JSON object."""
        fields = asdict(self)
        if is_whole:
            return fields
        is_usual = self.status in ("ok", "error") and not self.truncated
        left_out = {"execution_time", "command", "work_dir"} | ({"execution_id", "status"} if is_usual else set())
        defaults = asdict(CommandAnswer(success=True, exit_code=0, stdout="", stderr=""))
        return {
            name: value
            for name, value in fields.items()
            if name in _ALWAYS or (name not in left_out and value != defaults[name])
        }


class CommandTools:
    """Tool for shell commands."""

    def __init__(self, sessions: SessionService, options: ServerOptions) -> None:
        self._sessions = sessions
        self._options = options

    async def execute_command(
        self,
        context: Context,
        command: str,
        timeout: float | None = None,
        work_dir: str | None = None,
        session: str = "default",
        wait: float | None = None,
        request_id: str | None = None,
    ) -> ToolResult:
        """Run a command."""
        elicitation = self._sessions.make_elicitation(context)
        form = AnswerOptions.of(context, self._options)
        shown, directory = command, work_dir or ""
        try:
            self._sessions.check_wait(wait)
            opened = await self._sessions.get_session(session, elicitation)
            shown, directory = opened.mask(command), opened.mask(directory)

            async def send(patience: float) -> ExecutionResult:
                call = partial(opened.execute_command, command, timeout=timeout, work_dir=work_dir, approver=elicitation)
                return await call(wait=patience, request_id=request_id)

            partial_result = await self._sessions.run_cell(opened, send, elicitation, wait=wait, title=shown)
        except KernelexecError as exc:
            mask = self._sessions.mask
            refusal = _make_refusal(mask(shown), mask(directory), mask(str(exc)))
            return _make_result(refusal, is_whole=form.has_whole_record)
        if elicitation.input_required is not None:
            return InputRequiredToolResult(elicitation.input_required)
        answer = _make_answer(partial_result, shown, directory or str(opened.workspace))
        if partial_result.result.status == "aborted":
            return _make_result(answer, is_whole=form.has_whole_record)
        rendered = await render_answer(partial_result, form)
        return ToolResult(rendered.content, answer.to_structure(is_whole=form.has_whole_record))


#: The schema of the structure in answers.
COMMAND_SCHEMA: dict[str, Any] = TypeAdapter(CommandAnswer).json_schema()


def _make_result(answer: CommandAnswer, *, is_whole: bool) -> ToolResult:
    """Return the answer of a refused command."""
    text = f"[aborted]\n{format_note(f'The command did not run: {answer.stderr}')}"
    return ToolResult([TextContent(type="text", text=text)], answer.to_structure(is_whole=is_whole))


def _make_answer(partial_result: PartialResult, command: str, work_dir: str) -> CommandAnswer:
    result = partial_result.result
    if result.status == "aborted":
        return _make_refusal(command, work_dir, "\n".join(result.notes) or "It did not run.", result.execution_id, result.state)
    running = result.status == "running"
    stdout, stderr = (render_stream(partial_result, name) for name in ("stdout", "stderr"))
    how = f"It waits behind {partial_result.queue_position} other(s)" if partial_result.queue_position else "It still runs"
    call = f"wait_execution(execution_id='{result.execution_id}', cursor={partial_result.cursor})"
    collect = f"{how}: call {call}, do not send it again."
    error = result.error
    if error is not None and not stderr and error.ename != _INTERRUPT:  # the end of a kernel would not be reported
        stderr = preview(f"{error.ename}: {error.evalue}", "see notes", show=quote_output)
    return CommandAnswer(
        success=result.ok,
        exit_code=result.exit_code,
        stdout=stdout,
        stderr=stderr,
        execution_time=round(result.timing.run, 3),
        command=_shorten(command),
        work_dir=result.work_dir or work_dir,
        status=result.status,
        execution_id=result.execution_id,
        timed_out=result.interrupted == "timeout",
        truncated=result.truncated or partial_result.missed_bytes > 0 or "characters left out" in f"{stdout}{stderr}",
        state=result.state,
        files=[escape_line(name) for name in result.files[:_FILES_MAX]],
        notes=[collect] if running else model_notes(replace(result, files=()), timeout_advice=TIMEOUT_ADVICE),
    )


def _make_refusal(command: str, work_dir: str, reason: str, execution_id: str = "", state: str = "unknown") -> CommandAnswer:
    return CommandAnswer(
        success=False,
        exit_code=-1,
        stdout="",
        stderr=clean_text(reason),
        execution_time=0.0,
        command=_shorten(command),
        work_dir=clean_text(work_dir),
        status="aborted",
        execution_id=execution_id,
        timed_out=False,
        truncated=False,
        state=state,
        files=[],
        notes=[],
    )


def _shorten(command: str) -> str:
    return clean_text(preview(command, "the command as you sent it"))
