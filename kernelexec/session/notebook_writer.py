"""The writer of a session's notebook, in a thread, soon after a cell's end or a display's change. Results do not wait."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio

from kernelexec.errors import NotebookNotWritten
from kernelexec.events import BranchPromoted, CellExecuted, DisplayUpdated, Event, LateOutputReported, StateRestored
from kernelexec.session.lifecycle import TaskScope, run_in_thread

if TYPE_CHECKING:
    from kernelexec.records.notebook.recorder import Recorder

#: The seconds that a caller waits for a write at most, so that a disk that hangs does not block callers.
FLUSH_SECONDS = 10.0
#: The seconds until the write after a cell, and after a change of a display.
_CELL_DELAY, DISPLAY_DELAY = 0.005, 0.5
#: Writes take one twentieth of the time at most, with a minimal rest between them; no event waits longer than ``DELAY_MAX``.
_SHARE, _REST_SECONDS, DELAY_MAX = 20, 0.25, 10.0
#: The events that change a notebook.
_WRITTEN = (CellExecuted, StateRestored, BranchPromoted, DisplayUpdated, LateOutputReported)

logger = logging.getLogger("kernelexec")


class NotebookWriter:
    """A hook to hand events to the notebook's recorder, and to write pending changes.

    ``_delay`` is None while nothing is pending. ``_timer`` is set for the next write, and ``_due`` wakes the writing task.
    """

    def __init__(self, session: str, record: Recorder | None, scope: TaskScope) -> None:
        self._session = session
        self._record = record
        self._write: Callable[[], None] | None = record.write if record else None
        self._scope = scope
        self._delay: float | None = None
        self._writing = asyncio.Lock()
        self._due = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self.failure: str | None = None
        """The reason of the newest write's failure; writes are repeated until success."""
        self._write_seconds = self._written_at = 0.0

    def __call__(self, event: Event, /) -> None:
        """Record the event, and schedule a write if the notebook changes."""
        if self._record is None:
            return
        self._record(event)
        if isinstance(event, _WRITTEN):
            delay = _CELL_DELAY if isinstance(event, CellExecuted) else DISPLAY_DELAY
            self._delay = delay if self._delay is None else min(delay, self._delay)
            self._schedule()

    async def run(self) -> None:
        """Write at the scheduled times until the session's end, as a task woken by the timer's callback."""
        while not self._scope.is_stopping:
            await self._due.wait()
            self._due.clear()
            if not self._scope.is_stopping:
                await self.flush()

    def stop(self) -> None:
        """End the task; the session must be ending."""
        self._due.set()

    async def flush(self) -> None:
        """Write all events so far. A failed write sets ``failure``, is logged, and repeated every ten seconds."""
        if self._write is None:
            return
        with anyio.move_on_after(FLUSH_SECONDS) as flush_scope:
            async with self._writing:
                # asked under the lock: the write that this call waited for may have written its events
                if self._delay is not None:
                    await self._call_write(self._write)
            self._schedule()
        if flush_scope.cancelled_caught:
            self.failure = f"the disk did not answer within {FLUSH_SECONDS:.0f} s"
            self._delay = DELAY_MAX if self._delay is None else self._delay
            self._schedule()
            logger.error("kernelexec.notebook_write_timeout", extra={"session": self._session, "waited": FLUSH_SECONDS})

    async def save_notebook(self) -> None:
        """Wait, 10 s at most, until the notebook contains every cell that has ended; it is written soon after each result.

        Raises:
            NotebookNotWritten: the disk is full or does not answer. The cells are kept, and written when it is possible.
        """
        self._scope.check_caller()
        await self.flush()
        if self.failure is not None:
            assert self._record is not None
            message = f"The notebook {self._record.path} cannot be written ({self.failure}): free space for it."
            raise NotebookNotWritten(f"{message} Its cells are kept in memory, and written when that is possible.")

    async def close(self) -> None:
        """Write for the last time, also after failed writes."""
        self._delay, self._write = 0.0, self._record.finish if self._record else None
        await self.flush()
        self._stop_timer()

    def _schedule(self) -> None:
        """Set a timer for the next write: after its delay, or later if the file was just written."""
        if self._delay is None or self._scope.is_stopping or self._writing.locked():
            return
        loop = asyncio.get_running_loop()
        due = max(
            loop.time() + self._delay, self._written_at + min(max(self._write_seconds * _SHARE, _REST_SECONDS), DELAY_MAX)
        )
        if self._timer is not None and self._timer.when() <= due:
            return
        self._stop_timer()
        self._timer = loop.call_at(due, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._due.set()

    async def _call_write(self, write: Callable[[], None]) -> None:
        self._stop_timer()
        self._delay = None  # before the write: events during the write set it again, and so are written next
        begun = time.monotonic()
        try:
            await run_in_thread(write, abandon=True)  # a disk that hangs keeps the thread, not the caller
            self.failure = None
        except Exception as exc:
            reason = (exc.strerror if isinstance(exc, OSError) else None) or str(exc)
            if self.failure is None:
                details = {"session": self._session, "reason": reason}
                logger.log(
                    logging.ERROR, "kernelexec.notebook_write_failed", exc_info=not isinstance(exc, OSError), extra=details
                )
            self.failure, self._delay = reason, DELAY_MAX
        self._written_at = asyncio.get_running_loop().time()
        self._write_seconds = time.monotonic() - begun

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
