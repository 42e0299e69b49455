"""Tools for the state of a kernel: variables, and checkpoints to go back to an earlier state."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import anyio
import anyio.to_thread
from fastmcp import Context
from fastmcp.tools import ToolResult
from pydantic import WithJsonSchema

from kernelexec.errors import InvalidRequest, KernelexecError, Refused
from kernelexec.mcp.answers import PREVIEW_CHARS, fit_answer, preview
from kernelexec.mcp.sessions import SessionMethods
from kernelexec.mcp.tools.code_tools import make_text_answer
from kernelexec.results import Restored
from kernelexec.results.one_line import format_bytes, join_some
from kernelexec.results.session_contents import VARIABLES_MAX
from kernelexec.text import NESTING_MAX, clean, utf8_size

if TYPE_CHECKING:
    from kernelexec.session import AsyncCheckpoint, AsyncSession

T = TypeVar("T")
_ROWS_MAX = 200
#: The longest JSON text of a value in an answer: a model has to read it.
_VALUE_BYTES = 100_000
_LISTED_NAMES = 10
#: Any JSON value, with one schema for each type: strict clients take a schema without types, or a list of types, for a mistake.
_TYPES = ("null", "boolean", "number", "string", "array", "object")
JsonValue = Annotated[Any, WithJsonSchema({"anyOf": [{"type": name} for name in _TYPES]})]


@dataclass(frozen=True, slots=True)
class VariableRow:
    """A variable of a kernel; unknown values are null."""

    name: str
    type: str
    shape: list[int] | None
    size_bytes: int | None
    text: str


@dataclass(frozen=True, slots=True)
class VariableList:
    """Variables of a session's kernel by name; ``total`` includes those not shown."""

    variables: list[VariableRow]
    total: int


@dataclass(frozen=True, slots=True)
class VariableValue:
    """The value of a variable, as JSON types."""

    name: str
    value: JsonValue


class VariableTools(SessionMethods):
    """Tools for variables, with a method for each."""

    async def list_variables(self, session: str = "default") -> VariableList:
        """List a session's variables."""
        listing = await (await self._sessions.find_session(session)).variables(limit=_ROWS_MAX)
        return VariableList([VariableRow(**clean(asdict(variable))) for variable in listing.variables], listing.total)

    async def set_variables(
        self,
        context: Context,
        variables: Annotated[dict[str, Any], "Names and their values, of JSON types."],
        session: str = "default",
    ) -> ToolResult:
        """Set variables."""
        with _in_words_of_tools():
            if not 1 <= len(variables) <= VARIABLES_MAX:
                raise InvalidRequest(f"variables must have 1 to {VARIABLES_MAX} names.")
            opened = await self._sessions.get_session(session, self._sessions.make_elicitation(context))
            await self._within_wait(session, opened.put(variables))
        return make_text_answer(f"Session {session} has {join_some(variables, limit=_LISTED_NAMES)}.")

    async def get_variable(
        self,
        name: Annotated[str, "The name of the variable."],
        session: str = "default",
    ) -> VariableValue:
        """Return a variable's value."""
        with _in_words_of_tools():
            opened = await self._sessions.find_session(session)
            value, size = await anyio.to_thread.run_sync(_read_json, name, await self._within_wait(session, opened.get(name)))
            if size > _VALUE_BYTES:
                limit = format_bytes(_VALUE_BYTES)
                advice = "assign a part of it to a variable, or write it to a file of the workspace"
                raise Refused(f"{name!r} has {format_bytes(size)} as JSON, and an answer at most {limit}: {advice}.")
            return VariableValue(name, clean(opened.mask_value(value)))

    async def _within_wait(self, session: str, call: Awaitable[T]) -> T:
        """Await a call with a turn after the running cell, for the operator's default wait; raise ``Refused`` after that."""
        try:
            async with asyncio.timeout(self._options.wait):
                return await call
        except TimeoutError:
            advice = "wait_execution waits for it, interrupt_kernel ends it"
            raise Refused(f"Session {session} still runs a cell: {advice}. Then call this again.") from None


