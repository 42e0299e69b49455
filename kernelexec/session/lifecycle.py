"""The tasks and threads of executors and sessions.

A task group runs in a task of its own: the task that opens a scope need not be the task that closes the scope.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from kernelexec.cancellation import await_to_end
from kernelexec.errors import Closed

logger = logging.getLogger("kernelexec")
_E = TypeVar("_E", bound=BaseException)
#: A thread's turn with the interpreter while another thread waits, in seconds; Python's default is ten times as long.
_TURN = 0.0005
#: The number of threads in ``short_turns``, and the interpreter's settings before the first of them.
_lock = threading.Lock()
_running = 0
_before: tuple[float, bool] = (0.0, False)


class TaskScope:
    """The scope of an executor's or a session's tasks. Any task may request the end, and several may wait for the end.

    Args:
        name: the executor or session, for messages and the log.
        before: ends the resources of the tasks; called while the tasks still run.
        after: called after the last task's end, also after a failure.
    """

    def __init__(self, name: str, before: Callable[[], Awaitable[None]], after: Callable[[], Awaitable[None]]) -> None:
        self.started = asyncio.Event()
        self.stopped = asyncio.Event()
        self.failure: Exception | None = None
        self.cancelled = False
        self._name = name
        self._before = before
        self._after = after
        self._stop_requested = asyncio.Event()
        self._tasks: TaskGroup | None = None
        self._pid = os.getpid()
        self._loop = asyncio.get_running_loop()

    @property
    def is_stopping(self) -> bool:
        """Whether the end was requested or has begun."""
        return self._stop_requested.is_set()

    @property
    def in_forked_child(self) -> bool:
        """Whether this process is a forked child of the scope's process: a child has no tasks of the scope to end."""
        return os.getpid() != self._pid

    @property
    def tasks(self) -> TaskGroup:
        """The task group; raise ``Closed`` before the scope has started."""
        if self._tasks is None:
            raise Closed(f"{self._name} is not open yet: wait until it is.")
        return self._tasks

    def check_caller(self) -> None:
        """Raise ``Closed`` in a forked child and in another event loop, where a caller could wait without end."""
        if self.in_forked_child:
            raise Closed(f"{self._name} belongs to the process that this one was forked from: open an executor here.")
        if asyncio.get_running_loop() is not self._loop:
            message = f"{self._name} belongs to another event loop{' that is closed' * self._loop.is_closed()}: open one here."
            raise Closed(message)

    def check_open(self) -> None:
        """Raise ``Closed`` if the end was requested or has begun, and as ``check_caller``."""
        self.check_caller()
        if not self.is_stopping:
            return
        reason = ""
        if self.failure is not None:
            reason = f" A part of it failed: {self.failure!r}."
        elif self.cancelled:
            reason = " Its tasks were cancelled from outside." if self.stopped.is_set() else " It ended by itself: see the log."
        raise Closed(f"{self._name} is closed.{reason}") from self.failure

    @asynccontextmanager
    async def hold_open(self) -> AsyncIterator[None]:
        """Delay the end of the scope until the end of the block, for code in need of the tasks; raise as ``check_open``."""
        self.check_open()
        # a task that waits for the block: the task group cannot end before it
        done = asyncio.Event()
        self.tasks.start_soon(done.wait)
        try:
            yield
        finally:
            done.set()

    async def run(self) -> None:
        """Run the task group, as a task. A failure ends all tasks, is logged at once and kept as ``failure``."""
        try:
            await self._run_tasks()
        except* Exception as group:  # noqa: BLE001 - kept as ``failure``; the parent of this task must not fail
            self._record_failure(find_first_exception(group))
        finally:
            if self.cancelled and self.failure is None:
                logger.info("kernelexec.tasks_cancelled", extra={"scope": self._name})  # by a loop that ends without ``close``
            with anyio.CancelScope(shield=True):
                await self._run_after()

    async def _run_tasks(self) -> None:
        async with anyio.create_task_group() as self._tasks:
            self.started.set()
            try:
                await self._stop_requested.wait()
            finally:
                self.cancelled = not self.is_stopping  # before ``request_stop``, which sets the flag that this line reads
                self.request_stop()
                with anyio.CancelScope(shield=True):
                    if not self.in_forked_child:
                        await self._before()

    async def _run_after(self) -> None:
        try:
            if not self.in_forked_child:
                await self._after()
        except Exception as exc:  # noqa: BLE001 - kept as ``failure``; the scope ends in any case
            self._record_failure(exc)
        finally:
            self.mark_end()

    def _record_failure(self, exc: Exception) -> None:
        self.failure = self.failure or exc
        logger.error("kernelexec.tasks_failed", exc_info=exc, extra={"scope": self._name})

    def request_stop(self) -> None:
        """Request the end, without waiting."""
        self._stop_requested.set()
        self.started.set()  # a caller that waits for the start must wake, to find the scope closed

    def mark_end(self) -> None:
        """Mark the scope as ended: its task has ended, or will never begin."""
        self.request_stop()
        self.stopped.set()

    async def wait_for_request(self) -> None:
        """Wait until the end is requested."""
        await self._stop_requested.wait()

    async def stop(self) -> None:
        """Request and await the end. The cancellation of a caller does not stop the end."""
        self.request_stop()
        await self.stopped.wait()

    async def stop_with_shield(self) -> None:
        """Request and await the end in spite of cancellation. The cancellation is raised after the end."""
        self.request_stop()
        await await_to_end(self.stopped.wait())


async def run_in_thread(call: Callable[..., None], *args: object, abandon: bool = False) -> None:
    """Make a call in a thread outside of shared limits, so no busy thread delays it; ``abandon`` frees a cancelled caller."""
    await anyio.to_thread.run_sync(call, *args, abandon_on_cancel=abandon, limiter=anyio.CapacityLimiter(1))


def find_first_exception(group: BaseExceptionGroup[_E]) -> _E:
    """Return the first exception in a group and its nested groups."""
    exc = group.exceptions[0]
    return find_first_exception(exc) if isinstance(exc, BaseExceptionGroup) else exc


@contextmanager
def short_turns() -> Iterator[None]:
    """Hold up other threads little while this one makes many objects.

    An event loop gives the interpreter up at each system call, some thirty times for a cell, and waits for a whole turn of the
    other thread each time. A collection of garbage looks at all new objects in one turn, and finds none.
    """
    global _running, _before  # noqa: PLW0603 - both are the interpreter's own
    with _lock:
        if not _running:  # only the first thread saves the settings: the next would save the changed ones
            _before = sys.getswitchinterval(), gc.isenabled()
            sys.setswitchinterval(min(_TURN, _before[0]))
            gc.disable()
        _running += 1
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            if not _running:
                sys.setswitchinterval(_before[0])
                if _before[1]:
                    gc.enable()
