"""When SIGINT raises: where the user's code runs, and nowhere else."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import asyncio
import signal
import threading
from collections.abc import Callable, Collection
from types import CodeType, FrameType
from typing import Any

_Handler = Callable[[int, FrameType | None], Any] | int | None

#: What ``signal.signal`` calls, without making names of numbers before and after: that is 3 µs of every cell.
_set: Any = _signal.signal
_get: Any = _signal.getsignal
_SIGINT, _IGNORE = int(signal.SIGINT), int(signal.SIG_IGN)

#: How long completing or inspecting a name may take, in seconds: it runs where cells run, and the next cell waits for it.
_LOOK_SECONDS = 3.0


def interruptible() -> _Handling:
    """SIGINT raises KeyboardInterrupt in here, and is ignored again after; the same for children that are started here.

    Where an exception comes out of it, the end itself may have been interrupted: see ``ignore_interrupts``.
    """
    return _Handling(signal.default_int_handler, _IGNORE)


def cancelling(cell: asyncio.Task[Any], entry: CodeType, spared: Collection[asyncio.Task[Any]]) -> _Handling:
    """SIGINT ends, in here, an async cell wherever it is; whoever enters waits for it. ``spared`` tasks are not disturbed.

    It raises only where a task's own code runs: asyncio's, which runs between, would lose the task or the loop. Nothing may
    raise KeyboardInterrupt out of the cell's task: ``entry``, its outermost code, sees to that, and is not interrupted itself.
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

    return _Handling(on_signal, _get(_SIGINT))


def ignore_interrupts() -> None:
    """SIGINT does nothing any more. One that has just come is raised, by what is to change its handler, before it changes."""
    try:
        _set(_SIGINT, _IGNORE)
    except BaseException:
        _set(_SIGINT, _IGNORE)
        raise


class _Handling:
    """A handler of SIGINT for a while. It is no generator: one whose end is interrupted would go on when it is forgotten."""

    def __init__(self, handler: _Handler, after: _Handler) -> None:
        self._handler, self._after = handler, after

    def __enter__(self) -> None:
        _set(_SIGINT, self._handler)

    def __exit__(self, *_: object) -> None:
        try:
            _set(_SIGINT, self._after)
        except BaseException:  # as above
            _set(_SIGINT, self._after)
            raise


def looked(look: Callable[[], Any], nothing: dict[str, Any]) -> Any:
    """What a look at the user's objects gives; nothing where it fails, or does not end in time by itself."""
    end = threading.Timer(_LOOK_SECONDS, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
    end.daemon = True
    try:
        with interruptible():
            end.start()
            try:
                return look()
            finally:
                end.cancel()
    except BaseException:  # what the user's classes raise is anything
        ignore_interrupts()
        return nothing
