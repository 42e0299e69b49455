"""Calls under cancellation: calls run to the end, and calls of a caller's own function are abandoned.

Also waits in a thread during which signal handlers run.
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
    """Call ``wait`` until True, each time with the longest time to block, in seconds; signal handlers run meanwhile.

    A signal wakes a sleeping thread. But a thread gives up the interpreter's lock before the sleep, which takes milliseconds
    on a busy machine. A handler due in this time (CPython 3.11) runs only after the sleep.
    """
    # Short at first, for a signal in the gap before the first sleep; in a later gap a handler waits for up to a second.
    seconds = _FIRST_SECONDS
    while not wait(seconds):
        seconds = _LATER_SECONDS


def read_interruptibly(fd: int, limit_bytes: int | None = None) -> bytes:
    """Read a file or pipe up to the end, or up to ``limit_bytes``; signal handlers run meanwhile.

    A signal just before a plain read would not end that read: see ``wait_interruptibly``.

    Raises:
        OSError: the read failed.
    """
    # POLLHUP, the end of a pipe, is always reported, and the read then returns nothing.
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
    """Await a call for the acquisition or release of something; a cancellation is raised after the call's end.

    A shielded scope of anyio stops cancellation by anyio only, not a cancellation of the task, as by ``asyncio.wait_for``.

    Raises:
        asyncio.CancelledError: this task was cancelled meanwhile; the call's outcome is dropped.
        Exception: the call's own.
    """
    calling = asyncio.ensure_future(call)
    cancellation: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not calling.done():
            try:
                await asyncio.wait([calling])  # a cancelled `await calling` would cancel the call, too
            except asyncio.CancelledError as exc:
                cancellation = exc  # and wait on: a second cancellation must not abandon the call either
    if cancellation is not None:
        if not calling.cancelled():
            calling.exception()  # asyncio would log it as never retrieved
        raise cancellation
    return calling.result()


async def await_with_stop(call: Awaitable[T], stop: Callable[[], None]) -> T:
    """Await a call. A cancellation of this task calls ``stop``, which ends the call soon, and is raised after that end."""
    calling = asyncio.ensure_future(call)
    try:
        await asyncio.wait([calling])
    except asyncio.CancelledError:
        stop()
        # The call must not raise any more: nothing retrieves its exception now, which asyncio would log.
        await await_to_end(asyncio.wait([calling]))
        raise
    return calling.result()


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """The return value or exception of a call, as a value for the way through threads and tasks."""

    value: T | None = None
    failure: BaseException | None = None

    @classmethod
    def of(cls, call: Callable[[], T]) -> Self:
        """Make a call and return the outcome."""
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
    """The calls of an operation, in order, in a daemon thread, which does not delay the end of the process.

    A call without a return after ``stop`` keeps the thread, and the outcome is dropped. Use this as ``with``, in the thread of
    the operation; ``stop`` is for any thread.
    """

    # The operation's thread sends a call on `_calls` and waits for `_outcomes`; the caller thread does the reverse. `stop` sets
    # the reason first, and then wakes the operation by a None: from then on every outcome, also a late one, is dropped.

    def __init__(self) -> None:
        self._reason: BaseException | None = None
        self._calls: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._outcomes: SimpleQueue[Outcome[Any] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        self._calls.put(None)  # not joined: the thread ends after its current call, which may never return

    def call(self, function: Callable[[], T]) -> T:
        """Return the value of a call or raise the call's exception, of any class; after ``stop`` raise the reason."""
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
        """Raise the reason of an earlier ``stop``."""
        if self._reason is not None:
            raise self._reason

    def stop(self, reason: BaseException) -> None:
        """End the operation with an exception, also during the wait for a call."""
        self._reason = self._reason or reason
        self._outcomes.put(None)

    def _make_calls(self) -> None:
        while (call := self._calls.get()) is not None:
            self._outcomes.put(Outcome.of(call))


async def call_in_own_thread(call: Callable[[], T]) -> T:
    """Return the value of a caller's function, called in a daemon thread, which does not delay the end of the process.

    Exceptions of the function are raised here, ``SystemExit`` too. A cancellation of this task abandons the thread.
    """
    # Not a pool's thread: a pool joins its threads at the interpreter's end, and an abandoned one would take a place there.
    future: asyncio.Future[Outcome[T]] = asyncio.get_running_loop().create_future()

    def run() -> None:
        settle_from_thread(future, Outcome.of(call))

    threading.Thread(target=copy_context().run, args=(run,), name="kernelexec caller", daemon=True).start()
    return (await future).get()


def settle_from_thread(future: asyncio.Future[T], value: T) -> None:
    """Set the result of a future in the future's event loop, unless the future is done; for any thread."""

    def settle() -> None:
        # Asked in the event loop, the only place where it cannot change meanwhile: a cancelled waiter has settled it.
        if not future.done():
            future.set_result(value)

    with suppress(RuntimeError):  # the event loop is closed
        future.get_loop().call_soon_threadsafe(settle)
