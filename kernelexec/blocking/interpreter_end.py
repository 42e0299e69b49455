"""Calls at the end of the main thread, while threads can still be started: ``atexit`` comes after that."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from contextlib import suppress

#: What runs first at the interpreter's end, as ``concurrent.futures`` uses it; else what runs later.
_register: Callable[[Callable[[], None]], object] = getattr(threading, "_register_atexit", atexit.register)
_calls: dict[object, Callable[[], None]] = {}


def call_at_end(key: object, call: Callable[[], None]) -> None:
    """Make a call at the end, unless ``cancel`` is called with the same key before."""
    if not _calls:
        import concurrent.futures.thread  # noqa: F401, PLC0415 - what was registered first is called last

        _register(_call_all)
    _calls[key] = call


def cancel(key: object) -> None:
    """Do not make a call."""
    _calls.pop(key, None)


def _call_all() -> None:
    for key in list(_calls):
        with suppress(Exception):  # the interpreter ends in any case
            _calls.pop(key)()
