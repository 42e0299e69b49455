"""Sessions for tool calls: run a cell, report progress, return after the call's wait, and interrupt on cancellation."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
from fastmcp import Context

from kernelexec.config import SHORTEST_TIMEOUT, check_seconds
from kernelexec.errors import CapacityReached, InvalidPath, InvalidRequest, UnknownExecution, UnknownSession, did_you_mean
from kernelexec.executor.executor import AsyncExecutor
from kernelexec.mcp.callers import CALLER, Caller, Connections
from kernelexec.mcp.elicitation import Elicitation, PartialResult, PendingInputs, find_last_line
from kernelexec.mcp.run import INTERVAL
from kernelexec.mcp.server_options import ALL_TOOLS, QuotaTracker, ServerOptions
from kernelexec.results import ExecutionResult, InputRequest, OnInput, Progress

if TYPE_CHECKING:
    from kernelexec.session import AsyncSession

#: Sends a cell and waits at most ``wait`` seconds for its result.
Send = Callable[..., Awaitable[ExecutionResult]]

_INPUT_NOTE = "It waits for an answer to its input(): to answer, call wait_execution from a client that supports elicitation."
_CONNECTION_NOTE = (
    "This session ends with your client's connection, and has neither variables nor files of an earlier one. If your client "
    "makes a connection for each call, use create_session."
)
_LINE_CHARS = 200
_NEWEST = 20
_TITLES_MAX = 1000
_INTERRUPT_SECONDS = 30.0


class SessionService:
    """Sessions of an executor for tool calls.

    Args:
        executor: the executor, open before the first call.
        interval: the most seconds between two progress reports.
        options: the options of the server.
        clients: mapping to fill with clients by the executor's names of their sessions.
    """

    def __init__(
        self,
        executor: AsyncExecutor,
        *,
        interval: float = INTERVAL,
        options: ServerOptions = ALL_TOOLS,
        clients: dict[str, str] | None = None,
    ) -> None:
        self._executor = executor
        self.config, self.mask, self.options = executor.config, executor.mask, options
        self.quotas = QuotaTracker(options.quotas)
        self.clients = {} if clients is None else clients
        self.connections = Connections(self._close_if_open, self._is_busy, silent_seconds=options.silent_seconds)
        """The connections of older clients; sessions end with their connection."""
        self.inputs = PendingInputs()
        """The pending input requests of all cells."""
        self.interval = interval
        self._handles: dict[str, str] = {}
        self._titles: OrderedDict[str, str] = OrderedDict()
        self._waiting_calls: Counter[str] = Counter()
        self._waits: dict[anyio.CancelScope, str] = {}
        self._is_releasing = False

    def release_calls(self) -> None:
        """Make all calls return their output so far, for a server that ends without the kernels. The cells continue."""
        self._is_releasing = True  # first: calls that begin to wait later see the flag
        for scope in self._waits:
            scope.cancel()

    @property
    def has_checkpoints(self) -> bool:
        """Whether checkpoints follow the cells of Python sessions."""
        return self.config.keeps_checkpoints and self.config.checkpoints in ("auto", "each")

    def check_wait(self, wait: float | None) -> float:
        """Return the seconds for a call to block, by default the server's; 0 becomes the shortest timeout.

        Raises:
            InvalidTimeout: the value is not a number of seconds.
        """
        if wait is None:
            return self.options.wait
        return SHORTEST_TIMEOUT if wait == 0 else check_seconds(wait, "wait")

    async def get_session(self, name: str, elicitation: Elicitation | None = None) -> AsyncSession:
        """Return the caller's session by name, created if new, or by the handle of an open session.

        ``elicitation`` reports progress while a kernel starts.

        Raises:
            UnknownSession: no open session has the handle.
            CapacityReached: the caller has reached its limit of sessions.
            KernelexecError: see ``AsyncExecutor.session``.
        """
        if Caller.is_handle(name):
            return await self.find_session(name)
        session_name = CALLER.get().resolve_session(name)
        if elicitation is None or self._executor.open_session(session_name) is not None:
            return await self._create(session_name)
        async with elicitation.report_while("a kernel starts", self.interval):
            return await self._create(session_name)

    async def get_session_with_files(self, name: str) -> AsyncSession:
        """Return the caller's session by name or handle, for its files; open a closed session again if files may exist.

        Files may exist in the session's directory or in context paths.

        Raises:
            InvalidPath: the session has no files yet, so no path exists.
            UnknownSession: no such session is open, and the name is a handle or the caller may only read.
            KernelexecError: see ``get_session``.
        """
        caller, config = CALLER.get(), self.config
        try:
            return await self.find_session(name)
        except UnknownSession:
            if caller.is_handle(name) or not caller.may_call(read_only=False):
                raise
        directory = config.work_dir or config.workspace / caller.resolve_session(name)
        if not (config.context_paths or await anyio.Path(directory.expanduser()).exists()):
            raise InvalidPath(f"The path does not exist: session {name!r} has no files yet.")
        return await self.get_session(name)

    async def create_session(self) -> tuple[str, AsyncSession]:
        """Create a session for the caller; return its new handle and the session."""
        handle = Caller.make_handle()
        session = await self._create(CALLER.get().resolve_session(handle))
        self._handles[session.name] = handle
        return handle, session

    async def _create(self, session_name: str) -> AsyncSession:
        with self._note_opening(session_name):
            # A session of this name may be in a container of a dead server: adopt it instead of making a second session.
            if not self._is_open(session_name):
                await self._executor.adopt_sessions()
            while True:
                try:
                    return await self._executor.session(session_name)
                except CapacityReached:  # the executor's limit; the client's own limit is checked above, by the quota
                    if not await self.connections.make_room():
                        raise

    async def branch_session(self, session: AsyncSession, name: str) -> AsyncSession:
        """Open a branch of a session under the caller's name for the branch.

        Raises:
            InvalidRequest: a session of that name is open.
            CapacityReached: the caller has reached its limit of sessions.
            KernelexecError: see ``AsyncSession.branch``.
        """
        session_name = CALLER.get().resolve_session(name)
        if self._is_open(session_name):
            raise InvalidRequest(f"Session {name!r} is open already: close it first, or take another name.")
        with self._note_opening(session_name):
            return await session.branch(session_name)

    @contextmanager
    def _note_opening(self, session_name: str) -> Iterator[None]:
        """Note client and connection of a session while the block opens the session, within the client's quota."""
        self._note_client(session_name)
        with self.quotas.reserve_session(CALLER.get().client, session_name, self._is_open):
            self._note_connection(session_name)
            try:
                yield
            finally:
                self._note_connection(session_name)  # again, since the connection may have ended meanwhile

    def _note_client(self, session_name: str) -> None:
        """Note the client of a session, for the operator's list."""
        client = ", ".join(filter(None, (CALLER.get().program, CALLER.get().client)))
        if self.clients.get(session_name) != client:
            self.clients[session_name] = client
            # Sessions end in many ways, also by themselves, so ended sessions are removed here.
            for name in [name for name in self.clients if not self._is_open(name) and name != session_name]:
                del self.clients[name]

    def _note_connection(self, session_name: str) -> None:
        caller = CALLER.get()
        if caller.connection is not None and caller.owns_session(session_name):
            self.connections.add_session(caller.connection, session_name)

    async def _close_if_open(self, session_name: str) -> None:
        with suppress(UnknownSession):
            await self._executor.close_session(session_name)

    def _is_open(self, session_name: str) -> bool:
        return self._executor.open_session(session_name) is not None

    def _is_busy(self, session_name: str) -> bool:
        session = self._executor.open_session(session_name)
        return session is not None and session.busy

    async def close_session(self, name: str) -> None:
        """Close an open session of the caller.

        Raises:
            UnknownSession: the caller has no such session.
        """
        session = await self.find_session(name)
        self._handles.pop(session.name, None)
        await session.close()

    def list_sessions(self) -> tuple[AsyncSession, ...]:
        """Return the caller's open sessions with names, oldest first."""
        sessions = (self._executor.open_session(name) for name in self._executor.sessions() if CALLER.get().owns_session(name))
        return tuple(session for session in sessions if session is not None)

    async def find_session(self, name: str) -> AsyncSession:
        """Return the caller's open session by name or handle, adopted from a dead owner if necessary.

        Raises:
            UnknownSession: no such session is open; the message lists the caller's open sessions.
        """
        caller = CALLER.get()
        session_name = caller.resolve_session(name)
        session = self._executor.open_session(session_name)
        if session is None and session_name in await self._executor.adopt_sessions():
            session = self._executor.open_session(session_name)
        if session is not None:
            if caller.is_handle(name):
                self._handles[session_name] = name
            return session
        names = [caller.format_session(session.name) for session in self.list_sessions()]
        hint = f"Open sessions: {', '.join(names)}." if names else "No session is open."
        how_to = "create_session creates one" if caller.is_handle(name) else "execute_code and execute_command create one"
        raise UnknownSession(f"No session {name!r} is open{did_you_mean(name, names)}. {hint} {how_to}.")

    async def find_session_of(self, execution_id: str, name: str | None = None) -> AsyncSession:
        """Return the caller's open session with an execution; search only the session ``name``, a name or handle, if set.

        Raises:
            UnknownSession: see ``find_session``.
            UnknownExecution: no session has the execution.
        """
        for _ in range(2):  # again after sessions were adopted
            for session in self.list_sessions() if name is None else [await self.find_session(name)]:
                if execution_id in session.executions():
                    return session
            if not await self._executor.adopt_sessions():
                break
        message = (
            f"None of your open sessions has an execution {execution_id!r:.100}: it may have ended with its session, or with "
            "an earlier server. Use the execution_id of an answer with status running, and pass the session's handle if it has "
            "one. Sessions keep only their newest finished executions; list_sessions shows the running ones."
        )
        raise UnknownExecution(message)

    def format_session(self, session: str) -> str:
        """Return the caller's name or handle for an executor's session."""
        # A handle cannot be computed from the executor's name, a digest, so the handles in use are remembered.
        return self._handles.get(session) or CALLER.get().format_session(session)

    def rename_session(self, result: ExecutionResult) -> ExecutionResult:
        """Return a result with the caller's name of the session; note a connection's new session in the first result."""
        caller, is_first = CALLER.get(), (result.execution_count, result.kernel_epoch, result.state) == (1, 1, "kept")
        if is_first and caller.connection is not None and caller.owns_session(result.session):
            result = replace(result, state="new", notes=(_CONNECTION_NOTE, *result.notes))
        return replace(result, session=self.format_session(result.session))

    def make_elicitation(self, context: Context) -> Elicitation:
        """Return the elicitation of a call."""
        return Elicitation(context, self.format_session)

    def choose_input_handler(self, elicitation: Elicitation) -> OnInput | None:
        """Return the handler of `input()` for a call's cell; None if the server or the client does not support input."""
        return self._ask_input if self.options.allow_input and elicitation.is_possible else None

    async def _ask_input(self, request: InputRequest) -> str:
        """Wake the calls waiting for the cell to ask their clients, and wait for the answer."""
        # The cancelled wait is the inner one of `_wait_for_progress`; the call goes on, asks its client and waits again.
        for scope, execution_id in self._waits.items():
            if execution_id == request.execution_id:
                scope.cancel()
        return await self.inputs.ask(request)

    async def resume(
        self, name: str | None, elicitation: Elicitation, *, wait: float | None, cursor: int = 0, sends: bool = False
    ) -> PartialResult | None:
        """Pass on the answer to an input request and follow the cell; return None for a call without an answer.

        With ``sends`` the call sent the waiting cell before, so cancellation works as in ``run_cell``.

        Raises:
            UnknownSession, UnknownExecution: the asking cell is gone.
        """
        if (answer := elicitation.input_answer) is None:
            return None
        session = await self.find_session_of(answer.execution_id, name)
        self.inputs.accept(answer)
        async with self._waiting_call(session, answer.execution_id) if sends else nullcontext():
            return await self.follow(session, answer.execution_id, elicitation, wait=wait, cursor=cursor)

    async def run_cell(
        self, session: AsyncSession, send: Send, elicitation: Elicitation, *, wait: float | None, title: str
    ) -> PartialResult:
        """Send a cell and follow the execution while the call waits.

        Cancellation interrupts the cell or removes it from the queue. If several calls with the same request id wait, only
        cancelling the last call does so. The session owns the cell, so the cell survives the end of the call.
        """
        self.check_wait(wait)
        with anyio.CancelScope(shield=True):  # no cancellation before the id of the cell is known
            sent = await send(wait=SHORTEST_TIMEOUT)
        self._titles[sent.execution_id] = next((line.strip() for line in title.splitlines() if line.strip()), "")[:_LINE_CHARS]
        while len(self._titles) > _TITLES_MAX:
            self._titles.popitem(last=False)
        if sent.status != "running":
            return PartialResult(self.rename_session(sent), sent.outputs, is_readable=sent.execution_id in session.executions())
        async with self._waiting_call(session, sent.execution_id):
            return await self.follow(session, sent.execution_id, elicitation, wait=wait)

    async def follow(
        self, session: AsyncSession, execution_id: str, elicitation: Elicitation, *, wait: float | None, cursor: int = 0
    ) -> PartialResult:
        """Follow an execution while a call waits. Cancellation does not affect the cell.

        Input requests of the cell go to the call's client. For newer clients the call must then return ``input_required``.

        Args:
            session: the session of the execution.
            execution_id: id of the execution.
            elicitation: the client of the call, for input requests and progress.
            wait: seconds for the call to block; None for the server's default.
            cursor: end of the caller's output so far.
        """
        deadline = time.monotonic() + self.check_wait(wait)

        async def describe() -> str:
            progress = await session.wait_for(execution_id, cursor=cursor, wait=SHORTEST_TIMEOUT)
            line = progress.remark or find_last_line(progress.outputs)
            return f"execution_id {execution_id}" + (f": {line}" if line else "")

        async with elicitation.report_while(describe, self.interval):
            while True:
                is_over = self._is_releasing
                if (pending := self.inputs.find(execution_id)) is not None and elicitation.is_possible:
                    with anyio.CancelScope() as scope, self._count_wait(scope, execution_id):
                        await elicitation.ask_input(pending)
                    # A newer client can be asked only by the end of the call; the cell goes on waiting for its input.
                    is_over |= elicitation.input_required is not None
                left = SHORTEST_TIMEOUT if is_over else max(deadline - time.monotonic(), SHORTEST_TIMEOUT)
                progress = await self._wait_for_progress(session, execution_id, cursor, left)
                if is_over or self._is_releasing or progress.result is not None or deadline <= time.monotonic():
                    break
        result = progress.result
        if result is None:
            notes = (_INPUT_NOTE,) if self.inputs.find(execution_id) is not None else ()
            about: dict[str, Any] = {"kernel_epoch": session.kernel_epoch, "isolation": session.isolation, "notes": notes}
            result = ExecutionResult(execution_id, session.name, "running", **about)
        elif not cursor or progress.cursor < cursor:  # smaller: an earlier owner ran it
            return PartialResult(self.rename_session(result), result.outputs, 0, progress.cursor)
        ends = cursor, progress.cursor, progress.missed_bytes, progress.queue_position
        return PartialResult(self.rename_session(result), progress.outputs, *ends)

    async def _wait_for_progress(self, session: AsyncSession, execution_id: str, cursor: int, wait: float) -> Progress:
        """Wait until an execution ends or asks for input, the time is over, or the server ends; return the new output."""
        with anyio.CancelScope() as scope, self._count_wait(scope, execution_id):
            return await session.wait_for(execution_id, cursor=cursor, wait=wait)
        # The scope was cancelled, by an input request or the server's end: return the output so far.
        return await session.wait_for(execution_id, cursor=cursor, wait=SHORTEST_TIMEOUT)

    @contextmanager
    def _count_wait(self, scope: anyio.CancelScope, execution_id: str) -> Iterator[None]:
        """Let an input request of the execution, and the server's end, cancel the scope."""
        self._waits[scope] = execution_id
        try:
            yield
        finally:
            del self._waits[scope]

    async def list_running(self, session: AsyncSession) -> list[tuple[str, str]]:
        """Return ids and first lines of a session's running and queued cells, in order; at most the newest twenty."""
        rows: list[tuple[str, str]] = []
        # Cells run in order, so all before a finished cell have finished too. The cursor is past any output: none is copied.
        for execution_id in reversed(session.executions()[-_NEWEST:]):
            progress = await session.wait_for(execution_id, cursor=2**62, wait=SHORTEST_TIMEOUT)
            if progress.result is not None:
                break
            rows.append((execution_id, self._titles.get(execution_id, "")))
        return rows[::-1]

    @asynccontextmanager
    async def _waiting_call(self, session: AsyncSession, execution_id: str) -> AsyncIterator[None]:
        """Count a call waiting for the cell it sent; interrupt the cell if its last call is cancelled."""
        self._waiting_calls[execution_id] += 1
        try:
            yield
        except anyio.get_cancelled_exc_class():
            # A server that ends without its kernels cancels its calls too, but leaves the cells to the next server.
            if not self._is_releasing and self._waiting_calls[execution_id] == 1:
                with anyio.move_on_after(_INTERRUPT_SECONDS, shield=True):
                    await session.interrupt(execution_id)
            raise
        finally:
            self._waiting_calls[execution_id] -= 1
            if not self._waiting_calls[execution_id]:
                del self._waiting_calls[execution_id]


class SessionMethods:
    """Base class of tools, prompts and resources, with a method for each."""

    def __init__(self, sessions: SessionService) -> None:
        self._sessions = sessions
        self._options = sessions.options
