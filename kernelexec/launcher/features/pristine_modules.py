"""Modules of the standard library as the kernel found them, for the launcher's code that runs beside user code in one process.

Changes that a test's code makes to modules (a clock that stands still, a ``len`` of its own) count for that code and its cases
only, not for the code that checks them.
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

#: Original names of modules that the launcher uses and user code may change.
_SHARED = [(vars(module), vars(module).copy()) for module in (builtins, io, json, os, select, signal, time)]

ModuleNames = list[dict[str, Any]]


def restore_originals() -> ModuleNames:
    """Restore the original names for the launcher's code; return the user's."""
    user_names = []
    for names, ours in _SHARED:
        user_names.append(names.copy())
        names.update(ours)
    return user_names


def reinstate_changes(user_names: ModuleNames) -> None:
    """Put the user's names back, which ``restore_originals`` returned."""
    for (names, _), wanted in list(zip(_SHARED, user_names, strict=True)):  # a list first: these are names too
        names.update(wanted)
        for name in [name for name in names if name not in wanted]:
            del names[name]


class PristineModules:
    """Calls of user code with the user's names; a child that user code forks ends there."""

    def __init__(self, user_names: ModuleNames) -> None:
        self.user_names, self._pid = user_names, getpid()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of user code and return its value."""
        reinstate_changes(self.user_names)
        try:
            value = function(*arguments)
        except BaseException as exc:
            self.user_names = restore_originals()
            self.exit_if_forked(exc)
            raise
        self.user_names = restore_originals()
        self.exit_if_forked()
        return value

    def adopt_process(self) -> None:
        """Adopt this process, which the launcher forked."""
        self._pid = getpid()

    def exit_if_forked(self, exc: BaseException | None = None) -> None:
        """Exit if this process is a child that user code forked."""
        if getpid() != self._pid:
            code = exc.code if isinstance(exc, SystemExit) else exc and 1
            _exit(code & 0xFF if isinstance(code, int) else int(code is not None))
