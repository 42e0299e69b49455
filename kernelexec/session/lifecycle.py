"""A task group in a task of its own, so that one task may open it, and another, or several, may close it."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from kernelexec.errors import Closed

logger = logging.getLogger("kernelexec")


class Life:
    """The scope of an executor's or a session's tasks. Any task may request the end, and several may wait for it.

    Args:
        name: the executor or session, for messages and the log.
        before: ends the resources that the tasks use; called while they still run.
        after: called when none of them runs any more, also after a failure.
    """

    def __init__(self, name: str, before: Callable[[], Awaitable[None]], after: Callable[[], Awaitable[None]]) -> None:
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()
        self.failure: Exception | None = None
        self.cut_off = False
        self._name = name
        self._before = before
        self._after = after
        self._asked = asyncio.Event()
        self._tasks: TaskGroup | None = None
        self._pid = os.getpid()
        self._loop = asyncio.get_running_loop()

    @property
    def ending(self) -> bool:
        """Whether the end was requested, or came by itself."""
        return self._asked.is_set()

    @property
    def inherited(self) -> bool:
        """Whether this process is a forked child of the one that it began in: there it has no tasks, and nothing to end."""
        return os.getpid() != self._pid

    @property
    def tasks(self) -> TaskGroup:
        """The task group; it has begun."""
        assert self._tasks is not None
        return self._tasks

    def check_here(self) -> None:
        """Refuse a caller that could wait for ever.

        Raises:
            Closed: the caller is in a forked child of this process, or in another event loop.
        """
        if self.inherited:
            message = f"{self._name} belongs to the process that this one was forked from: open an executor here."
            raise Closed(message)
        if asyncio.get_running_loop() is not self._loop:
            message = f"{self._name} belongs to another event loop{' that is closed' * self._loop.is_closed()}: open one here."
            raise Closed(message)

    def check_open(self) -> None:
        """Refuse a caller that comes too late.

        Raises:
            Closed: the end was requested or came by itself; and as in ``check_here``.
        """
        self.check_here()
        if not self.ending:
            return
        reason = ""
        if self.failure is not None:
            reason = f" A part of it failed: {self.failure!r}."
        elif self.cut_off:
            reason = " Its tasks were cancelled from outside." if self.ended.is_set() else " It ended by itself: see the log."
        message = f"{self._name} is closed.{reason}"
        raise Closed(message) from self.failure

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Have the end wait for the block, which needs the tasks of this scope though it is in none of them.

        Raises:
            Closed: see ``check_open``.
        """
        self.check_open()
        done = asyncio.Event()
        self.tasks.start_soon(done.wait)
        try:
            yield
        finally:
            done.set()

    async def live(self) -> None:
        """Run the task group, as a task. A failure in it ends all; it is logged at once and kept as ``failure``."""
        try:
            await self._hold()
        except* Exception as group:  # noqa: BLE001 - the parent of this task is not concerned
            self._fail(_first(group))
        finally:
            if self.cut_off and self.failure is None:
                logger.warning("kernelexec.cut_off", extra={"life": self._name})
            with anyio.CancelScope(shield=True):
                await self._see_off()

    async def _hold(self) -> None:
        async with anyio.create_task_group() as self._tasks:
            self.begun.set()
            try:
                await self._asked.wait()
            finally:
                self.cut_off = not self.ending
                self.ask_end()
                with anyio.CancelScope(shield=True):
                    if not self.inherited:
                        await self._before()

    async def _see_off(self) -> None:
        try:
            if not self.inherited:
                await self._after()
        except Exception as exc:  # noqa: BLE001 - the end is the end
            self._fail(exc)
        finally:
            self.never_lived()

    def _fail(self, exc: Exception) -> None:
        self.failure = self.failure or exc
        logger.error("kernelexec.life_failed", exc_info=exc, extra={"life": self._name})

    def ask_end(self) -> None:
        """Request the end, without waiting for it."""
        self._asked.set()
        self.begun.set()

    def never_lived(self) -> None:
        """Mark the scope as ended: its task has, or will never begin."""
        self.ask_end()
        self.ended.set()

    async def end(self) -> None:
        """Request the end and wait for it. The cancellation of a caller changes nothing."""
        self.ask_end()
        await self.ended.wait()

    async def end_surely(self) -> None:
        """Request the end and wait for it, cancelled or not; a cancellation is raised when all has ended."""
        self.ask_end()
        cancelled: asyncio.CancelledError | None = None
        with anyio.CancelScope(shield=True):
            while not self.ended.is_set():
                try:
                    await self.ended.wait()
                except asyncio.CancelledError as exc:
                    cancelled = exc
        if cancelled is not None:
            raise cancelled


async def in_thread(call: Callable[..., None], *args: object, abandon: bool = False) -> None:
    """Make a call in a thread of its own limiter: busy threads of other callers do not delay it.

    With ``abandon`` a cancelled caller leaves at once, and the call goes on without it.
    """
    await anyio.to_thread.run_sync(call, *args, abandon_on_cancel=abandon, limiter=anyio.CapacityLimiter(1))


def _first(group: BaseExceptionGroup[Exception]) -> Exception:
    """Return the first exception that is no group."""
    exc = group.exceptions[0]
    return _first(exc) if isinstance(exc, BaseExceptionGroup) else exc
