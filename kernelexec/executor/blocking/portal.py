"""The portal: the thread of an executor or an attached session for blocking callers, and the blocking methods of facades.

Unlike ``anyio.from_thread.BlockingPortal``, the portal can be interrupted by signals at any time, refuses calls in a forked
child, and wakes the thread once for each call.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import os
import sys
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import Context, copy_context
from functools import partial, update_wrapper
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast

import anyio

from kernelexec.cancellation import settle_from_thread, wait_interruptibly
from kernelexec.errors import Closed, InvalidRequest, KernelexecError

_P = ParamSpec("_P")
_R = TypeVar("_R")
_C = TypeVar("_C")
_T = TypeVar("_T")
#: How long the event loop may stand still while the portal closes, and the interval of the checks, in seconds.
_STALL_SECONDS, _BEAT_SECONDS = 20.0, 1.0
_END = object()
#: ``threading._register_atexit`` where available, as in ``concurrent.futures``: it runs before threads are joined, else
#: ``atexit``, which runs later.
_register: Callable[[Callable[[], None]], object] = getattr(threading, "_register_atexit", atexit.register)
_calls_at_end: dict[object, Callable[[], None]] = {}


class Portal:
    """The thread of an executor, or of another object with a lifetime, named ``name`` in messages.

    Any number of threads may call at once; a call wakes thread and caller once. The end of the portal waits for running calls,
    or with ``cancels`` cancels them.
    """

    def __init__(self, target: AbstractAsyncContextManager[object], name: str = "executor", *, cancels: bool = False) -> None:
        self._cancels = cancels
        self._target = target
        self._name = name
        self._loop: Future[asyncio.AbstractEventLoop] = Future()
        self._failure: BaseException | None = None
        self._calling = threading.RLock()  # a signal handler may call during a call
        self._pending: set[_PendingCall[Any]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop_requested = asyncio.Event()
        self._stopped = self._is_abandoned = False
        self._thread_context = Context()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="kernelexec", daemon=True)

    @property
    def in_forked_child(self) -> bool:
        """Whether this process is a forked child, in which the thread does not exist."""
        return os.getpid() != self._pid

    def open(self) -> None:
        """Start the thread and enter the executor; raise the executor's exceptions, ``InvalidRequest`` the second time."""
        if self._thread.ident is not None:
            raise InvalidRequest(f"The {self._name} is or was open: use it, or open a new one.")
        try:
            self._thread.start()
            wait_interruptibly(lambda seconds: bool(wait([self._loop], timeout=seconds).done))
            self._loop.result()
        except BaseException:
            self.close(failed=True)
            raise

    def call(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Make a call in the executor's thread and wait for the outcome; raise ``Closed`` if the executor is not open."""
        pending = _PendingCall(call)
        self._start(pending)
        return pending.wait()

    def call_or_cancel(self, call: Callable[[], Awaitable[_T]], caller: CallerThread | None = None) -> _T:
        """Make a call as ``call`` does. An exception in this thread meanwhile, as of Ctrl+C, cancels the call.

        The exception is raised after the call's end, a second exception at once. ``caller`` makes calls in this thread.
        """
        pending = _PendingCall(call, on_end=None if caller is None else caller.end)
        try:
            self._start(pending)
            if caller is not None:
                caller.perform_calls()
            pending.wait_for_end()
        except BaseException:
            if self._cancel(pending):
                pending.wait_for_end()
            raise
        return pending.get_value()

    async def call_and_await(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Make a call as ``call`` does, for a caller in another event loop. If the caller is cancelled, so is the call.

        The caller waits for the end of the cancelled call, unless cancelled again.
        """
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        pending = _PendingCall(call, on_end=partial(settle_from_thread, ended, None))
        self._start(pending)
        try:
            await asyncio.wait([ended])
        except asyncio.CancelledError:
            if self._cancel(pending):
                await asyncio.wait([ended])
            raise
        return pending.get_value()

    def _start(self, pending: _PendingCall[Any]) -> None:
        self.check_thread()
        loop = self._loop.result()
        with self._calling:
            if self._stopped:
                raise self._closed()
            self._pending.add(pending)  # before the loop gets the call, whose end removes it
            try:
                loop.call_soon_threadsafe(self._start_call, pending, context=self._caller_context())
            except RuntimeError as exc:  # the event loop is closed
                self._pending.discard(pending)
                raise self._closed() from exc

    def _cancel(self, pending: _PendingCall[Any]) -> bool:
        """Request the cancellation of a call; return whether the call is still pending, as far as this thread knows."""
        with self._calling:
            if pending not in self._pending:
                return False
            with suppress(RuntimeError):  # the event loop is closed, so the call has ended
                self._loop.result().call_soon_threadsafe(self._cancel_call, pending)
            return True

    def check_thread(self) -> None:
        """Raise ``Closed`` in a forked child, ``InvalidRequest`` in the executor's thread: such callers would wait for ever."""
        if self.in_forked_child:
            raise Closed(f"The {self._name} belongs to the process that this one was forked from: open an executor here.")
        if threading.get_ident() == self._thread.ident:
            raise InvalidRequest(f"Hooks and on_output run in the {self._name}'s thread: make blocking calls from another one.")

    def close(self, *, failed: bool) -> None:
        """Leave the executor and wait for the thread's end; raise the executor's exception unless the block ``failed``.

        Raises:
            KernelexecError: a hook or callback keeps the thread for more than 20 s; the kernels end with this process.
        """
        self._is_abandoned = True
        if self._thread.ident is None:  # it was not started, or an interrupt came while it was, and then it does nothing
            return
        opened = self._loop.exception() is None
        with self._calling:  # earlier calls have reached the loop, and later ones are refused
            if opened and not self._stopped:
                with suppress(RuntimeError):  # as above
                    self._loop.result().call_soon_threadsafe(self._stop_requested.set)
            self._stopped = True
        self._join()
        if self._failure is not None and not failed:
            raise self._failure

    def _join(self) -> None:
        """Wait for the thread's end, as long as the event loop takes turns; raise ``KernelexecError`` after 20 s without."""
        # The end of sessions may take any time, so not the time but a loop that stands still is the failure.
        beat, posted = self._post_beat(), time.monotonic()
        while self._thread.is_alive():
            self._thread.join(_BEAT_SECONDS)
            if not beat.locked():
                beat, posted = self._post_beat(), time.monotonic()
            elif self._thread.is_alive() and time.monotonic() > posted + _STALL_SECONDS:
                raise KernelexecError(self._describe_stall())

    def _post_beat(self) -> threading.Lock:
        """Return a locked lock, which the event loop releases in its next turn."""
        beat = threading.Lock()
        if self._loop.exception() is None:
            beat.acquire()
            with suppress(RuntimeError):  # as above
                self._loop.result().call_soon_threadsafe(beat.release)
        return beat

    def _describe_stall(self) -> str:
        frame = sys._current_frames().get(self._thread.ident or 0)  # noqa: SLF001 - the documented way
        where = "" if frame is None else f", in {Path(frame.f_code.co_filename).name}, line {frame.f_lineno}"
        return (
            f"The {self._name} cannot be closed: a hook or callback has kept its thread for {_STALL_SECONDS:.0f} s{where}. "
            "It must return; what is open ends with this process."
        )

    def _run(self) -> None:
        try:
            if not self._is_abandoned:
                anyio.run(self._serve)
        except BaseException as exc:  # noqa: BLE001 - raised by ``open`` or ``close``
            self._failure = exc
        if not self._loop.done():  # callers wait for it
            self._loop.set_exception(self._failure or self._closed())
        with self._calling:
            self._stopped = True
        for pending in list(self._pending):  # accepted, but the loop ended before it began them
            pending.set_outcome(failure=self._closed())

    async def _serve(self) -> None:
        try:
            async with self._target:
                self._thread_context = copy_context()
                self._loop.set_result(asyncio.get_running_loop())  # from now on ``open`` returns, and calls may come
                if not self._is_abandoned:
                    await self._stop_requested.wait()
        except Exception as exc:  # noqa: BLE001 - raised by ``open`` or ``close``, not in a group
            self._failure = exc
        for task in self._tasks if self._cancels else ():
            task.cancel()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _closed(self) -> Closed:
        return Closed(f"The {self._name} is closed: open it again and request a new session.")

    def _caller_context(self) -> Context:
        """Return the caller's context, with the variables of this thread, such as the library of the event loop."""
        context = copy_context()
        for variable, value in self._thread_context.items():
            context.run(variable.set, value)
        return context

    def _start_call(self, pending: _PendingCall[Any]) -> None:
        task = pending.task = asyncio.get_running_loop().create_task(self._run_call(pending))
        self._tasks.add(task)
        task.add_done_callback(partial(self._end_call, pending))

    def _cancel_call(self, pending: _PendingCall[Any]) -> None:
        if pending.task is not None:
            pending.task.cancel()
        else:  # the loop takes posts in order, so an interrupt came before the call was posted
            self._pending.discard(pending)
            pending.set_outcome(failure=self._closed())

    def _end_call(self, pending: _PendingCall[Any], task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._pending.discard(pending)
        if task.cancelled():  # also before its first step
            pending.set_outcome(failure=self._closed())
        else:
            task.exception()  # the caller gets it, so that asyncio need not log it

    async def _run_call(self, pending: _PendingCall[Any]) -> None:
        try:
            pending.set_outcome(await pending.call())
        except asyncio.CancelledError:
            raise
        except BaseException as exc:  # noqa: BLE001 - raised in the caller; here it would end the event loop
            pending.set_outcome(failure=exc)


class _PendingCall(Generic[_T]):
    """A call and its outcome. The waiting thread can be interrupted at any time, unlike with ``threading.Condition``."""

    def __init__(self, call: Callable[[], Awaitable[_T]], *, on_end: Callable[[], None] | None = None) -> None:
        self.call = call
        self.task: asyncio.Task[None] | None = None
        self._on_end = on_end
        self._value: _T | None = None
        self._failure: BaseException | None = None
        self._has_ended = False
        # Held until there is an outcome. Its ``acquire`` is a single step, which the exception of a signal handler cannot
        # divide, as it can the Python code of ``threading.Condition``.
        self._settled = threading.Lock()
        self._settled.acquire()

    def set_outcome(self, value: _T | None = None, *, failure: BaseException | None = None) -> None:
        """Set the outcome and wake the waiting thread; a later outcome, of an abandoned call, is dropped."""
        if self._has_ended:
            return
        self._value, self._failure, self._has_ended = value, failure, True
        self._settled.release()
        if self._on_end is not None:
            self._on_end()

    def wait(self) -> _T:
        """Wait for the outcome; return the value or raise the exception."""
        self.wait_for_end()
        return self.get_value()

    def wait_for_end(self) -> None:
        """Wait for the outcome; the wait may be repeated."""
        wait_interruptibly(self._wait)

    def _wait(self, seconds: float) -> bool:
        """Return whether the call ends in ``seconds``. An interrupt may leave the lock taken, but only after the call's end."""
        if not self._has_ended and self._settled.acquire(timeout=seconds):
            self._settled.release()
        return self._has_ended

    def get_value(self) -> _T:
        """Return the value of an ended call, or raise its exception."""
        if self._failure is not None:
            raise self._failure
        return cast("_T", self._value)


class CallerThread:
    """The calls to be made in the thread of a blocking caller."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    async def run(self, call: Callable[[], _T]) -> _T:
        """Return the value of a call in the caller's thread. An exception is raised there, and ends the caller's own call."""
        future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()

        def perform() -> None:
            settle_from_thread(future, call())

        self._calls.put(perform)
        return await future

    async def iterate(self, items: Iterable[Any]) -> AsyncIterator[Any]:
        """Yield the items of the caller's iterable, each on demand."""
        iterator = iter(items)
        while (item := await self.run(lambda: next(iterator, _END))) is not _END:
            yield item

    def perform_calls(self) -> None:
        """Make the calls, in the caller's thread, until ``end``."""
        while (perform := self._next_call()) is not None:
            perform()

    def _next_call(self) -> Callable[[], None] | None:
        calls: list[Callable[[], None] | None] = []

        def wait(seconds: float) -> bool:
            with suppress(Empty):
                calls.append(self._calls.get(timeout=seconds))
            return bool(calls)

        wait_interruptibly(wait)
        return calls[0]

    def end(self) -> None:
        """Let ``perform_calls`` return; for any thread."""
        self._calls.put(None)


class Facade(Protocol):
    """An object with blocking methods, which call the methods of the target through a portal."""

    _portal: Portal
    _target: Any


def make_blocking(
    method: Callable[Concatenate[Any, _P], Coroutine[Any, Any, _R]], *, cancels: bool = False
) -> Callable[Concatenate[Any, _P], _R]:
    """Return a blocking method that calls an asynchronous method through the portal, with the same signature and docstring.

    An interrupted caller leaves the call running, or with ``cancels`` cancels the call.
    """
    name = method.__qualname__.removeprefix("Async")

    def call(facade: Facade, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        portal = facade._portal  # noqa: SLF001 - a method of the facade
        bound = partial(method, facade._target, *args, **kwargs)  # noqa: SLF001 - as above
        try:
            return portal.call_or_cancel(bound) if cancels else portal.call(bound)
        except TypeError as exc:
            if str(exc).startswith(f"Async{name}()"):  # the arguments are wrong
                raise TypeError(str(exc).removeprefix("Async")) from None
            raise

    update_wrapper(call, method)
    call.__qualname__ = name
    vars(call)["__signature__"] = inspect.signature(method)
    del vars(call)["__wrapped__"]  # with it, tools would show a coroutine function
    return call


def call_target(facade: Facade, call: Callable[[Any], Awaitable[_R]]) -> _R:
    """Make a call with a facade's asynchronous object, in the portal's thread. An interrupt of the caller cancels the call."""
    return facade._portal.call_or_cancel(partial(call, facade._target))  # noqa: SLF001 - of the facade


async def await_target(facade: Facade, call: Callable[[Any], Awaitable[_R]]) -> _R:
    """Make a call as ``call_target`` does, from any event loop."""
    return await facade._portal.call_and_await(partial(call, facade._target))  # noqa: SLF001 - of the facade


def iterate(portal: Portal, items: AsyncGenerator[_R, None]) -> Iterator[_R]:
    """Yield the items of an asynchronous iterator, each through the portal; close the iterator if the caller stops early."""
    try:
        with suppress(StopAsyncIteration):
            while True:
                yield portal.call_or_cancel(items.__anext__)
    finally:
        with suppress(Closed):
            portal.call(items.aclose)


def documented_as(asynchronous: type) -> Callable[[type[_C]], type[_C]]:
    """Return a class decorator to replace references to the asynchronous class by the docstrings, which ``help`` shows."""

    def copy(facade: type[_C]) -> type[_C]:
        for name, member in vars(facade).items():
            if str(getattr(member, "__doc__", "")).startswith(f"See ``{asynchronous.__name__}.{name}``"):
                member.__doc__ = getattr(asynchronous, name).__doc__
        return facade

    return copy


def call_at_end(key: object, call: Callable[[], None]) -> None:
    """Make a call at the end of the main thread, unless ``cancel_at_end`` is called with the same key before.

    Threads can still be started at this time, unlike in ``atexit``.
    """
    if not _calls_at_end:
        import concurrent.futures.thread  # noqa: F401, PLC0415 - what was registered first is called last

        _register(_call_all)
    _calls_at_end[key] = call


def cancel_at_end(key: object) -> None:
    """Drop the call of a key."""
    _calls_at_end.pop(key, None)


def _call_all() -> None:
    for key in list(_calls_at_end):
        with suppress(Exception):  # the interpreter ends in any case
            _calls_at_end.pop(key)()
