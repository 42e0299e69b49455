"""Tools for checkpoints: a session goes back to an earlier state of its kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from fastmcp import Context

from kernelexec.mcp.answers import PREVIEW_CHARS, fit_answer, preview
from kernelexec.mcp.calls.sessions import SessionService
from kernelexec.mcp.tools.code_tools import report_errors
from kernelexec.results import Restored

if TYPE_CHECKING:
    from kernelexec.session import AsyncCheckpoint, AsyncSession


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """A checkpoint, with the number of the cell before which it was made."""

    number: int
    name: str | None
    cell: int


@dataclass(frozen=True, slots=True)
class CheckpointAnswer:
    """The checkpoint that was made, and all that there are, oldest first."""

    checkpoint: CheckpointRow
    checkpoints: list[CheckpointRow]


@dataclass(frozen=True, slots=True)
class ReturnAnswer:
    """The state that the session has gone back to: the variables that exist now, and those that do not any more."""

    cells_undone: int | None
    variables: list[str]
    gone: list[str]
    checkpoints: list[CheckpointRow]
    notes: list[str]


@dataclass(frozen=True, slots=True)
class BranchAnswer:
    """The new session, which has all variables of the other one, and the directory in which it works."""

    session: str
    work_dir: str


class CheckpointTools:
    """Tools for checkpoints and branches, one method each."""

    def __init__(self, sessions: SessionService) -> None:
        self._sessions = sessions

    async def checkpoint(
        self,
        context: Context,
        name: Annotated[str | None, "A name by which restore finds it."] = None,
        files: Annotated[bool, "Copy the files of the workspace too."] = False,  # noqa: FBT002 - agents name all arguments
        session: str = "default",
    ) -> CheckpointAnswer:
        """Make a checkpoint."""
        with report_errors():
            opened = await self._sessions.get_session(session, self._sessions.make_elicitation(context))
            new = await opened.checkpoint(name, files=files)
            return CheckpointAnswer(_make_row(opened, new), await _list_rows(opened))

    async def restore(
        self,
        checkpoint: Annotated[str, "The name or the number of a checkpoint."],
        files: Annotated[bool, "Put the files back that it has a copy of."] = False,  # noqa: FBT002 - as above
        session: str = "default",
    ) -> ReturnAnswer:
        """Go back to a checkpoint."""
        with report_errors():
            opened = await self._sessions.find_session(session)
            return await _make_answer(opened, await opened.restore(checkpoint, files=files))

    async def undo(
        self,
        cells: Annotated[int, "The number of cells."] = 1,
        session: str = "default",
    ) -> ReturnAnswer:
        """Go back to the state before the last cells."""
        with report_errors():
            opened = await self._sessions.find_session(session)
            return await _make_answer(opened, await opened.undo(cells))

    async def branch(
        self,
        name: Annotated[str, "The name of the new session."],
        session: str = "default",
    ) -> BranchAnswer:
        """Open a session with a copy of the state."""
        with report_errors():
            opened = await self._sessions.branch_session(await self._sessions.find_session(session), name)
            return BranchAnswer(self._sessions.format_session(opened.name), opened.workspace_inside)

    async def promote(self, session: Annotated[str, "The name of a branch."]) -> ReturnAnswer:
        """Have a branch take the place of its session."""
        with report_errors():
            opened = await self._sessions.find_session(session)
            return _fit_return(opened, await opened.promote(), [])


def _make_row(session: AsyncSession, checkpoint: AsyncCheckpoint) -> CheckpointRow:
    name = None if checkpoint.name is None else preview(session.mask(checkpoint.name), "the name as you gave it")
    return CheckpointRow(checkpoint.number, name, checkpoint.cell)


async def _list_rows(session: AsyncSession) -> list[CheckpointRow]:
    return [_make_row(session, checkpoint) for checkpoint in await session.checkpoints()]


async def _make_answer(session: AsyncSession, restored: Restored) -> ReturnAnswer:
    return _fit_return(session, restored, await _list_rows(session))


def _fit_return(session: AsyncSession, restored: Restored, rows: list[CheckpointRow]) -> ReturnAnswer:
    def make(chars: int) -> ReturnAnswer:
        names, gone = ([session.mask(name[:chars]) for name in group[:chars]] for group in (restored.names, restored.gone))
        return ReturnAnswer(restored.cells, names, gone, rows, list(restored.notes))

    return fit_answer(make, PREVIEW_CHARS)
