"""The tool of shell commands: its answer has the same fields whatever becomes of the command."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, cast

from fastmcp import Context

from kernelexec.errors import KernelexecError
from kernelexec.mcp.calls.progress import Seen, check_wait
from kernelexec.mcp.calls.sessions import Calls, Waiter
from kernelexec.mcp.content.answers import OVER_TIME, preview, streams
from kernelexec.mcp.tools.code import WAIT, RequestId, SessionName, Timeout, Wait, reporting
from kernelexec.results import ExecutionResult, remarks
from kernelexec.text import clean_text

_FILES_MAX = 100


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """What became of a command. One that was refused has exit_code -1, the reason in stderr, and no output or time."""

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


class Commands:
    """The tool, for one executor's sessions."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def execute_command(
        self,
        context: Context,
        command: Annotated[str, "A command line or a script for bash."],
        timeout: Timeout = None,
        work_dir: Annotated[str | None, "A directory inside of the workspace to run this one command in."] = None,
        session: SessionName = "default",
        wait: Wait = WAIT,
        request_id: RequestId = None,
    ) -> CommandAnswer:
        """Run a command."""
        asking = self._calls.asking(context)
        shown, place = command, work_dir or ""
        try:
            check_wait(wait)
            opened = await self._calls.session(session)
            shown, place = opened.mask(command), opened.mask(place)

            async def send(patience: float) -> ExecutionResult:
                call = partial(opened.execute_command, command, timeout=timeout, work_dir=work_dir, approver=asking)
                return await call(wait=patience, request_id=request_id)

            async def show(seen: Seen) -> CommandAnswer:
                return _answer(seen, shown, place or str(opened.workspace))

            waiter = Waiter(wait, reporting(context), show=show)
            seen = await self._calls.run(opened, send, waiter, title=shown)
        except KernelexecError as exc:
            return _refused(shown, place, str(exc))
        if asking.needed is not None:
            return cast("CommandAnswer", asking.needed)  # fastmcp hands it on as it is; the schema is of the other answers
        return await show(seen)


def _answer(seen: Seen, command: str, work_dir: str) -> CommandAnswer:
    result = seen.result
    if result.status == "aborted":
        return _refused(command, work_dir, "\n".join(result.notes) or "It did not run.", result.execution_id, result.state)
    running = result.status == "running"
    stdout, stderr = (streams(seen, name) for name in ("stdout", "stderr"))
    how = f"It waits behind {seen.place} other(s)" if seen.place else "It still runs"
    collect = f"{how}: call wait_execution(execution_id='{result.execution_id}', cursor={seen.cursor}), do not send it again."
    error = result.error
    if (
        error is not None and not stderr and error.ename != "KeyboardInterrupt"
    ):  # the kernel ended, or the cell obeyed no interrupt: nothing else says so
        stderr = clean_text(preview(f"{error.ename}: {error.evalue}", "see notes"))
    return CommandAnswer(
        success=result.ok,
        exit_code=result.exit_code,
        stdout=stdout,
        stderr=stderr,
        execution_time=round(result.timing.run, 3),
        command=_echo(command),
        work_dir=result.work_dir or work_dir,
        status=result.status,
        execution_id=result.execution_id,
        timed_out=result.interrupted == "timeout",
        truncated=result.truncated or bool(seen.missed_bytes) or any("characters left out" in s for s in (stdout, stderr)),
        state=result.state,
        files=[clean_text(name) for name in result.files[:_FILES_MAX]],
        notes=[collect] if running else remarks(result, over_time=OVER_TIME),
    )


def _refused(command: str, work_dir: str, why: str, execution_id: str = "", state: str = "unknown") -> CommandAnswer:
    return CommandAnswer(
        success=False,
        exit_code=-1,
        stdout="",
        stderr=clean_text(why),
        execution_time=0.0,
        command=_echo(command),
        work_dir=clean_text(work_dir),
        status="aborted",
        execution_id=execution_id,
        timed_out=False,
        truncated=False,
        state=state,
        files=[],
        notes=[],
    )


def _echo(command: str) -> str:
    return clean_text(preview(command, "as it was sent"))
