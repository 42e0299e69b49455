"""Calls whose waiting task is cancelled: they run to their end, or are abandoned if they are of a caller's own function.

Waits in a thread that a signal interrupts, too.
"""

from __future__ import annotations

import asyncio
import os
import select
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, cast

import anyio

T = TypeVar("T")
#: The first and each further wait of ``wait_interruptibly``, in seconds.
_FIRST_SECONDS, _LATER_SECONDS = 0.05, 1.0
_PIECE_BYTES = 1 << 16


def wait_interruptibly(wait: Callable[[float], bool]) -> None:
    """Wait until ``wait``, which blocks for the seconds that it gets at most, returns True; a signal's handler runs meanwhile.

    A signal wakes a thread that sleeps. But a thread gives up the interpreter's lock before it sleeps, which takes milliseconds
    on a busy machine, and a handler that becomes due then (CPython 3.11) runs only when the thread wakes up again.
    """
    seconds = _FIRST_SECONDS
    while not wait(seconds):
        seconds = _LATER_SECONDS


def read_interruptibly(fd: int, limit_bytes: int | None = None) -> bytes:
    """Return what a file or pipe brings up to its end, or its first bytes; a signal's handler runs meanwhile.

    A signal that comes just before a read would not wake that: see ``wait_interruptibly``.

    Raises:
        OSError: it cannot be read.
    """
    poll, content = select.poll(), bytearray()
    poll.register(fd, select.POLLIN)
    while piece_bytes := _PIECE_BYTES if limit_bytes is None else min(_PIECE_BYTES, limit_bytes - len(content)):
        wait_interruptibly(lambda seconds: bool(poll.poll(seconds * 1000)))
        piece = os.read(fd, piece_bytes)
        if not piece:
            break
        content += piece
    return bytes(content)


async def await_to_end(call: Awaitable[T]) -> T:
    """Await a call that acquires or releases something; if this task is cancelled, that is raised after the call's end.

    A shielded scope of anyio stops cancellation by anyio only, not that of the task itself, as by ``asyncio.wait_for``.

    Raises:
        asyncio.CancelledError: this task was cancelled meanwhile; the call's outcome is dropped.
        Exception: the call's own.
    """
    calling = asyncio.ensure_future(call)
    cancellation: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not calling.done():
            try:
                await asyncio.wait([calling])
            except asyncio.CancelledError as exc:
                cancellation = exc
    if cancellation is not None:
        if not calling.cancelled():
            calling.exception()  # asyncio would log it as never retrieved
        raise cancellation
    return calling.result()


async def await_with_stop(call: Awaitable[T], stop: Callable[[], None]) -> T:
    """Await a call, which ``stop`` ends soon; it is called if this task is cancelled, which is raised after the call's end."""
    calling = asyncio.ensure_future(call)
    try:
        await asyncio.wait([calling])
    except asyncio.CancelledError:
        stop()
        await await_to_end(asyncio.wait([calling]))
        raise
    return calling.result()


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """What a call has returned or raised, which no thread and no task raises on its way."""

    value: T | None = None
    failure: BaseException | None = None

    @classmethod
    def of(cls, call: Callable[[], T]) -> Self:
        """Make a call; return its outcome."""
        try:
            return cls(call())
        except BaseException as exc:  # noqa: BLE001 - SystemExit too, which would end an event loop
            return cls(failure=exc)

    def get(self) -> T:
        """Return the value, or raise the exception."""
        if self.failure is not None:
            raise self.failure
        return cast("T", self.value)


class CallerCalls:
    """The calls of one operation, in order, in a thread of their own, which keeps no process from its end.

    A call that does not return after ``stop`` keeps its thread, and its outcome is dropped. Use it as ``with``, in the
    thread of the operation; ``stop`` is for any thread.
    """

    def __init__(self) -> None:
        self._reason: BaseException | None = None
        self._calls: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._outcomes: SimpleQueue[Outcome[Any] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        self._calls.put(None)

    def call(self, function: Callable[[], T]) -> T:
        """Return the value of a call or raise its exception, whatever it is; raise the reason of ``stop`` after that."""
        self.check()
        if self._thread is None:
            self._thread = threading.Thread(
                target=copy_context().run, args=(self._make_calls,), name="kernelexec caller", daemon=True
            )
            self._thread.start()
        self._calls.put(function)
        outcome: Outcome[T] | None = self._outcomes.get()
        self.check()
        assert outcome is not None
        return outcome.get()

    def check(self) -> None:
        """Raise the reason of ``stop``, if that was called."""
        if self._reason is not None:
            raise self._reason

    def stop(self, reason: BaseException) -> None:
        """Let the operation end with an exception, also while it waits for a call."""
        self._reason = self._reason or reason
        self._outcomes.put(None)

    def _make_calls(self) -> None:
        while (call := self._calls.get()) is not None:
            self._outcomes.put(Outcome.of(call))


async def call_in_own_thread(call: Callable[[], T]) -> T:
    """Return the value of a caller's function, called in a thread of its own, which keeps no process from its end.

    Its exceptions are raised here, ``SystemExit`` too. The thread is abandoned if this task is cancelled.
    """
    future: asyncio.Future[Outcome[T]] = asyncio.get_running_loop().create_future()

    def run() -> None:
        settle_from_thread(future, Outcome.of(call))

    threading.Thread(target=copy_context().run, args=(run,), name="kernelexec caller", daemon=True).start()
    return (await future).get()


def settle_from_thread(future: asyncio.Future[T], value: T) -> None:
    """Set the result of a future in its event loop, unless nothing waits for it any more; for any thread."""

    def settle() -> None:
        if not future.done():
            future.set_result(value)

    with suppress(RuntimeError):  # the event loop is closed
        future.get_loop().call_soon_threadsafe(settle)
