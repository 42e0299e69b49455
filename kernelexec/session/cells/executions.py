"""Executions that were sent: their progress, their output and their interruption."""

from __future__ import annotations

from types import UnionType

import anyio
import anyio.to_thread

from kernelexec.config import seconds
from kernelexec.errors import InvalidRequest
from kernelexec.results import ExecutionResult, OutputPage, Progress
from kernelexec.session.cells.cell_run import Turn
from kernelexec.session.context import SessionContext

#: The bytes of a cell's stream output in one page of ``read_output``.
PAGE_BYTES = 64 * 1024


class Executions:
    """The executions of one session that are remembered, that run and that wait."""

    def __init__(self, context: SessionContext) -> None:
        self._scope = context.scope
        self._queue = context.queue

    def executions(self) -> tuple[str, ...]:
        """Return the ids that ``wait_for`` knows: of remembered, running and waiting executions, the oldest first."""
        return self._queue.ids()

    async def wait_for(self, execution_id: str, *, cursor: int = 0, wait: float | None = None) -> Progress:
        """Return the new outputs of an execution since ``cursor``; blocks until it has ended, ``wait`` seconds at most.

        Raises:
            UnknownExecution: no execution of that id is remembered.
            InvalidTimeout: ``wait`` is no number of seconds.
        """
        turn = self.find(execution_id)
        _check_count(cursor, "cursor")
        with anyio.move_on_after(None if wait is None else seconds(wait, "wait")):
            await turn.done.wait()
        outputs, position, missed = turn.collector.since(cursor) if turn.collector else ((), 0, 0)
        queue_position = self._queue.turns.index(turn) if turn in self._queue.turns else 0
        result = self._queue.result(turn)
        status = result.status if result else "running"
        return Progress(execution_id, status, outputs, position, missed, queue_position, result)

    async def read_output(
        self, execution_id: str, *, offset: int = 0, limit: int = PAGE_BYTES, grep: str | None = None
    ) -> OutputPage:
        """Return a page of a cell's raw stream output, also of the part that its result had to cut.

        Args:
            execution_id: the execution.
            offset: the first byte.
            limit: the number of bytes at most.
            grep: a regular expression; only lines that match are returned.

        Raises:
            UnknownExecution: no execution of that id is remembered.
            InvalidRequest: a negative offset, a limit below 1, a malformed pattern, or one that takes more than 5 s.
        """
        _check_count(offset, "offset")
        _check_count(limit, "limit", least=1)
        _check_type(grep, str | None, "grep")
        turn = self.find(execution_id)
        try:
            return await anyio.to_thread.run_sync(turn.page, offset, limit, grep)
        except FileNotFoundError:
            self._scope.check_open()
            raise

    async def interrupt(self, execution_id: str | None = None) -> ExecutionResult | None:
        """End the running cell (or the one named, which may still wait) and return its result; None if nothing runs.

        Raises:
            UnknownExecution: no execution of that id is remembered.
        """
        self._scope.check_here()
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

    def find(self, execution_id: str) -> Turn:
        """Return a remembered, running or waiting turn.

        Raises:
            UnknownExecution: no execution of that id is remembered.
        """
        self._scope.check_here()
        return self._queue.find(execution_id)


def _check_count(value: object, name: str, *, least: int = 0) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        message = f"{name}={value!r} must be a whole number of bytes, at least {least}."
        raise InvalidRequest(message)


def _check_type(value: object, kind: type | UnionType, name: str) -> None:
    if not isinstance(value, kind):
        message = f"{name}={value!r} must be {getattr(kind, '__name__', kind)}, not {type(value).__name__}."
        raise InvalidRequest(message)
