"""Which names are the user's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import is_
from typing import Any

_CHARS = 100


class Names:
    """Finds them after each cell. IPython adds two numbered names a cell: in the long run there are thousands.

    A dictionary keeps the order in which its keys came. If those that were there are all in their places, only what
    came after them is looked at; the comparison is C code, and asks no key anything. Any thread may ask.
    """

    def __init__(self) -> None:
        self._known: tuple[list[Any], frozenset[str]] = ([], frozenset())
        """All keys, and those of the user's."""

    def __call__(self, namespace: dict[Any, Any], hidden: Mapping[str, Any]) -> set[str]:
        """The names of variables that a user made: no longer than 100 characters, and without an underscore ahead."""
        before, names = self._known
        keys = list(namespace)
        if len(keys) >= len(before) and all(map(is_, before, keys)):
            names |= _fit(keys[len(before) :])
        else:
            names = _fit(keys)
        self._known = keys, names
        return set(names - hidden.keys())


def _fit(keys: Iterable[Any]) -> frozenset[str]:
    """Those that are names of a user's; what else a dictionary has as its key is not asked anything."""
    return frozenset(key for key in keys if type(key) is str and key[:1] != "_" and len(key) <= _CHARS)
