"""The writing of a session's notebook, in a thread, soon after a cell ends or a display changes: no result waits for it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import anyio

from kernelexec.events import CellExecuted, DisplayUpdated, Event, Record
from kernelexec.session.lifecycle import Life, in_thread

#: The seconds that a caller waits for a write at most: a disk that hangs holds none for ever.
PATIENCE = 10.0
#: The seconds until a cell is written, and until a change of its displays is.
_SOON, SOONEST = 0.005, 0.5
#: Writing takes a twentieth of the time at most, with a rest of so many seconds; no event waits longer than the last.
_SHARE, _REST, LATEST = 20, 0.25, 10.0

logger = logging.getLogger("kernelexec")


class NotebookWriter:
    """A hook, called after the record, that has the record write its file when there is anything new."""

    def __init__(self, session: str, record: Record | None, life: Life) -> None:
        self._session = session
        self._write: Callable[[], None] | None = record.write if record else None
        self._finish: Callable[[], None] | None = record.finish if record else None
        self._life = life
        self._pause: float | None = None
        self._writing = asyncio.Lock()
        self._due = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._took = self._rested = 0.0

    def __call__(self, event: Event, /) -> None:
        """Plan a write if the event changes the notebook."""
        if isinstance(event, CellExecuted | DisplayUpdated) and self._write is not None:
            pause = _SOON if isinstance(event, CellExecuted) else SOONEST
            self._pause = pause if self._pause is None else min(pause, self._pause)
            self._plan()

    async def run(self) -> None:
        """Write when it is due, until the session ends, as a task of its own: a timer's callback can start none."""
        while not self._life.ending:
            await self._due.wait()
            self._due.clear()
            if not self._life.ending:
                await self.flush()

    def stop(self) -> None:
        """End that task, once the session is ending."""
        self._due.set()

    async def flush(self) -> None:
        """Return once all events so far are written. A write that fails is logged, and tried again with the next."""
        if self._write is None:
            return
        with anyio.move_on_after(PATIENCE) as patience:
            async with self._writing:
                if self._pause is not None:
                    await self._call(self._write)
            self._plan()
        if patience.cancelled_caught:
            logger.error("kernelexec.notebook_late", extra={"session": self._session, "waited": PATIENCE})

    async def close(self) -> None:
        """Write for the last time, also after writes that failed."""
        self._pause, self._write = 0.0, self._finish
        await self.flush()
        self._stop_timer()

    def _plan(self) -> None:
        """Set a timer for the next write: after its pause, or later if the file was just written."""
        if self._pause is None or self._life.ending or self._writing.locked():
            return
        loop = asyncio.get_running_loop()
        due = max(loop.time() + self._pause, self._rested + min(max(self._took * _SHARE, _REST), LATEST))
        if self._timer is not None and self._timer.when() <= due:
            return
        self._stop_timer()
        self._timer = loop.call_at(due, self._begin)

    def _begin(self) -> None:
        self._timer = None
        self._due.set()

    async def _call(self, write: Callable[[], None]) -> None:
        self._stop_timer()
        self._pause = None
        begun = time.monotonic()
        try:
            await in_thread(write, abandon=True)
        except Exception:
            logger.exception("kernelexec.notebook_not_written", extra={"session": self._session})
        self._rested = asyncio.get_running_loop().time()
        self._took = time.monotonic() - begun

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
