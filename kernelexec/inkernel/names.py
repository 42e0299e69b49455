"""Which names are the user's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

_CHARS = 100
#: How many new names are looked for before all are looked at.
_NEWEST = 64


class Names:
    """Finds them after each cell. IPython adds two numbered names a cell: in the long run there are thousands.

    A dictionary keeps the order in which its keys came, so those that are new are at its end; and if none but those came, and
    the one that was last is there, none has gone. Any thread may ask.
    """

    def __init__(self) -> None:
        self._known: tuple[object, int, frozenset[str]] = (self, 0, frozenset())
        """The key that was last, how many there were, and those of the user's."""

    def __call__(self, namespace: dict[Any, Any], hidden: Mapping[str, Any]) -> set[str]:
        """The names of variables that a user made: no longer than 100 characters, and without an underscore ahead."""
        last, count, names = self._known
        newest = list(islice(reversed(namespace), _NEWEST))
        new = next((newest[:index] for index, key in enumerate(newest) if key is last), None)
        if new is not None and len(namespace) == count + len(new):
            names |= _fit(new)
        else:
            newest = list(reversed(namespace))
            new, count, names = newest, 0, _fit(newest)
        if newest:
            self._known = newest[0], count + len(new), names
        return set(names - hidden.keys())


def _fit(keys: Iterable[Any]) -> frozenset[str]:
    """Those that are names of a user's; what else a dictionary has as its key is not asked anything."""
    return frozenset(key for key in keys if type(key) is str and key[:1] != "_" and len(key) <= _CHARS)
