"""Which names are the user's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

_CHARS = 100
_NEWEST = 32
_INPUT = re.compile(r"_i\d+")


class Names:
    """Finds them after each cell. IPython adds two numbered names a cell: in the long run there are thousands.

    A dictionary keeps the order in which its keys came, so only those are looked at that came after IPython's name for the
    newest input, as long as there are as many in all as were then and came since: so none has gone. That a cell takes this very
    name out and puts it back, with another in its place, is not seen. No key is asked anything. Any thread may ask.
    """

    def __init__(self) -> None:
        self._known: tuple[Any, int, frozenset[str]] = (None, 0, frozenset())
        """The name of the newest input, how many keys there are up to it, and which of those are the user's."""

    def __call__(self, namespace: dict[Any, Any], hidden: Mapping[str, Any]) -> set[str]:
        """The names of variables that a user made: no longer than 100 characters, and without an underscore ahead."""
        newest, count, names = self._known
        came = list(islice(reversed(namespace), _NEWEST))
        since = next((place for place, key in enumerate(came) if key is newest), None)
        if newest is None or since is None or len(namespace) != count + since:
            keys, count, names = list(namespace), 0, frozenset()
        else:
            keys = came[:since][::-1]
        inputs = [place for place, key in enumerate(keys) if type(key) is str and _INPUT.fullmatch(key)]
        upto = inputs[-1] + 1 if inputs else 0
        if upto:
            names |= _fit(keys[:upto])
            self._known = keys[upto - 1], count + upto, names
        return set((names | _fit(keys[upto:])).difference(hidden))  # which looks at the names only


def _fit(keys: Iterable[Any]) -> frozenset[str]:
    """Those that are names of a user's; what else a dictionary has as its key is not asked anything."""
    return frozenset(key for key in keys if type(key) is str and key[:1] != "_" and len(key) <= _CHARS)
