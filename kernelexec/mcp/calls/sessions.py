"""Calls that block on a cell: they tell of its progress, let go of it after a time, and end it when they are cancelled."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from weakref import WeakValueDictionary

import anyio
from fastmcp import Context

from kernelexec.config import SHORTEST_TIMEOUT, seconds
from kernelexec.errors import UnknownExecution, UnknownSession, nearest
from kernelexec.executor import AsyncExecutor
from kernelexec.mcp.callers import CALLER, Caller
from kernelexec.mcp.calls.elicitation import Asking
from kernelexec.mcp.calls.pending_inputs import Inputs, Pending
from kernelexec.mcp.calls.progress import Report, Seen, Show, check_wait, newest_line
from kernelexec.mcp.calls.task import TASK, Task
from kernelexec.mcp.quotas import Allotment
from kernelexec.results import ExecutionResult, OnInput, Progress
from kernelexec.session import AsyncSession

#: What sends a cell and waits so many seconds for it.
Send = Callable[[float], Awaitable[ExecutionResult]]

_WAITS = "It waits for an answer to its input(): a call of a client that can be asked (elicitation) takes the question to it."
_LINE_CHARS = 200
_LOOKED_AT = 20
_TITLES = 1000
_ENDING = 30.0
#: How long a call waits for its cell before its client gets a task, in seconds: what takes less is answered itself.
_AT_ONCE = 0.5


@dataclass(frozen=True, slots=True)
class Waiter:
    """A call that waits for an execution.

    Args:
        wait: seconds that it may block.
        report: tells its client of the progress.
        asking: whom it can ask.
        show: makes its answer, also later, where it may become a task.
    """

    wait: float
    report: Report | None = None
    asking: Asking | None = None
    show: Show | None = None


class Calls:
    """The sessions of one executor, as calls use them.

    Args:
        executor: whose sessions; it is open.
        interval: seconds between two tellings of progress.
        allotment: how many sessions each client may have.
        inputs: what cells ask, where they may.
    """

    def __init__(self, executor: AsyncExecutor, *, interval: float, allotment: Allotment, inputs: Inputs | None = None) -> None:
        self._executor = executor
        self._allotment = allotment
        self._inputs = inputs
        self._interval = seconds(interval, "interval")
        self._handles: dict[str, str] = {}
        self._titles: OrderedDict[str, str] = OrderedDict()
        self._callers: Counter[str] = Counter()
        self._tasks: WeakValueDictionary[str, Task] = WeakValueDictionary()

    async def session(self, name: str) -> AsyncSession:
        """The caller's session of that name, made if it is new; or that of a handle, which there must be.

        Raises:
            UnknownSession: no session has that handle.
            CapacityReached: the caller may have no more.
            KernelexecError: what ``AsyncExecutor.session`` raises.
        """
        if Caller.is_handle(name):
            return self.open_session(name)
        return await self._made(CALLER.get().session(name))

    async def new_session(self) -> tuple[str, AsyncSession]:
        """A new session of the caller's, with the handle by which it is called."""
        handle = Caller.new_handle()
        session = await self._made(CALLER.get().session(handle))
        self._handles[session.name] = handle
        return handle, session

    async def _made(self, wanted: str) -> AsyncSession:
        with self._allotment.session(CALLER.get().client, wanted, lambda one: self._executor.open_session(one) is not None):
            return await self._executor.session(wanted)

    async def close_session(self, name: str) -> None:
        """End an open session of the caller's.

        Raises:
            UnknownSession: there is none.
        """
        session = self.open_session(name)
        self._handles.pop(session.name, None)
        await session.close()

    def sessions(self) -> tuple[AsyncSession, ...]:
        """The caller's open sessions that have names, the oldest first."""
        found = (self._executor.open_session(name) for name in self._executor.sessions() if CALLER.get().owns(name))
        return tuple(session for session in found if session is not None)

    def open_session(self, name: str) -> AsyncSession:
        """The caller's open session of that name, or handle.

        Raises:
            UnknownSession: none; the message names those of the caller's that are open.
        """
        caller = CALLER.get()
        wanted = caller.session(name)
        session = self._executor.open_session(wanted)
        if session is not None:
            if caller.is_handle(name):
                self._handles[wanted] = name
            return session
        found = [caller.shown(session.name) for session in self.sessions()]
        known = f"Open are: {', '.join(found)}." if found else "None is open yet."
        made = "create_session makes one" if caller.is_handle(name) else "execute_code and execute_command make one"
        raise UnknownSession(f"No session {name!r} is open{nearest(name, found)}. {known} {made}.")

    def session_of(self, execution_id: str, name: str | None = None) -> AsyncSession:
        """The caller's open session that knows an execution; of that name, or handle, if there is one.

        Raises:
            UnknownSession: see ``open_session``.
            UnknownExecution: none does.
        """
        for session in self.sessions() if name is None else [self.open_session(name)]:
            if execution_id in session.executions():
                return session
        message = (
            f"No open session of yours knows an execution {execution_id!r:.100}: take the execution_id of an answer that said "
            "running, and pass the session's handle if it has one. Only the newest finished ones are remembered; list_sessions "
            "names those that run."
        )
        raise UnknownExecution(message)

    def knows(self, caller: Caller, name: str, execution_id: str) -> bool:
        """Whether a caller's session of that name is open, and remembers an execution."""
        session = self._executor.open_session(caller.session(name))
        return session is not None and execution_id in session.executions()

    def shown(self, session: str) -> str:
        """What the caller calls a session."""
        return self._handles.get(session) or CALLER.get().shown(session)

    def result(self, result: ExecutionResult) -> ExecutionResult:
        """A result that names its session as the caller does."""
        return replace(result, session=self.shown(result.session))

    def asking(self, context: Context) -> Asking:
        """Whom a call of the caller's can ask."""
        caller = CALLER.get()  # questions come also from where that is not known
        return Asking(context, lambda session: self._handles.get(session) or caller.shown(session))

    def on_input(self, asking: Asking) -> OnInput | None:
        """Who answers the `input()` of a cell that a call sends; nobody where cells may not ask, or its client cannot be."""
        return self._inputs.ask if self._inputs is not None and asking.possible else None

    async def resumed(self, name: str | None, waiter: Waiter, *, cursor: int, sends: bool = False) -> Seen | None:
        """What a call sees whose client was asked and answers now; None where it was not. The call sends nothing, then.

        One that ``sends`` otherwise has sent that cell: cancelling it is as in ``run``.

        Raises:
            UnknownSession, UnknownExecution: the cell that asked is nowhere.
        """
        if self._inputs is None or waiter.asking is None or (said := waiter.asking.answered) is None:
            return None
        session = self.session_of(said.execution_id, name)
        self._inputs.answer(said.execution_id, said.question, said.text, said.why)
        if not sends:
            return await self._waited(session, said.execution_id, waiter, cursor=cursor)
        async with self._calling(session, said.execution_id):
            return await self._waited(session, said.execution_id, waiter, cursor=cursor)

    def asked(self, execution_id: str) -> Pending | None:
        """What an execution asks."""
        return None if self._inputs is None else self._inputs.of(execution_id)

    async def run(self, session: AsyncSession, send: Send, waiter: Waiter, *, title: str) -> Seen:
        """Send a cell and see it through as long as the call waits; cancelling that interrupts it, or takes it off the queue.

        Where several calls of one request wait for it, the last one does, and none if it is a task. The cell itself runs in
        the session's life: nothing that becomes of this call loses it. A call that may become a task does so soon.
        """
        check_wait(waiter.wait)
        with anyio.CancelScope(shield=True):  # between sending a cell and knowing its id nothing is cancelled
            sent = await send(SHORTEST_TIMEOUT)
        self._name(sent.execution_id, title)
        if sent.status != "running":
            return Seen(self.result(sent), sent.outputs, held=sent.execution_id in session.executions())
        async with self._calling(session, sent.execution_id):
            return await self._waited(session, sent.execution_id, waiter, cursor=0)

    async def _waited(self, session: AsyncSession, execution_id: str, waiter: Waiter, *, cursor: int) -> Seen:
        """See an execution through, or make the call a task where it may become one."""
        task = TASK.get()
        waiter = waiter if task is None else replace(waiter, wait=_AT_ONCE)
        seen = await self.follow(session, execution_id, waiter, cursor=cursor)
        needed = waiter.asking.needed if waiter.asking is not None else None
        if task is not None and waiter.show is not None and seen.result.status == "running" and needed is None:
            task.begin(seen.result.session, execution_id, waiter.show)
            self._tasks.setdefault(execution_id, task)
        return seen

    async def follow(self, session: AsyncSession, execution_id: str, waiter: Waiter, *, cursor: int) -> Seen:
        """See an execution through as long as a call waits. Cancelling this costs the cell nothing.

        What it asks is asked of the call's client, which may need an answer that says so instead of what is seen.
        """
        began = time.monotonic()
        patience = check_wait(waiter.wait)
        heard, newest, over = cursor, "", False
        while not over:
            left = patience - (time.monotonic() - began)
            over = left <= self._interval
            step = max(min(left, self._interval), SHORTEST_TIMEOUT)
            progress = await self._heard(session, execution_id, cursor=heard, wait=step)
            if progress.result is not None or not await self._answered(execution_id, waiter.asking):
                break
            heard, newest = progress.cursor, newest_line(progress.outputs) or newest
            if not over and waiter.report is not None:
                await waiter.report(time.monotonic() - began, newest)
        progress = await session.wait_for(execution_id, cursor=cursor, wait=SHORTEST_TIMEOUT)
        if progress.result is not None and not cursor:
            return Seen(self.result(progress.result), progress.result.outputs, 0, progress.cursor)
        result = progress.result or ExecutionResult(
            execution_id, session.name, "running", kernel_epoch=session.kernel_epoch, isolation=session.isolation
        )
        if progress.result is None and self._inputs is not None and self._inputs.of(execution_id) is not None:
            result = replace(result, notes=(_WAITS,))
        return Seen(self.result(result), progress.outputs, cursor, progress.cursor, progress.missed_bytes, progress.place)

    async def _heard(self, session: AsyncSession, execution_id: str, *, cursor: int, wait: float) -> Progress:
        """What is new of an execution once it has ended, has asked something, or the time is over."""
        if self._inputs is not None and self._inputs.of(execution_id) is None:
            async with anyio.create_task_group() as tasks:

                async def asked(inputs: Inputs) -> None:
                    await inputs.asked(execution_id)
                    tasks.cancel_scope.cancel()

                tasks.start_soon(asked, self._inputs)
                await session.wait_for(execution_id, wait=wait)
                tasks.cancel_scope.cancel()
            wait = SHORTEST_TIMEOUT
        return await session.wait_for(execution_id, cursor=cursor, wait=wait)

    async def _answered(self, execution_id: str, asking: Asking | None) -> bool:
        """Have a call's client asked what an execution asks; whether the call goes on."""
        if self._inputs is None or asking is None or not asking.possible:
            return True
        pending = self._inputs.of(execution_id)
        return pending is None or await asking.answer(pending)

    async def running(self, session: AsyncSession) -> list[tuple[str, str]]:
        """The ids and first lines of what runs or waits in a session, in its order, the newest twenty."""
        found: list[tuple[str, str]] = []
        for execution_id in reversed(session.executions()[-_LOOKED_AT:]):
            progress = await session.wait_for(execution_id, cursor=2**62, wait=SHORTEST_TIMEOUT)
            if progress.result is not None:
                break
            found.append((execution_id, self._titles.get(execution_id, "")))
        return found[::-1]

    @asynccontextmanager
    async def _calling(self, session: AsyncSession, execution_id: str) -> AsyncIterator[None]:
        """One of the calls that wait for a cell of theirs; if the last one is cancelled the cell is interrupted."""
        self._callers[execution_id] += 1
        try:
            try:
                yield
            finally:
                self._callers[execution_id] -= 1
                if not self._callers[execution_id]:
                    del self._callers[execution_id]
        except anyio.get_cancelled_exc_class():
            if not (execution_id in self._callers or execution_id in self._tasks):
                with anyio.move_on_after(_ENDING, shield=True):
                    await session.interrupt(execution_id)
            raise

    def _name(self, execution_id: str, title: str) -> None:
        self._titles[execution_id] = next((line.strip() for line in title.splitlines() if line.strip()), "")[:_LINE_CHARS]
        while len(self._titles) > _TITLES:
            self._titles.popitem(last=False)
