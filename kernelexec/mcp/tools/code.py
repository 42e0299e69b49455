"""The tools of a session's code: what a model can call. What they are said to do stands in ``words``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any

from fastmcp import Context
from fastmcp.exceptions import FastMCPError, ToolError
from fastmcp.tools import InputRequiredToolResult, ToolResult
from mcp.types import TextContent

from kernelexec.config import SHORTEST_TIMEOUT
from kernelexec.errors import KernelexecError
from kernelexec.mcp.calls.progress import Report, Seen, check_cursor
from kernelexec.mcp.calls.sessions import Calls, Waiter
from kernelexec.mcp.content.answers import answer
from kernelexec.results import ExecutionResult, OutputPage
from kernelexec.text import clean, clean_text, utf8_size

#: How long a call blocks by default, in seconds: clients cut calls off at a minute.
WAIT = 45.0
_PAGE_BYTES = 20_000
_FURTHEST_BYTES = 2**40
_VARIABLES_MAX = 200

SessionName = Annotated[
    str, "The session's name: letters, digits, dots, dashes, underscores; it is made on first use. Or create_session's handle."
]
OneSession = Annotated[str | None, "The session, by its name or handle. Leave it out to search all that have names."]
Timeout = Annotated[float | None, "Seconds that the cell may run at all. Leave it out for the server's default."]
Wait = Annotated[float, "Seconds that this call blocks; then it answers with status running and an execution_id."]
RequestId = Annotated[
    str | None, "A name for this request: sent again with the same one, it gives the first outcome and runs nothing twice."
]
ExecutionId = Annotated[str, "The execution_id of an earlier answer."]


@dataclass(frozen=True, slots=True)
class Running:
    """An execution that runs, or waits for its turn; the first one runs."""

    execution_id: str
    code: str


@dataclass(frozen=True, slots=True)
class SessionRow:
    """One open session."""

    name: str
    busy: bool
    kernel_epoch: int
    workspace: str
    executions: list[Running]


@dataclass(frozen=True, slots=True)
class SessionList:
    """The open sessions, the oldest first."""

    sessions: list[SessionRow]


@dataclass(frozen=True, slots=True)
class NewSession:
    """A session that was made, by its handle, and the directory of its files."""

    session: str
    workspace: str


@dataclass(frozen=True, slots=True)
class VariableRow:
    """One variable of a kernel; what cannot be said of it is null."""

    name: str
    type: str
    shape: list[int] | None
    size_bytes: int | None
    text: str


@dataclass(frozen=True, slots=True)
class VariableList:
    """The variables of a session's kernel, by name; ``total`` counts those too that are not shown."""

    variables: list[VariableRow]
    total: int


@contextmanager
def refusing(kind: type[FastMCPError] = ToolError) -> Iterator[None]:
    """Our own errors reach the model, or the client, word for word."""
    try:
        yield
    except KernelexecError as exc:
        raise kind(clean_text(str(exc))) from exc


def reporting(context: Context) -> Report:
    """What tells the client of a call's progress; it hears of it if it gave a progress token."""

    async def report(elapsed: float, newest: str) -> None:
        await context.report_progress(elapsed, message=f"{elapsed:.0f} s" + (f": {newest}" if newest else ""))

    return report