def _to_json(name: str, value: Any, depth: int = 0) -> Any:  # noqa: ANN401 - any value in, JSON out
    """Return a value with lists in the place of tuples; raise ``Refused`` for types that JSON does not have."""
    match value:
        case None | bool() | int() | str():
            return value
        case float() if math.isfinite(value):
            return value
        case list() | tuple() if depth < NESTING_MAX:
            return [_to_json(name, item, depth + 1) for item in value]
        case dict() if depth < NESTING_MAX and all(isinstance(key, str) for key in value):
            return {key: _to_json(name, item, depth + 1) for key, item in value.items()}
    if depth >= NESTING_MAX:
        reason = f"is nested deeper than {NESTING_MAX} levels"
    elif isinstance(value, float):
        reason = f"has the number {value}, which JSON has not"
    elif isinstance(value, dict):
        reason = "has a dictionary with keys that are no texts"
    else:
        reason = f"{'has' if depth else 'is'} a value of type {type(value).__name__}, which JSON has not"
    raise Refused(f"{name!r} {reason}: show it with execute_code, or convert it there.")


def _read_json(name: str, value: Any) -> tuple[Any, int]:  # noqa: ANN401 - any value in, JSON out
    """Return a value as JSON types and the bytes of its text. Values may be large, so run this in a thread."""
    plain = _to_json(name, value)
    try:
        return plain, utf8_size(json.dumps(plain, ensure_ascii=False))
    except ValueError as exc:
        raise Refused(f"{name!r} has a number with thousands of digits: convert it to a text with execute_code.") from exc


@contextmanager
def _in_words_of_tools() -> Iterator[None]:
    """Name tools instead of methods in errors: models have no methods."""
    try:
        yield
    except KernelexecError as exc:
        text = str(exc).replace("session.files.write", "write_file").replace("session.files.read", "read_file")
        exc.args = (text,)
        raise


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


class CheckpointTools(SessionMethods):
    """Tools for checkpoints and branches, with a method for each."""

    async def checkpoint(
        self,
        context: Context,
        name: Annotated[str | None, "A name by which restore finds it."] = None,
        files: Annotated[bool, "Copy the files of the workspace too."] = False,  # noqa: FBT002 - agents name all arguments
        session: str = "default",
    ) -> CheckpointAnswer:
        """Make a checkpoint."""
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
        opened = await self._sessions.find_session(session)
        return _fit_return(opened, await opened.restore(checkpoint, files=files), await _list_rows(opened))

    async def undo(
        self,
        cells: Annotated[int, "The number of cells."] = 1,
        session: str = "default",
    ) -> ReturnAnswer:
        """Go back to the state before the last cells."""
        opened = await self._sessions.find_session(session)
        return _fit_return(opened, await opened.undo(cells), await _list_rows(opened))

    async def branch(
        self,
        name: Annotated[str, "The name of the new session."],
        session: str = "default",
    ) -> BranchAnswer:
        """Open a session with a copy of the state."""
        opened = await self._sessions.branch_session(await self._sessions.find_session(session), name)
        return BranchAnswer(self._sessions.format_session(opened.name), opened.workspace_inside)

    async def promote(self, session: Annotated[str, "The name of a branch."]) -> ReturnAnswer:
        """Have a branch take the place of its session."""
        opened = await self._sessions.find_session(session)
        return _fit_return(opened, await opened.promote(), [])


def _make_row(session: AsyncSession, checkpoint: AsyncCheckpoint) -> CheckpointRow:
    name = None if checkpoint.name is None else preview(session.mask(checkpoint.name), "the name as you gave it")
    return CheckpointRow(checkpoint.number, name, checkpoint.cell)


async def _list_rows(session: AsyncSession) -> list[CheckpointRow]:
    return [_make_row(session, checkpoint) for checkpoint in await session.checkpoints()]


def _fit_return(session: AsyncSession, restored: Restored, rows: list[CheckpointRow]) -> ReturnAnswer:
    def make(chars: int) -> ReturnAnswer:
        names, gone = ([session.mask(name[:chars]) for name in group[:chars]] for group in (restored.names, restored.gone))
        return ReturnAnswer(restored.cells, names, gone, rows, list(restored.notes))

    return fit_answer(make, PREVIEW_CHARS)
