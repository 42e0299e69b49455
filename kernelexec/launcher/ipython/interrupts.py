"""Handlers of SIGINT, which raises only while user code runs, and a probe for a main thread that hangs in compiled code."""

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
#: The C functions below ``signal.signal``, which converts numbers to enums and so takes 3 µs of every cell.
_set_handler: Any = _signal.signal
_get_handler: Any = _signal.getsignal
_SIGINT, _IGNORE = int(signal.SIGINT), int(signal.SIG_IGN)
#: The time limit of a completion or inspection, in seconds: the next cell waits for its end.
_LOOK_SECONDS = 3.0
#: More than the size of ``sem_t`` on any system.
_SEMAPHORE_BYTES = 128


def allow_interrupts() -> _InterruptHandler:
    """Let SIGINT raise KeyboardInterrupt within the block and in child processes, and ignore SIGINT afterwards.

    A signal can also interrupt the end of the block: call ``ignore_interrupts`` after an exception.
    """
    # A handler, unlike SIG_IGN, is reset by ``exec``: so programs of the cell start with the default action.
    return _InterruptHandler(signal.default_int_handler, _IGNORE)


def cancel_on_interrupt(cell: asyncio.Task[Any], entry: CodeType, spared: Collection[asyncio.Task[Any]]) -> _InterruptHandler:
    """Let SIGINT end an async cell while the caller waits for the cell within the block; spare the ``spared`` tasks.

    The handler raises only in a task's own code: an exception in asyncio's code would lose the task or the loop.
    KeyboardInterrupt must not leave the cell's task: ``entry``, the outermost code of the task, catches it and is itself never
    interrupted.
    """
    loop, waiter = asyncio.get_running_loop(), asyncio.current_task()

    def on_signal(_signum: int, frame: FrameType | None) -> None:
        current = asyncio.current_task(loop)
        # ``cr_running`` is false in asyncio's own code around a step of the task.
        runs = current is not None and getattr(current.get_coro(), "cr_running", False)
        if runs and (current is waiter or (current is cell and frame is not None and frame.f_code is not entry)):
            raise KeyboardInterrupt
        # ``threadsafe``, for its write to the wake-up pipe: the signal does not end a ``select`` (PEP 475).
        loop.call_soon_threadsafe(cell.cancel)
        if runs and current is not cell and current not in spared:
            raise asyncio.CancelledError

    return _InterruptHandler(on_signal, _get_handler(_SIGINT))


def ignore_interrupts() -> None:
    """Ignore SIGINT. A pending signal raises here, before the handler changes."""
    # Python runs pending handlers inside the call itself. The second call cannot be interrupted by the same signal.
    try:
        _set_handler(_SIGINT, _IGNORE)
    except BaseException:
        _set_handler(_SIGINT, _IGNORE)
        raise


class _InterruptHandler:
    """A handler of SIGINT within a block. No generator: garbage collection would resume an interrupted generator."""

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
    """Call ``look``, which runs code of user objects; return ``fallback`` after an exception or 3 seconds."""
    timer = threading.Timer(_LOOK_SECONDS, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
    timer.daemon = True
    try:
        with allow_interrupts():
            timer.start()
            try:
                return look()
            finally:
                timer.cancel()
                timer.join()  # a late signal would interrupt the next cell
    except BaseException:  # user classes may raise anything
        ignore_interrupts()
        return fallback


class MainThreadProbe:
    """A probe for the return of the main thread from compiled code to the interpreter, after handlers of signals.

    The interpreter calls C code that posts a semaphore, so an interrupt finds no Python code to hit. On systems without
    unnamed semaphores (macOS) the thread counts as back at once.
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
        """Begin, unless the probe is active already."""
        if self._library is not None and self._before is None:
            # The count only grows, so a difference shows the call. Calls of earlier cells have left any number.
            before = self._count()
            # The queue of pending calls is bounded. If it is full, the thread counts as back.
            if ctypes.pythonapi.Py_AddPendingCall(self._post, ctypes.byref(self._semaphore)) == 0:
                self._before = before

    def end(self) -> None:
        """End the probe."""
        self._before = None

    @property
    def is_back(self) -> bool:
        """Whether the main thread has run Python code since the beginning."""
        return self._before is None or self._count() != self._before

    def _count(self) -> int:
        count = ctypes.c_int()
        self._library.sem_getvalue(self._semaphore, ctypes.byref(count))
        return count.value
