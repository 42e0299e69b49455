"""Names of the user's variables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

_CHARS = 100
_NEWEST = 32
_INPUT = re.compile(r"_i\d+")


class UserNames:
    """Finds the user's names after each cell. IPython adds two numbered names a cell, thousands in the long run.

    A dictionary keeps the order in which its keys came. So, beside the names that are known and still there, only those are
    looked at that came after IPython's name for the newest input, if there are as many keys up to that one as there were. Only
    who adds a name and then takes that very key out and puts it back can hide it. Where there is a key that is no plain text,
    which may be asked whether it is a name, all are looked at each time. Any thread may ask.
    """

    def __init__(self) -> None:
        self._known: tuple[Any, int, frozenset[str]] = (None, 0, frozenset())
        """The name of the newest input, the number of keys up to it, and all names of the user's."""

    def __call__(self, namespace: dict[Any, Any], hidden: Mapping[str, Any]) -> set[str]:
        """Return the user's names of at most 100 characters that begin without an underscore."""
        newest, count, names = self._known
        came = list(islice(reversed(namespace), _NEWEST))
        since = next((index for index, key in enumerate(came) if key is newest), None)
        keys = came[:since][::-1]
        as_before = newest is not None and since is not None and len(namespace) == count + since
        if not (as_before and _plain(keys) and names <= namespace.keys()):
            keys, newest, count, names = list(namespace), None, 0, frozenset()
        inputs = [index for index, key in enumerate(keys) if type(key) is str and _INPUT.fullmatch(key) and key in hidden]
        if inputs and _plain(keys):
            newest, count = keys[inputs[-1]], count + inputs[-1] + 1
        names |= _fit(keys)
        self._known = newest, count, names
        return set(names.difference(hidden))  # which looks at the names only


class NameChanges:
    """Names of the user's variables, and their changes since the last report to the owner."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._find = UserNames()
        self._reported = self.current()

    def current(self) -> set[str]:
        """Return the names that there are now."""
        return self._find(self._shell.user_ns, self._shell.user_ns_hidden)

    def report(self) -> set[str]:
        """Return the names that there are now; later changes are counted from here."""
        self._reported = self.current()
        return self._reported

    def changes(self, *, report: bool) -> tuple[list[str], list[str], int]:
        """Return added names, removed names and the count of all; ``report`` counts later changes from here."""
        before, names = self._reported, self.current()
        if report:
            self._reported = names
        return sorted(names - before), sorted(before - names), len(names)


def _plain(keys: Iterable[Any]) -> bool:
    return all(type(key) is str for key in keys)


def _fit(keys: Iterable[Any]) -> frozenset[str]:
    """Return the keys that are names of a user's variables; no method of another key is called."""
    return frozenset(key for key in keys if type(key) is str and key[:1] != "_" and len(key) <= _CHARS)
