"""The way of a session back to a checkpoint: where it leads, which cells run again there, and which checkpoints count then."""

from __future__ import annotations

import math
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from kernelexec.errors import KernelexecError
from kernelexec.kernel import Kernel

#: Numbers of checkpoints: from the first to the last one, both included.
_Range = tuple[int, float]


@dataclass(slots=True)
class WayBack:
    """A requested way back to the checkpoint with a ``number``."""

    number: int
    until: float = 0
    """The number of the cell at which the cells since the checkpoint run again no more."""
    bring_files: Callable[[], Awaitable[KernelexecError | None]] | None = None
    """Changes files when the processes of the state before have ended; its error is raised once the copy of the kernel runs."""
    repeated: RepeatedCells | None = None
    """The cells that have run again on it."""


@dataclass(frozen=True, slots=True)
class RepeatedCells:
    """The cells since a checkpoint of which the first ones have run again, or may."""

    first: int
    """The number of the first cell since the checkpoint."""
    after: str
    """The execution id of the last one that has run again, or of the last one before the checkpoint."""
    count: int = 0
    obstacle: str = ""
    """Why the next one has not run again, as a clause; empty if there is no other one."""
    older_names: tuple[str, ...] = ()
    """The variables that may be older than they were, as far as the text of the other cells shows."""
    has_failed: bool = False
    """Whether the next one has run again and ended otherwise than before, so that its effects are there in part."""

    @property
    def undone(self) -> int:
        """The number of the first cell that has not run again."""
        return self.first + self.count


NO_REPEATED_CELLS = RepeatedCells(0, "")


class CellRepeater(Protocol):
    """Runs the cells since a checkpoint again, as far as that is safe."""

    def note_change(self) -> None:
        """Note that something else than a cell changes variables now."""

    def forget_state(self) -> None:
        """Note that a new kernel begins, without the variables of the one before."""

    async def can_begin(self, *, is_accused: bool) -> bool:
        """Return whether the first cell of a session can run again, in a new kernel."""

    async def repeat(self, kernel: Kernel, cell: int, after: str, until: float, *, is_accused: bool) -> RepeatedCells:
        """Run cells in a kernel that is a copy of a checkpoint before ``cell``, which the cell with the id ``after`` precedes.

        The first cell that is not repeated is the one with the number ``until``, or an earlier one that has an obstacle. If
        ``is_accused``, one of them may have ended the kernel, so that none runs again twice.
        """


class Lineage:
    """The checkpoints from which the present state has come, by their numbers, which grow with time.

    After a way back those of the state that was left are none of them.
    """

    def __init__(self) -> None:
        self.name = uuid.uuid4().hex
        """The name of all states that begin with one fresh kernel: numbers of checkpoints are unique in them."""
        self._lines: list[list[_Range]] = [[(0, math.inf)]]
        """Those of each state that the session went back from, and at last of the present one."""

    def has(self, number: int) -> bool:
        """Return whether a checkpoint is of the present state's past."""
        return _has(self._lines[-1], number)

    def go_to(self, number: int, newest: int) -> None:
        """Note that the state is that of a checkpoint; ``newest`` is the last one of the states before."""
        line = next((line for line in reversed(self._lines) if _has(line, number)), [(number, number)])
        past = [(first, min(last, number)) for first, last in line if first <= number]
        self._lines.append([*past, (newest + 1, math.inf)])


def _has(line: list[_Range], number: int) -> bool:
    return any(first <= number <= last for first, last in line)
