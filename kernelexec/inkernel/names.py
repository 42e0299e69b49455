"""Which names are the user's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_CHARS = 100


class Names:
    """Finds them after each cell. IPython adds two numbered names a cell: those that were seen are passed over, by C code."""

    def __init__(self) -> None:
        self._passed: set[Any] = set()

    def __call__(self, namespace: dict[Any, Any], hidden: Mapping[str, Any]) -> set[str]:
        """The names of variables that a user made: no longer than 100 characters, and without an underscore ahead."""
        keys = list(namespace)
        if set(map(type, keys)) != {str}:  # what else there is could have an __eq__ of the user's
            keys = [name for name in keys if type(name) is str]
        found = set(keys) - self._passed
        names = {name for name in found if name[:1] != "_"}
        self._passed |= found - names
        return {name for name in names if len(name) <= _CHARS} - hidden.keys()
