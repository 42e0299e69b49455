"""Tools for background commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, cast

from fastmcp import Context

from kernelexec.mcp.answers import PREVIEW_CHARS, fit_answer, preview
from kernelexec.mcp.calls.sessions import SessionService
from kernelexec.mcp.tools.code_tools import report_errors
from kernelexec.results import BackgroundCommand, SecurityError

CommandId = Annotated[str, "The command_id returned by start_background."]


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


class BackgroundTools:
    """Tools for background commands, one method each."""

    def __init__(self, sessions: SessionService) -> None:
        self._sessions = sessions

    async def start_background(
        self,
        context: Context,
        command: str,
        work_dir: Annotated[str | None, "A directory in the workspace to run it in."] = None,
        session: str = "default",
    ) -> BackgroundAnswer:
        """Start a background command."""
        elicitation = self._sessions.make_elicitation(context)
        with report_errors():
            opened = await self._sessions.get_session(session, elicitation)
            try:
                return _make_answer(await opened.start_background(command, work_dir=work_dir, approver=elicitation))
            except SecurityError:
                if elicitation.input_required is None:
                    raise
        return cast("BackgroundAnswer", elicitation.input_required)  # fastmcp passes it on; the schema is for other answers

    async def background_output(
        self,
        command_id: CommandId,
        lines: Annotated[int, "Number of newest lines of each stream, at most 10,000."] = 200,
        session: str = "default",
    ) -> BackgroundAnswer:
        """Return a background command's state and newest output."""
        with report_errors():
            output = await (await self._sessions.find_session(session)).background_output(command_id, lines=lines)
        return _make_answer(output.command, output.stdout, output.stderr, output.stdout_dropped + output.stderr_dropped)

    async def kill_background(self, command_id: CommandId, session: str = "default") -> BackgroundAnswer:
        """End a background command."""
        with report_errors():
            return _make_answer(await (await self._sessions.find_session(session)).kill_background(command_id))

    async def list_background(self, session: str = "default") -> BackgroundList:
        """List the background commands."""
        with report_errors():
            commands = await (await self._sessions.find_session(session)).background_commands()
        return fit_answer(
            lambda chars: BackgroundList([_make_answer(command, chars=chars) for command in commands]), PREVIEW_CHARS
        )


def _make_answer(
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
