"""Whether the main thread has run Python code since a moment, or is still in one call into compiled code."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Any

#: More than any system's ``sem_t`` has.
_SEMAPHORE_BYTES = 128


class MainThreadProbe:
    """A call of C code that Python's main thread makes as soon as it is back in the interpreter, after handlers of signals.

    It posts a semaphore, so no Python code runs that an interrupt could hit. Where there is no semaphore (macOS), the thread
    counts as back at once.
    """

    def __init__(self) -> None:
        self._semaphore = ctypes.create_string_buffer(_SEMAPHORE_BYTES)
        self._library: Any = None
        self._before: int | None = None
        with suppress(OSError, AttributeError):
            library = ctypes.CDLL(None)
            if library.sem_init(self._semaphore, 0, 0) == 0:
                self._library, self._post = library, ctypes.cast(library.sem_post, ctypes.c_void_p)

    def begin(self) -> None:
        """Look from now on, unless that has begun already."""
        if self._library is not None and self._before is None:
            before = self._count()
            if ctypes.pythonapi.Py_AddPendingCall(self._post, ctypes.byref(self._semaphore)) == 0:
                self._before = before

    def end(self) -> None:
        """Look no more."""
        self._before = None

    @property
    def is_back(self) -> bool:
        """Whether the main thread has run Python code since the beginning."""
        return self._before is None or self._count() != self._before

    def _count(self) -> int:
        count = ctypes.c_int()
        self._library.sem_getvalue(self._semaphore, ctypes.byref(count))
        return count.value
