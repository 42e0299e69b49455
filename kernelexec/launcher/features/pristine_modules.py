"""The border between our code and the user's where both run in one process: each has names of its own.

What a test's code puts into modules (a clock that stands still, a ``len`` of its own) is there for it and its cases, and is not
there for what judges them.
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

#: Names as they were when the kernel began, of modules that we use and that the user's code may have changed.
_SHARED = [(vars(module), vars(module).copy()) for module in (builtins, io, json, os, select, signal, time)]

Names = list[dict[str, Any]]


def take_names() -> Names:
    """Have those names back for our own code; what was there instead."""
    theirs = []
    for names, ours in _SHARED:
        theirs.append(names.copy())
        names.update(ours)
    return theirs


def give_names(theirs: Names) -> None:
    """Have the user's instead: what ``take_names`` gave."""
    for (names, _), wanted in list(zip(_SHARED, theirs, strict=True)):  # a list first: these are names too
        names.update(wanted)
        for name in [name for name in names if name not in wanted]:
            del names[name]


class Border:
    """Between our code and the user's in this process: each has its own names, and a child forked over there ends there."""

    def __init__(self, theirs: Names) -> None:
        self.theirs, self._pid = theirs, getpid()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function of the user's gives."""
        give_names(self.theirs)
        try:
            value = function(*arguments)
        except BaseException as exc:
            self.theirs = take_names()
            self.keep_out(exc)
            raise
        self.theirs = take_names()
        self.keep_out()
        return value

    def settle(self) -> None:
        """Mean this process, which we have forked, from now on."""
        self._pid = getpid()

    def keep_out(self, exc: BaseException | None = None) -> None:
        """End here unless this is the process that is meant: a child that the user's code forked."""
        if getpid() != self._pid:
            code = exc.code if isinstance(exc, SystemExit) else exc and 1
            _exit(code & 0xFF if isinstance(code, int) else int(code is not None))
