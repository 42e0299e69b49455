"""Tools for shell commands and background commands; every answer of a kind has the same fields."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, cast

from fastmcp import Context

from kernelexec.errors import KernelexecError
from kernelexec.mcp.answers import PREVIEW_CHARS, TIMEOUT_ADVICE, fit_answer, preview, render_stream
from kernelexec.mcp.calls.progress import PartialResult, check_wait
from kernelexec.mcp.calls.sessions import CallOptions, SessionService
from kernelexec.mcp.tools.code_tools import WAIT, RequestId, SessionName, Timeout, Wait, report_errors
from kernelexec.results import BackgroundCommand, ExecutionResult, SecurityError, model_notes
from kernelexec.text import clean_text

_FILES_MAX = 100

CommandLine = Annotated[str, "A bash command line or script."]
CommandId = Annotated[str, "The command_id returned by start_background."]


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """Result of a command. A refused command has exit_code -1, the reason in stderr, and no output."""

    success: bool
    exit_code: int | None
    stdout: str
    stderr: str
    execution_time: float
    command: str
    work_dir: str
    status: str
    execution_id: str
    timed_out: bool
    truncated: bool
    state: str
    files: list[str]
    notes: list[str]


@dataclass(frozen=True, slots=True)
class BackgroundAnswer:
    """State of a background command, with the newest lines of its stdout and stderr."""

    command_id: str
    command: str
    status: str
    exit_code: int | None
    duration: float
    stdout: str
    stderr: str
    lines_left_out: int


@dataclass(frozen=True, slots=True)
class BackgroundList:
    """The background commands of a session, oldest first."""

    commands: list[BackgroundAnswer]


class CommandTools:
    """Tools for shell commands and background commands, one method each."""

    def __init__(self, sessions: SessionService) -> None:
        self._sessions = sessions

    async def execute_command(
        self,
        context: Context,
        command: CommandLine,
        timeout: Timeout = None,
        work_dir: Annotated[str | None, "A directory in the workspace for this command only."] = None,
        session: SessionName = "default",
        wait: Wait = WAIT,
        request_id: RequestId = None,
    ) -> CommandAnswer:
        """Run a command."""
        elicitation = self._sessions.make_elicitation(context)
        shown, directory = command, work_dir or ""
        try:
            check_wait(wait)
            opened = await self._sessions.get_session(session)
            shown, directory = opened.mask(command), opened.mask(directory)

            async def send(patience: float) -> ExecutionResult:
                call = partial(opened.execute_command, command, timeout=timeout, work_dir=work_dir, approver=elicitation)
                return await call(wait=patience, request_id=request_id)

            async def render(partial_result: PartialResult) -> CommandAnswer:
                return _make_answer(partial_result, shown, directory or str(opened.workspace))

            options = CallOptions(wait, elicitation, render)
            partial_result = await self._sessions.run_cell(opened, send, options, title=shown)
        except KernelexecError as exc:
            return _make_refusal(shown, directory, str(exc))
        if elicitation.input_required is not None:
            return cast("CommandAnswer", elicitation.input_required)  # fastmcp passes it on; the schema is for other answers
        return await render(partial_result)

    async def start_background(
        self,
        context: Context,
        command: CommandLine,
        work_dir: Annotated[str | None, "A directory in the workspace to run it in."] = None,
        session: SessionName = "default",
    ) -> BackgroundAnswer:
        """Start a background command."""
        elicitation = self._sessions.make_elicitation(context)
        with report_errors():
            opened = await self._sessions.get_session(session)
            try:
                return _make_background_answer(await opened.start_background(command, work_dir=work_dir, approver=elicitation))
            except SecurityError:
                if elicitation.input_required is None:
                    raise
        return cast("BackgroundAnswer", elicitation.input_required)  # fastmcp passes it on; the schema is for other answers

    async def background_output(
        self,
        command_id: CommandId,
        lines: Annotated[int, "Number of newest lines of each stream, at most 10,000."] = 200,
        session: SessionName = "default",
    ) -> BackgroundAnswer:
        """Return a background command's state and newest output."""
        with report_errors():
            output = await self._sessions.find_session(session).background_output(command_id, lines=lines)
        return _make_background_answer(
            output.command, output.stdout, output.stderr, output.stdout_dropped + output.stderr_dropped
        )

    async def kill_background(self, command_id: CommandId, session: SessionName = "default") -> BackgroundAnswer:
        """End a background command."""
        with report_errors():
            return _make_background_answer(await self._sessions.find_session(session).kill_background(command_id))

    async def list_background(self, session: SessionName = "default") -> BackgroundList:
        """List the background commands."""
        with report_errors():
            commands = await self._sessions.find_session(session).background_commands()
        return fit_answer(
            lambda chars: BackgroundList([_make_background_answer(command, chars=chars) for command in commands]), PREVIEW_CHARS
        )


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
    if error is not None and not stderr and error.ename != "KeyboardInterrupt":  # the end of a kernel would not be reported
        stderr = clean_text(preview(f"{error.ename}: {error.evalue}", "see notes"))
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
        files=[clean_text(name) for name in result.files[:_FILES_MAX]],
        notes=[collect] if running else model_notes(result, timeout_advice=TIMEOUT_ADVICE),
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


def _make_background_answer(
    command: BackgroundCommand, stdout: str = "", stderr: str = "", left_out: int = 0, *, chars: int = PREVIEW_CHARS
) -> BackgroundAnswer:
    return BackgroundAnswer(
        command_id=command.command_id,
        command=preview(command.command, "the command as you sent it", chars=chars),
        status=command.status,
        exit_code=command.exit_code,
        duration=round(command.duration, 3),
        stdout=preview(stdout, "request fewer lines"),
        stderr=preview(stderr, "request fewer lines"),
        lines_left_out=left_out,
    )
