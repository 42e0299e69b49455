"""The names of the user's variables, as the launcher reports them beside its replies; a lost state is reported by them."""

from __future__ import annotations

from typing import Any

_OF_ONE_CELL, _IN_ALL = 1000, 10_000
_CHARS = 100


class VariableNames:
    """A bounded set of names that follows the launcher's reports; ``count`` is the number of all names, ``known`` or not."""

    def __init__(self) -> None:
        self.known: set[str] = set()
        self.count = 0

    def load(self, report: dict[str, Any]) -> None:
        """Take the launcher's report of all names, within bounds."""
        self.update(report, limit=_IN_ALL)

    def update(self, report: dict[str, Any], *, limit: int = _OF_ONE_CELL) -> None:
        """Take the launcher's report of one cell's changes, within bounds; a report without names changes nothing."""
        if "names_count" not in report:
            return
        for key, change in (("names_added", self.known.update), ("names_removed", self.known.difference_update)):
            names = report.get(key)
            change(
                name
                for name in (names if isinstance(names, list) else [])[:limit]
                if isinstance(name, str) and len(name) <= _CHARS
            )
        while len(self.known) > _IN_ALL:
            self.known.pop()
        count = report.get("names_count")
        self.count = max(count if isinstance(count, int) else 0, len(self.known))
