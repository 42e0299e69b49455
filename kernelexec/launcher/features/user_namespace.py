"""Names of the user's variables, and their changes, without running user code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

_CHARS = 100
_NEWEST = 32
_INPUT = re.compile(r"_i\d+")


class UserNames:
    """A finder of the user's names after each cell. IPython adds two numbered names a cell, thousands in the long run.

    A dictionary keeps its keys in the order of their insertion. So only keys after IPython's name of the newest input are
    checked, as long as the number of keys up to it has not changed. Only code that adds a name, and then removes and adds that
    very key of IPython's, can hide it. If any key is not a plain ``str``, all keys are checked each time, without a call of its
    methods. Any thread may call this.
    """

    def __init__(self) -> None:
        self._known: tuple[Any, int, frozenset[str]] = (None, 0, frozenset())
        """IPython's name of the newest input, the number of keys up to it, and all names of the user."""

    def __call__(self, namespace: dict[Any, Any], hidden: Mapping[str, Any]) -> set[str]:
        """Return the user's names that have at most 100 characters and no leading underscore."""
        newest, count, names = self._known
        newest_keys = list(islice(reversed(namespace), _NEWEST))
        since = next((index for index, key in enumerate(newest_keys) if key is newest), None)
        keys = newest_keys[:since][::-1]
        as_before = newest is not None and since is not None and len(namespace) == count + since
        if not (as_before and _are_plain(keys) and names <= namespace.keys()):
            keys, newest, count, names = list(namespace), None, 0, frozenset()
        inputs = [index for index, key in enumerate(keys) if type(key) is str and _INPUT.fullmatch(key) and key in hidden]
        if inputs and _are_plain(keys):
            newest, count = keys[inputs[-1]], count + inputs[-1] + 1
        names |= _select_names(keys)
        self._known = newest, count, names
        return set(names.difference(hidden))  # ``difference`` reads the user's names only


class NameChanges:
    """Names of the user's variables, and their changes since the last report to the owner."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._find = UserNames()
        self._reported = self.current()

    def current(self) -> set[str]:
        """Return the present names."""
        return self._find(self._shell.user_ns, self._shell.user_ns_hidden)

    def report(self) -> set[str]:
        """Return the present names; later changes are counted from here."""
        self._reported = self.current()
        return self._reported

    def changes(self, *, report: bool) -> tuple[list[str], list[str], int]:
        """Return added names, removed names and the count of all; ``report`` counts later changes from here."""
        before, names = self._reported, self.current()
        if report:
            self._reported = names
        return sorted(names - before), sorted(before - names), len(names)


def _are_plain(keys: Iterable[Any]) -> bool:
    return all(type(key) is str for key in keys)


def _select_names(keys: Iterable[Any]) -> frozenset[str]:
    """Return the keys that are names of a user's variables; no method of another key is called."""
    return frozenset(key for key in keys if type(key) is str and key[:1] != "_" and len(key) <= _CHARS)
