"""The finished executions of a session, bounded in number and in bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from kernelexec.errors import UnknownExecution, nearest
from kernelexec.session.cells.cell_run import Turn

#: The output that all remembered executions of a session may hold together, in bytes: in memory, and in spill files.
HELD_BYTES, SPILLED_BYTES = 64 * 1024 * 1024, 1024 * 1024 * 1024


class FinishedExecutions:
    """Finished runs by execution id. The oldest are forgotten first, and their spill files are deleted."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._runs: OrderedDict[str, Turn] = OrderedDict()
        self._held_bytes = 0
        self._spilled_bytes = 0

    def add(self, run: Turn) -> None:
        """Remember a finished run, and forget the oldest ones above the bounds."""
        self._runs[run.execution_id] = run
        self._held_bytes += run.held_bytes
        self._spilled_bytes += run.spilled_bytes
        while len(self._runs) > 1 and self._is_full():
            _, oldest = self._runs.popitem(last=False)
            self._drop(oldest)

    def ids(self) -> tuple[str, ...]:
        """Return the ids of the remembered executions, the oldest first."""
        return tuple(self._runs)

    def find(self, execution_id: str, running: Iterable[Turn]) -> Turn:
        """Return a remembered or running run.

        Raises:
            UnknownExecution: there is none of that id.
        """
        for run in running:
            if run.execution_id == execution_id:
                return run
        if isinstance(execution_id, str) and execution_id in self._runs:
            return self._runs[execution_id]
        message = f"No execution {execution_id!r} is remembered here{nearest(str(execution_id), self._runs)}."
        raise UnknownExecution(message)

    def clear(self) -> None:
        """Forget all of them."""
        while self._runs:
            self._drop(self._runs.popitem()[1])

    def _is_full(self) -> bool:
        return len(self._runs) > self._limit or self._held_bytes > HELD_BYTES or self._spilled_bytes > SPILLED_BYTES

    def _drop(self, run: Turn) -> None:
        self._held_bytes -= run.held_bytes
        self._spilled_bytes -= run.spilled_bytes
        run.forget()
