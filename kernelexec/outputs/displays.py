"""The displays of one kernel, across all of its cells: an update reaches every one that shows its ``display_id``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from weakref import WeakSet

from kernelexec.results import DisplayData, ExecuteResult

#: So many ids are known at once; the oldest are forgotten first.
IDS_MAX = 1000


class Budget:
    """What the displays of one cell may cost together, in bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.spent = 0

    def spend(self, cost: int, *, always: bool = False) -> bool:
        """Take a cost (less than nothing: give back); False, and nothing taken, where there is no room for it."""
        if cost > 0 and not always and self.spent + cost > self.limit:
            return False
        self.spent += cost
        return True


class Shown:
    """One display where it stands in its cell's outputs; its content may still change."""

    __slots__ = ("__weakref__", "_budget", "_cost", "output")

    def __init__(self, output: DisplayData | ExecuteResult, budget: Budget, cost: int) -> None:
        self.output = output
        self._budget = budget
        self._cost = cost

    def update(self, data: dict[str, Any], metadata: dict[str, Any], cost: int) -> bool:
        """Show something else, if the budget of the display's own cell has room for it."""
        if not self._budget.spend(cost - self._cost):
            return False
        self._cost = cost
        self.output = replace(self.output, data=data, metadata=metadata)
        return True


class Displays:
    """Which displays show which id. They live in their cells' outputs; here nothing keeps them alive."""

    def __init__(self) -> None:
        self._shown: dict[str, WeakSet[Shown]] = {}

    def __contains__(self, display_id: str) -> bool:
        return display_id in self._shown

    def __len__(self) -> int:
        return len(self._shown)

    def add(self, display_id: str, shown: Shown | None) -> None:
        """Know an id, and one more display of it."""
        known = self._shown.setdefault(display_id, WeakSet())
        if shown is not None:
            known.add(shown)
        while len(self._shown) > IDS_MAX:
            del self._shown[next(iter(self._shown))]

    def update(self, display_id: str, data: dict[str, Any], metadata: dict[str, Any], cost: int) -> int:
        """Give every display of the id new content; how many had no room for it and stay as they were."""
        return sum(not shown.update(data, metadata, cost) for shown in self._shown.get(display_id, ()))
