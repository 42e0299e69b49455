"""What a session's caller can do with executions that were sent: take them up again, read their output, end them."""

from __future__ import annotations

from types import UnionType

import anyio
import anyio.to_thread

from kernelexec.config import seconds
from kernelexec.errors import InvalidRequest
from kernelexec.results import ExecutionResult, OutputPage, Progress
from kernelexec.session.cells.cell_run import Turn
from kernelexec.session.cells.queue import Queue
from kernelexec.session.lifecycle import Life
from kernelexec.session.observers.notebook_writer import Scribe

#: How much of a cell's stream output one page of ``read_output`` gives, in bytes.
PAGE_BYTES = 64 * 1024


class Executions:
    """The part of a session that concerns what was sent; whoever derives from it gives it its life and its queue."""

    life: Life
    _queue: Queue
    _scribe: Scribe

    def executions(self) -> tuple[str, ...]:
        """The ids of all executions that can be had by ``wait_for``: remembered, running, waiting; the oldest first."""
        return self._queue.ids()

    async def wait_for(self, execution_id: str, *, cursor: int = 0, wait: float | None = None) -> Progress:
        """What is new of an execution since ``cursor``; blocks until it has ended, ``wait`` seconds at most.

        Raises:
            UnknownExecution: no execution of that id is remembered.
            InvalidTimeout: ``wait`` is no number of seconds.
        """
        turn = self._find(execution_id)
        _check_count(cursor, "cursor")
        with anyio.move_on_after(None if wait is None else seconds(wait, "wait")):
            await turn.done.wait()
        outputs, position, missed = turn.collector.since(cursor) if turn.collector else ((), 0, 0)
        place = self._queue.turns.index(turn) if turn in self._queue.turns else 0
        result = self._queue.result(turn)
        return Progress(execution_id, result.status if result else "running", outputs, position, missed, place, result)

    async def read_output(
        self, execution_id: str, *, offset: int = 0, limit: int = PAGE_BYTES, grep: str | None = None
    ) -> OutputPage:
        """A page of a cell's stream output, raw as it came, also of what its result had to cut.

        Args:
            execution_id: whose output.
            offset: where to begin, in bytes.
            limit: how much at most, in bytes.
            grep: a regular expression; only lines that match are given.

        Raises:
            UnknownExecution: no execution of that id is remembered.
            InvalidRequest: a negative offset, a limit below 1, a malformed pattern, or one that takes more than 5 s.
        """
        _check_count(offset, "offset")
        _check_count(limit, "limit", least=1)
        _check_type(grep, str | None, "grep")
        turn = self._find(execution_id)
        try:
            return await anyio.to_thread.run_sync(turn.page, offset, limit, grep)
        except FileNotFoundError:
            self.life.check_open()
            raise

    async def save_notebook(self) -> None:
        """Return once the notebook shows every cell that has ended: it is written some milliseconds after a result is given.

        A disk that hangs is waited for 10 s.
        """
        self.life.check_here()
        await self._scribe.settle()

    async def interrupt(self, execution_id: str | None = None) -> ExecutionResult | None:
        """End the running cell (or the one named, which may still wait) and return its result; None if nothing runs.

        Raises:
            UnknownExecution: no execution of that id is remembered.
        """
        self.life.check_here()
        turn = self._queue.find(execution_id) if execution_id is not None else self._queue.first
        if turn is None:
            return None
        turn.ask_interrupt()
        await turn.done.wait()
        return self._queue.result(turn)

    def request_interrupt(self) -> None:
        """Ask for the end of the running cell without waiting for it. Call it in the event loop's thread."""
        if self._queue.first is not None:
            self._queue.first.ask_interrupt()

    def _find(self, execution_id: str) -> Turn:
        self.life.check_here()
        return self._queue.find(execution_id)


def _check_count(value: object, name: str, *, least: int = 0) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        message = f"{name}={value!r}: it is a whole number of bytes, {least} at least."
        raise InvalidRequest(message)


def _check_type(value: object, kind: type | UnionType, name: str) -> None:
    if not isinstance(value, kind):
        message = f"{name}={value!r}: it is {getattr(kind, '__name__', kind)}, not {type(value).__name__}."
        raise InvalidRequest(message)
