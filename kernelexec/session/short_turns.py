"""Threads that compute for long next to an event loop."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

#: How long a thread keeps the interpreter that another waits for, in seconds; Python's default is ten times as long.
_TURN = 0.0005
_lock = threading.Lock()
_running = 0
_before: tuple[float, bool] = (0.0, False)


@contextmanager
def short_turns() -> Iterator[None]:
    """Hold up other threads little while this one makes many objects.

    An event loop gives the interpreter up at each system call, some thirty times for a cell, and waits for a whole turn of the
    other thread each time. A collection of garbage looks at all new objects in one turn, and finds none.
    """
    global _running, _before  # noqa: PLW0603 - both are the interpreter's own
    with _lock:
        if not _running:
            _before = sys.getswitchinterval(), gc.isenabled()
            sys.setswitchinterval(min(_TURN, _before[0]))
            gc.disable()
        _running += 1
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            if not _running:
                sys.setswitchinterval(_before[0])
                if _before[1]:
                    gc.enable()