class Tools:
    """The tools, one method each, for one executor's sessions."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def execute_code(
        self,
        context: Context,
        code: Annotated[str, "What a notebook cell would hold."],
        session: SessionName = "default",
        language: Annotated[str, "The language of the code."] = "python",
        timeout: Timeout = None,
        wait: Wait = WAIT,
        request_id: RequestId = None,
    ) -> ToolResult:
        """Run a cell."""
        asking = self._calls.asking(context)
        waiter = Waiter(wait, reporting(context), asking, answer)
        with refusing():
            seen = await self._calls.resumed(session, waiter, cursor=0, sends=True)
            if seen is None:
                opened, on_input = await self._calls.session(session), self._calls.on_input(asking)

                async def send(patience: float) -> ExecutionResult:
                    call = partial(opened.execute, code, language=language, timeout=timeout, approver=asking)
                    return await call(wait=patience, request_id=request_id, on_input=on_input)

                seen = await self._calls.run(opened, send, waiter, title=opened.mask(code))
        return await answer(seen) if asking.needed is None else InputRequiredToolResult(asking.needed)

    async def wait_execution(
        self,
        context: Context,
        execution_id: ExecutionId,
        wait: Wait = WAIT,
        cursor: Annotated[int, "The cursor of an earlier answer, to get only output that is new since; 0 for all."] = 0,
        session: OneSession = None,
    ) -> ToolResult:
        """Collect an execution."""
        asking = self._calls.asking(context)
        waiter = Waiter(wait, reporting(context), asking)
        with refusing():
            place = check_cursor(cursor)
            seen = await self._calls.resumed(session, waiter, cursor=place)
            if seen is None:
                found = self._calls.session_of(execution_id, session)
                seen = await self._calls.follow(found, execution_id, waiter, cursor=place)
        return await answer(seen) if asking.needed is None else InputRequiredToolResult(asking.needed)

    async def read_output(
        self,
        execution_id: ExecutionId,
        offset: Annotated[int, "Where to begin, in bytes."] = 0,
        limit: Annotated[int, "How much at most, in bytes."] = _PAGE_BYTES,
        grep: Annotated[str | None, "A regular expression: only lines that match are given."] = None,
        session: OneSession = None,
    ) -> ToolResult:
        """Read a page of output."""
        with refusing():
            found = self._calls.session_of(execution_id, session)
            begin, room = min(offset, _FURTHEST_BYTES), min(limit, _PAGE_BYTES * 5)
            runs = (await found.wait_for(execution_id, cursor=_FURTHEST_BYTES, wait=SHORTEST_TIMEOUT)).result is None
            page = await found.read_output(execution_id, offset=begin, limit=room, grep=grep)
        nothing = "(no output)" if not begin and grep is None else "(no such line)" if grep else "(nothing from here on)"
        last = f"[from byte {page.offset} of {page.total_bytes}; {_what_follows(page, runs=runs, grep=grep)}]"
        return told(f"{page.text or nothing}\n{last}", "kernelexec/page", page)

    async def interrupt_kernel(self, session: SessionName = "default") -> ToolResult:
        """Interrupt the running cell."""
        with refusing():
            result = await self._calls.open_session(session).interrupt()
        if result is None:
            return told(f"Nothing runs in session {session}: there is nothing to interrupt.")
        return await answer(Seen(self._calls.result(result), result.outputs))

    async def restart_kernel(self, session: SessionName = "default") -> ToolResult:
        """Replace the kernel."""
        with refusing():
            opened = self._calls.open_session(session)
            await opened.restart()
        return told(
            f"Session {session} has a new kernel (kernel_epoch {opened.kernel_epoch}). Variables, imports, cd and export are "
            f"gone: define again what you need. Files are still in {opened.workspace}."
        )

    async def list_sessions(self) -> SessionList:
        """List the sessions."""
        rows = []
        with refusing():
            for session in self._calls.sessions():
                running = [Running(*found) for found in await self._calls.running(session)]
                name = self._calls.shown(session.name)
                rows.append(SessionRow(name, session.busy, session.kernel_epoch, str(session.workspace), running))
        return SessionList(rows)

    async def create_session(self) -> NewSession:
        """Make a session that has a handle."""
        with refusing():
            handle, opened = await self._calls.new_session()
        return NewSession(handle, str(opened.workspace))

    async def close_session(self, session: SessionName) -> ToolResult:
        """End a session."""
        with refusing():
            await self._calls.close_session(session)
        return told(f"Session {session} has ended: its variables are gone, its files stay.")

    async def list_variables(self, session: SessionName = "default") -> VariableList:
        """List a session's variables."""
        with refusing():
            seen = await self._calls.open_session(session).variables(limit=_VARIABLES_MAX)
        return VariableList([VariableRow(**clean(asdict(variable))) for variable in seen.found], seen.total)


def _what_follows(page: OutputPage, *, runs: bool, grep: str | None) -> str:
    """How to read on behind a page, or why there is no more."""
    if page.next_offset is not None:
        return f"read on with offset={page.next_offset}"
    if page.stored_bytes < page.total_bytes:
        return f"this is the end of what could be kept, the first {page.stored_bytes} bytes"
    if runs:
        where = "" if grep else f" with offset={page.offset + utf8_size(page.text)}"
        return f"this is all so far, and the cell still runs: read on later{where}"
    return "this is the end"


def told(text: str, key: str = "", record: Any = None) -> ToolResult:  # noqa: ANN401 - any of our dataclasses
    """An answer of text alone, with a record beside it if there is one."""
    content = [TextContent(type="text", text=clean_text(text))]
    return ToolResult(content=content, meta={key: clean(asdict(record) | {"text": None})} if key else None)
