"""The finished executions that a session remembers, bounded in number and in bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from kernelexec.errors import UnknownExecution, nearest
from kernelexec.session.cells.cell_run import Turn

#: What all remembered executions of a session may hold together, in bytes of output: in memory, and in spill files.
HELD_BYTES, SPILLED_BYTES = 64 * 1024 * 1024, 1024 * 1024 * 1024


class Memory:
    """Finished turns by execution id, the oldest of which are forgotten first, their spill files with them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._turns: OrderedDict[str, Turn] = OrderedDict()
        self._held_bytes = 0
        self._spilled_bytes = 0

    def keep(self, turn: Turn) -> None:
        """Remember a finished turn, and forget what is over the bounds."""
        self._turns[turn.execution_id] = turn
        self._held_bytes += turn.held_bytes
        self._spilled_bytes += turn.spilled_bytes
        while len(self._turns) > 1 and self._is_full():
            _, oldest = self._turns.popitem(last=False)
            self._drop(oldest)

    def ids(self) -> tuple[str, ...]:
        """The ids of the remembered executions, the oldest first."""
        return tuple(self._turns)

    def find(self, execution_id: str, running: Iterable[Turn]) -> Turn:
        """A remembered or running turn.

        Raises:
            UnknownExecution: neither.
        """
        for turn in running:
            if turn.execution_id == execution_id:
                return turn
        if isinstance(execution_id, str) and execution_id in self._turns:
            return self._turns[execution_id]
        message = f"No execution {execution_id!r} is remembered here{nearest(str(execution_id), self._turns)}."
        raise UnknownExecution(message)

    def clear(self) -> None:
        """Forget everything."""
        while self._turns:
            self._drop(self._turns.popitem()[1])

    def _is_full(self) -> bool:
        return len(self._turns) > self._limit or self._held_bytes > HELD_BYTES or self._spilled_bytes > SPILLED_BYTES

    def _drop(self, turn: Turn) -> None:
        self._held_bytes -= turn.held_bytes
        self._spilled_bytes -= turn.spilled_bytes
        turn.forget()
