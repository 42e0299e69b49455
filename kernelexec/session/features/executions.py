"""Access to submitted executions: progress, output and interruption."""

from __future__ import annotations

from types import UnionType

import anyio
import anyio.to_thread

from kernelexec.config import check_seconds
from kernelexec.errors import InvalidRequest
from kernelexec.results import ExecutionResult, OutputPage, Progress
from kernelexec.session.cells.cell_run import CellRun
from kernelexec.session.context import SessionContext

#: The bytes of a cell's stream output in one page of ``read_output``.
PAGE_BYTES = 64 * 1024


class Executions:
    """The remembered, running and waiting executions of one session."""

    def __init__(self, context: SessionContext) -> None:
        self._scope = context.scope
        self._queue = context.queue

    def executions(self) -> tuple[str, ...]:
        """Return the ids of remembered, running and waiting executions, the oldest first."""
        return self._queue.list_ids()

    async def wait_for(self, execution_id: str, *, cursor: int = 0, wait: float | None = None) -> Progress:
        """Wait for the end of an execution, ``wait`` seconds at most; return its new outputs since ``cursor``.

        Raises:
            UnknownExecution: no execution with that id is remembered.
            InvalidTimeout: ``wait`` is not a number of seconds.
        """
        run = self.find(execution_id)
        _check_count(cursor, "cursor")
        with anyio.move_on_after(None if wait is None else check_seconds(wait, "wait")):
            await run.done.wait()
        outputs, position, missed_outputs = run.collector.since(cursor) if run.collector else ((), 0, 0)
        queue_position = self._queue.runs.index(run) if run in self._queue.runs else 0
        result = self._queue.get_result(run)
        status = result.status if result else "running"
        return Progress(execution_id, status, outputs, position, missed_outputs, queue_position, result)

    async def read_output(
        self, execution_id: str, *, offset: int = 0, limit: int = PAGE_BYTES, grep: str | None = None
    ) -> OutputPage:
        """Return a page of a cell's raw stream output, including the part that is cut from the result.

        Args:
            execution_id: the execution.
            offset: the first byte.
            limit: the number of bytes at most.
            grep: a regular expression; only lines that match are returned.

        Raises:
            UnknownExecution: no execution with that id is remembered.
            InvalidRequest: a negative offset, a limit below 1, a malformed pattern, or a pattern that takes more than 5 s.
        """
        _check_count(offset, "offset")
        _check_count(limit, "limit", minimum=1)
        _check_type(grep, str | None, "grep")
        run = self.find(execution_id)
        try:
            return await anyio.to_thread.run_sync(run.read_page, offset, limit, grep)
        except FileNotFoundError:
            self._scope.check_open()
            raise

    async def interrupt(self, execution_id: str | None = None) -> ExecutionResult | None:
        """Interrupt the running cell, or the named one, and return its result; return None if no cell runs.

        Raises:
            UnknownExecution: no execution with that id is remembered.
        """
        self._scope.check_caller()
        run = self._queue.find(execution_id) if execution_id is not None else self._queue.first
        if run is None:
            return None
        run.request_interrupt()
        await run.done.wait()
        return self._queue.get_result(run)

    def request_interrupt(self) -> None:
        """Interrupt the running cell without waiting for its end. Must be called in the event loop's thread."""
        if self._queue.first is not None:
            self._queue.first.request_interrupt()

    def find(self, execution_id: str) -> CellRun:
        """Return a remembered, running or waiting run.

        Raises:
            UnknownExecution: no execution with that id is remembered.
        """
        self._scope.check_caller()
        return self._queue.find(execution_id)


def _check_count(value: object, name: str, *, minimum: int = 0) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        message = f"{name}={value!r} must be a whole number of bytes, at least {minimum}."
        raise InvalidRequest(message)


def _check_type(value: object, kind: type | UnionType, name: str) -> None:
    if not isinstance(value, kind):
        message = f"{name}={value!r} must be {getattr(kind, '__name__', kind)}, not {type(value).__name__}."
        raise InvalidRequest(message)
