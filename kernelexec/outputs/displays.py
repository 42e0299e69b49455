"""The displays of one kernel across its cells: their mime bundles, cleaned and measured, and updates by ``display_id``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakSet

from kernelexec.results import DisplayData, ExecuteResult
from kernelexec.text import clean, clean_text, cut_middle, utf8_size

#: The limit of known ids; the oldest are removed first.
IDS_MAX = 1000
#: The cost of a display, and of each value of its JSON, in addition to its text, in bytes.
OVERHEAD_BYTES, _ITEM_BYTES = 256, 32


@dataclass(frozen=True, slots=True)
class Bundle:
    """A display's content. ``size`` is its text in bytes, ``cost`` its approximate memory."""

    data: dict[str, Any]
    metadata: dict[str, Any]
    size: int
    cost: int
    dropped_bytes: int


def read_bundle(content: Mapping[str, Any], text_bytes: int) -> Bundle:
    """Return the bundle of a message's content; a text representation keeps ``text_bytes`` of its head and tail."""
    data: dict[str, Any] = {}
    size = dropped = 0
    cost = OVERHEAD_BYTES
    bundle = content.get("data")
    for mime, value in (bundle if isinstance(bundle, dict) else {}).items():
        content_value, full_size = clean(value), None
        if isinstance(content_value, str) and str(mime).startswith("text/"):
            full_size = utf8_size(content_value)
            content_value = cut_middle(content_value, text_bytes) if full_size > text_bytes else content_value
        name = clean_text(str(mime))
        kept_size, kept_cost = _measure(content_value)
        size += kept_size if full_size is None else full_size
        dropped += 0 if full_size is None or full_size <= text_bytes else full_size - kept_size
        cost += kept_cost + utf8_size(name)
        data[name] = content_value
    metadata_value = content.get("metadata")
    metadata = clean(metadata_value) if isinstance(metadata_value, dict) else {}
    return Bundle(data, metadata, size, cost + _measure(metadata)[1], dropped)


def _measure(value: object) -> tuple[int, int]:
    """Return the bytes of text in a JSON value, and its approximate memory."""
    match value:
        case str():
            size = utf8_size(value)
            return size, size + _ITEM_BYTES
        case dict() | list():
            weights = [_measure(item) for item in (value if isinstance(value, list) else (*value, *value.values()))]
            return sum(size for size, _ in weights), _ITEM_BYTES + sum(cost for _, cost in weights)
        case _:
            return 8, _ITEM_BYTES


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
