"""The names of the user's variables, as the launcher told them beside its replies: what a loss can be told by."""

from __future__ import annotations

from typing import Any

_OF_ONE_CELL, _IN_ALL = 1000, 10_000
_CHARS = 100


class Names:
    """Follows them through their changes. ``count`` is how many there are, of which ``known`` are known by name."""

    def __init__(self) -> None:
        self.known: set[str] = set()
        self.count = 0

    def learn_all(self, said: dict[str, Any]) -> None:
        """Take what the launcher said of all names, within bounds."""
        self.learn(said, limit=_IN_ALL)

    def learn(self, said: dict[str, Any], *, limit: int = _OF_ONE_CELL) -> None:
        """Take what the launcher said of one cell, within bounds; where it said nothing of names nothing changes."""
        if "names_count" not in said:
            return
        for key, change in (("names_added", self.known.update), ("names_removed", self.known.difference_update)):
            names = said.get(key)
            found = (names if isinstance(names, list) else [])[:limit]
            change(name for name in found if isinstance(name, str) and len(name) <= _CHARS)
        while len(self.known) > _IN_ALL:
            self.known.pop()
        count = said.get("names_count")
        self.count = max(count if isinstance(count, int) else 0, len(self.known))
