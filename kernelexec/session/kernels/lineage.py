"""Which checkpoints are before the present state: after a way back those of the state that was left are not."""

from __future__ import annotations

import math

#: Numbers of checkpoints: from the first to the last one, both included.
_Range = tuple[int, float]


class Lineage:
    """The checkpoints from which the present state has come, by their numbers, which grow with time."""

    def __init__(self) -> None:
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
