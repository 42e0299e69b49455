"""The displays of one kernel across its cells: an update reaches every display of its ``display_id``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from weakref import WeakSet

from kernelexec.outputs.bundles import Bundle, WholeBundles
from kernelexec.results import DisplayData, ExecuteResult

Display = DisplayData | ExecuteResult
#: The limit of known ids; the oldest are removed first.
IDS_MAX = 1000
#: The most displays of an id, all of which an update changes; further ones stay as they were shown first.
_SHOWN_MAX = 100
#: What updates of later cells may add to the displays of a result.
_LATER_BYTES = 640 * 1024


class Budget:
    """A limit in bytes for the total cost of a cell's displays."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.spent = 0

    @property
    def remaining(self) -> int:
        """The bytes that are left."""
        return max(0, self.limit - self.spent)

    def spend(self, cost: int, *, always: bool = False) -> bool:
        """Spend a cost, or return a negative one; return False and spend nothing if it exceeds the limit."""
        if cost > 0 and not always and self.spent + cost > self.limit:
            return False
        self.spent += cost
        return True


@dataclass(frozen=True, slots=True)
class DisplayBudgets:
    """The budgets of a cell's displays: in its result, and in records, where displays that a result cuts are whole."""

    result: Budget
    record: Budget

    def finish(self) -> None:
        """Leave little room for updates after the end of the cell: it is recorded, and its result's memory is counted."""
        self.result.limit = min(self.result.limit, self.result.spent + _LATER_BYTES)
        self.record.limit = 0


class DisplayEntry:
    """One display among its cell's outputs; its content may still change.

    ``output`` is that of the result, None if it has no room there; ``recorded`` is that of records, None if it is the same.
    """

    __slots__ = ("__weakref__", "_budgets", "_cost", "_record_cost", "output", "recorded")

    def __init__(self, output: Display, budgets: DisplayBudgets, bundle: Bundle, whole: WholeBundles) -> None:
        self.output: Display | None = output
        self.recorded: Display | None = None
        self._budgets = budgets
        self._cost = self._record_cost = 0
        if not self.update(bundle, whole):
            self.output = None

    @property
    def is_kept(self) -> bool:
        """Whether the display has room in the result or in records."""
        return self.output is not None or self.recorded is not None

    def update(self, bundle: Bundle, whole: WholeBundles) -> bool:
        """Replace the content if the budget of the display's own cell allows it; return whether it did, in the result."""
        before = self.output or self.recorded
        fits = self.output is not None and self._budgets.result.spend(bundle.cost - self._cost)
        if fits and self.output is not None:
            self._cost = bundle.cost
            self.output = replace(self.output, data=bundle.data, metadata=bundle.metadata)
        self._budgets.record.spend(-self._record_cost)
        self._record_cost, room = 0, self._budgets.record.remaining
        if fits and (not bundle.dropped_bytes or not room):
            self.recorded = None
        elif room and before is not None:
            recorded = whole.within(room)
            self._record_cost = recorded.cost
            self._budgets.record.spend(recorded.cost, always=True)
            self.recorded = replace(before, data=recorded.data, metadata=recorded.metadata)
        return fits


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
        if entry is not None and len(entries) < _SHOWN_MAX:
            entries.add(entry)
        while len(self._entries) > IDS_MAX:
            del self._entries[next(iter(self._entries))]

    def update(self, display_id: str, bundle: Bundle, whole: WholeBundles) -> int:
        """Replace the content of every display of the id; return how many had no room and stay unchanged."""
        return sum(not shown.update(bundle, whole) for shown in self._entries.get(display_id, ()))
