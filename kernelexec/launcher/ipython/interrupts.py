"""Handling of SIGINT, which raises only while user code runs, and whether the main thread is back from compiled code."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import asyncio
import ctypes
import signal
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from types import CodeType, FrameType
from typing import Any

_Handler = Callable[[int, FrameType | None], Any] | int | None
#: The functions below ``signal.signal``, which spends 3 µs of every cell on the conversion of numbers to enums.
_set_handler: Any = _signal.signal
_get_handler: Any = _signal.getsignal
_SIGINT, _IGNORE = int(signal.SIGINT), int(signal.SIG_IGN)
#: Seconds for a completion or inspection, for which the next cell waits.
_LOOK_SECONDS = 3.0
#: More than any system's ``sem_t`` has.
_SEMAPHORE_BYTES = 128


def allow_interrupts() -> _InterruptHandler:
    """Have SIGINT raise KeyboardInterrupt within the block, also in child processes, and ignore it afterwards.

    After an exception the end of the block itself may have been interrupted: see ``ignore_interrupts``.
    """
    return _InterruptHandler(signal.default_int_handler, _IGNORE)


def cancel_on_interrupt(cell: asyncio.Task[Any], entry: CodeType, spared: Collection[asyncio.Task[Any]]) -> _InterruptHandler:
    """Have SIGINT end an async cell, for which the caller waits within the block; ``spared`` tasks are not disturbed.

    It raises only where a task's own code runs: asyncio's, which runs between, would lose the task or the loop. Nothing may
    raise KeyboardInterrupt out of the cell's task: ``entry``, its outermost code, prevents that, and is not interrupted itself.
    """
    loop, waiter = asyncio.get_running_loop(), asyncio.current_task()

    def on_signal(_signum: int, frame: FrameType | None) -> None:
        current = asyncio.current_task(loop)
        runs = current is not None and getattr(current.get_coro(), "cr_running", False)
        if runs and (current is waiter or (current is cell and frame is not None and frame.f_code is not entry)):
            raise KeyboardInterrupt
        loop.call_soon_threadsafe(cell.cancel)
        if runs and current is not cell and current not in spared:
            raise asyncio.CancelledError

    return _InterruptHandler(on_signal, _get_handler(_SIGINT))


def ignore_interrupts() -> None:
    """Ignore SIGINT. A signal that has just arrived raises here, before the handler changes."""
    try:
        _set_handler(_SIGINT, _IGNORE)
    except BaseException:
        _set_handler(_SIGINT, _IGNORE)
        raise


class _InterruptHandler:
    """A handler of SIGINT within a block; no generator, since an interrupted generator would go on when it is collected."""

    def __init__(self, handler: _Handler, after: _Handler) -> None:
        self._handler, self._after = handler, after

    def __enter__(self) -> None:
        _set_handler(_SIGINT, self._handler)

    def __exit__(self, *_: object) -> None:
        try:
            _set_handler(_SIGINT, self._after)
        except BaseException:  # as above
            _set_handler(_SIGINT, self._after)
            raise


def call_with_time_limit(look: Callable[[], Any], fallback: dict[str, Any]) -> Any:
    """Call ``look``, which reads user objects; return ``fallback`` if it fails or exceeds its time limit."""
    timer = threading.Timer(_LOOK_SECONDS, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
    timer.daemon = True
    try:
        with allow_interrupts():
            timer.start()
            try:
                return look()
            finally:
                timer.cancel()
    except BaseException:  # user classes may raise anything
        ignore_interrupts()
        return fallback


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
