"""When SIGINT raises: where the user's code runs, and nowhere else."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Collection
from types import FrameType
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

_Handler = Callable[[int, FrameType | None], Any] | int | signal.Handlers | None
_RUN_CODE = InteractiveShell.run_code.__code__

#: How long completing or inspecting a name may take, in seconds: it runs where cells run, and the next cell waits for it.
_LOOK_SECONDS = 3.0


def interruptible() -> _Handling:
    """SIGINT raises KeyboardInterrupt in here, and is ignored again after; the same for children that are started here.

    Where an exception comes out of it, the end itself may have been interrupted: see ``ignore_interrupts``.
    """
    return _Handling(signal.default_int_handler, signal.SIG_IGN)


def cancelling(cell: asyncio.Future[Any], come_early: Callable[[], None], spared: Collection[asyncio.Task[Any]]) -> _Handling:
    """SIGINT ends, in here, an async cell wherever it is; whoever enters waits for it. ``spared`` tasks are not disturbed.

    It raises KeyboardInterrupt where IPython shows it as the cell's error, for it would end the loop from elsewhere; what has
    ``come_early``, before the cell's own code, that is told, and the cell does not begin.
    """
    loop, waiter = asyncio.get_running_loop(), asyncio.current_task()

    def on_signal(_signum: int, frame: FrameType | None) -> None:
        current = asyncio.current_task(loop)
        if current is waiter or (current is cell and _runs_code(frame)):
            raise KeyboardInterrupt
        come_early()
        loop.call_soon_threadsafe(cell.cancel)
        if current not in (None, cell) and current not in spared:
            raise asyncio.CancelledError

    return _Handling(on_signal, signal.getsignal(signal.SIGINT))


def ignore_interrupts() -> None:
    """SIGINT does nothing any more. One that has just come is raised, by what is to change its handler, before it changes."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    except BaseException:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise


class _Handling:
    """A handler of SIGINT for a while. It is no generator: one whose end is interrupted would go on when it is forgotten."""

    def __init__(self, handler: _Handler, after: _Handler) -> None:
        self._handler, self._after = handler, after

    def __enter__(self) -> None:
        signal.signal(signal.SIGINT, self._handler)

    def __exit__(self, *_: object) -> None:
        try:
            signal.signal(signal.SIGINT, self._after)
        except BaseException:  # as above
            signal.signal(signal.SIGINT, self._after)
            raise


def _runs_code(frame: FrameType | None) -> bool:
    """Whether something that a cell says is under way."""
    while frame is not None and frame.f_code is not _RUN_CODE:
        frame = frame.f_back
    return frame is not None


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
