"""The tools of commands that run beside a session's cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, cast

from fastmcp import Context

from kernelexec.mcp.calls.sessions import Calls
from kernelexec.mcp.content.answers import fitted, preview
from kernelexec.mcp.tools.code import SessionName, refusing
from kernelexec.mcp.tools.descriptions import PREVIEW_CHARS
from kernelexec.results import BackgroundCommand, SecurityError

CommandId = Annotated[str, "The command_id that start_background gave."]


@dataclass(frozen=True, slots=True)
class BackgroundAnswer:
    """A background command as it is now; stdout and stderr are its newest lines."""

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
    """The background commands of a session, the oldest first."""

    commands: list[BackgroundAnswer]


class Background:
    """The tools, one method each, for one executor's sessions."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def start_background(
        self,
        context: Context,
        command: Annotated[str, "A command line or a script for bash."],
        work_dir: Annotated[str | None, "A directory inside of the workspace to run it in."] = None,
        session: SessionName = "default",
    ) -> BackgroundAnswer:
        """Start one."""
        asking = self._calls.asking(context)
        with refusing():
            opened = await self._calls.session(session)
            try:
                return _answer(await opened.start_background(command, work_dir=work_dir, approver=asking))
            except SecurityError:
                if asking.needed is None:
                    raise
        return cast("BackgroundAnswer", asking.needed)  # fastmcp hands it on as it is; the schema is of the other answers

    async def background_output(
        self,
        command_id: CommandId,
        lines: Annotated[int, "How many of the newest lines of each stream, 10,000 at most."] = 200,
        session: SessionName = "default",
    ) -> BackgroundAnswer:
        """Look at one."""
        with refusing():
            found = await self._calls.open_session(session).background_output(command_id, lines=lines)
        return _answer(found.command, found.stdout, found.stderr, found.stdout_dropped + found.stderr_dropped)

    async def kill_background(self, command_id: CommandId, session: SessionName = "default") -> BackgroundAnswer:
        """End one."""
        with refusing():
            return _answer(await self._calls.open_session(session).kill_background(command_id))

    async def list_background(self, session: SessionName = "default") -> BackgroundList:
        """List them."""
        with refusing():
            found = await self._calls.open_session(session).background_commands()
        return fitted(lambda chars: BackgroundList([_answer(one, chars=chars) for one in found]), PREVIEW_CHARS)


def _answer(
    one: BackgroundCommand, stdout: str = "", stderr: str = "", left_out: int = 0, *, chars: int = PREVIEW_CHARS
) -> BackgroundAnswer:
    return BackgroundAnswer(
        command_id=one.command_id,
        command=preview(one.command, "as it was sent", chars=chars),
        status=one.status,
        exit_code=one.exit_code,
        duration=round(one.duration, 3),
        stdout=preview(stdout, "ask for fewer lines"),
        stderr=preview(stderr, "ask for fewer lines"),
        lines_left_out=left_out,
    )
