"""Has a session's notebook written, in a thread: before a cell's result is given, and soon after a change between cells."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import anyio

from kernelexec.hooks import CellExecuted, DisplayUpdated, Event, Record
from kernelexec.session.life import Life, in_thread

#: How long a write is waited for, in seconds: a disk that hangs holds no result back for ever.
PATIENCE = 10.0
#: How long a change waits to be written with those that follow it, in seconds: so that writing takes a twentieth of the time.
SOONEST, LATEST, _SHARE = 0.5, 10.0, 20

logger = logging.getLogger("kernelexec")


class Scribe:
    """A hook, told after the record, which it has write what that one was told, if it is anything new."""

    def __init__(self, session: str, record: Record | None, life: Life) -> None:
        self._session = session
        self._write: Callable[[], None] | None = record.write if record else None
        self._finish: Callable[[], None] | None = record.finish if record else None
        self._life = life
        self._unwritten = False
        self._writing = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._took = 0.0

    def __call__(self, event: Event, /) -> None:
        """Take note that there is something to write; what no cell's end brings is written soon."""
        self._unwritten |= isinstance(event, CellExecuted | DisplayUpdated)
        if isinstance(event, DisplayUpdated) and self._timer is None and not self._life.ending:
            pause = min(max(SOONEST, self._took * _SHARE), LATEST)
            self._timer = asyncio.get_running_loop().call_later(pause, self._begin)

    async def settle(self) -> None:
        """Return once what was told so far is written. A write that fails is logged, and tried again with the next."""
        if self._write is None:
            return
        with anyio.move_on_after(PATIENCE) as patience:
            async with self._writing:
                if self._unwritten:
                    await self._run(self._write)
        if patience.cancelled_caught:
            logger.error("kernelexec.notebook_late", extra={"session": self._session, "waited": PATIENCE})

    async def close(self) -> None:
        """Write for the last time, also what could not be written before."""
        self._unwritten, self._write = True, self._finish
        await self.settle()
        self._stop_timer()

    def _begin(self) -> None:
        self._timer = None
        if not self._life.ending:
            self._life.tasks.start_soon(self.settle)

    async def _run(self, write: Callable[[], None]) -> None:
        self._stop_timer()
        self._unwritten = False
        begun = time.monotonic()
        try:
            await in_thread(write, abandon=True)
        except Exception:
            logger.exception("kernelexec.notebook_not_written", extra={"session": self._session})
        self._took = time.monotonic() - begun

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
