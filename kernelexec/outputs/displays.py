"""The displays of one kernel across its cells: an update reaches every display of its ``display_id``."""

from __future__ import annotations

from dataclasses import replace
from weakref import WeakSet

from kernelexec.outputs.bundles import Bundle
from kernelexec.results import DisplayData, ExecuteResult

#: The limit of known ids; the oldest are removed first.
IDS_MAX = 1000


class Budget:
    """A limit in bytes for the total cost of a cell's displays."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.spent = 0

    def spend(self, cost: int, *, always: bool = False) -> bool:
        """Spend a cost, or return a negative one; return False and spend nothing if it exceeds the limit."""
        if cost > 0 and not always and self.spent + cost > self.limit:
            return False
        self.spent += cost
        return True


class DisplayEntry:
    """One display among its cell's outputs; its content may still change."""

    __slots__ = ("__weakref__", "_budget", "_cost", "output")

    def __init__(self, output: DisplayData | ExecuteResult, budget: Budget, cost: int) -> None:
        self.output = output
        self._budget = budget
        self._cost = cost

    def update(self, bundle: Bundle) -> bool:
        """Replace the content if the budget of the display's own cell allows it; return whether it did."""
        if not self._budget.spend(bundle.cost - self._cost):
            return False
        self._cost = bundle.cost
        self.output = replace(self.output, data=bundle.data, metadata=bundle.metadata)
        return True


class Displays:
    """The displays of each id, by weak references: their cells' outputs own them."""

    def __init__(self) -> None:
        self._entries: dict[str, WeakSet[DisplayEntry]] = {}

    def __contains__(self, display_id: str) -> bool:
        return display_id in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, display_id: str, entry: DisplayEntry | None) -> None:
        """Register an id, and a display of it if there is one."""
        entries = self._entries.setdefault(display_id, WeakSet())
        if entry is not None:
            entries.add(entry)
        while len(self._entries) > IDS_MAX:
            del self._entries[next(iter(self._entries))]

    def update(self, display_id: str, bundle: Bundle) -> int:
        """Replace the content of every display of the id; return how many had no room and stay unchanged."""
        return sum(not shown.update(bundle) for shown in self._entries.get(display_id, ()))
