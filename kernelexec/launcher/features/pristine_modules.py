"""Modules of the standard library as the kernel found them, for code of ours that runs beside user code in one process.

Changes that a test's code makes to modules (a clock that stands still, a ``len`` of its own) count for that code and its cases
only, not for the code that judges them.
"""

from __future__ import annotations

import builtins
import io
import json
import os
import select
import signal
import time
from collections.abc import Callable
from os import _exit, getpid
from typing import Any

#: Original names of modules that our code uses and user code may change.
_SHARED = [(vars(module), vars(module).copy()) for module in (builtins, io, json, os, select, signal, time)]

ModuleNames = list[dict[str, Any]]


def restore_originals() -> ModuleNames:
    """Restore the original names for our own code; return the user's."""
    theirs = []
    for names, ours in _SHARED:
        theirs.append(names.copy())
        names.update(ours)
    return theirs


def reinstate_changes(theirs: ModuleNames) -> None:
    """Put the user's names back, which ``restore_originals`` returned."""
    for (names, _), wanted in list(zip(_SHARED, theirs, strict=True)):  # a list first: these are names too
        names.update(wanted)
        for name in [name for name in names if name not in wanted]:
            del names[name]


class PristineModules:
    """Calls of user code with the user's names; a child that user code forks ends there."""

    def __init__(self, theirs: ModuleNames) -> None:
        self.theirs, self._pid = theirs, getpid()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of the user's and return its value."""
        reinstate_changes(self.theirs)
        try:
            value = function(*arguments)
        except BaseException as exc:
            self.theirs = restore_originals()
            self.exit_if_forked(exc)
            raise
        self.theirs = restore_originals()
        self.exit_if_forked()
        return value

    def adopt_process(self) -> None:
        """Adopt this process, which our code has forked."""
        self._pid = getpid()

    def exit_if_forked(self, exc: BaseException | None = None) -> None:
        """Exit if this process is a child that user code forked."""
        if getpid() != self._pid:
            code = exc.code if isinstance(exc, SystemExit) else exc and 1
            _exit(code & 0xFF if isinstance(code, int) else int(code is not None))
