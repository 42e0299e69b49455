"""The portal: the thread that runs an executor or an attached session for blocking callers.

``anyio.from_thread.BlockingPortal`` is not used: this one can be interrupted by signals at any time, refuses calls in a
forked child, and wakes the thread once for each call.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import Context, copy_context
from typing import Any, Generic, TypeVar, cast

import anyio

from kernelexec.errors import Closed, InvalidRequest

_T = TypeVar("_T")


class Portal:
    """The thread that runs an executor, or another object with a lifetime; ``name`` is its word in messages.

    Any number of threads may call at once; a call wakes thread and caller once. Calls that run when the portal closes are
    waited for, or cancelled if it ``cancels`` them.
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
        self._stopped = False
        self._thread_context = Context()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="kernelexec", daemon=True)

    @property
    def in_forked_child(self) -> bool:
        """Whether this process is a forked child of the one with the thread."""
        return os.getpid() != self._pid

    def open(self) -> None:
        """Start the thread and enter the executor; its exceptions are raised here."""
        self._thread.start()
        try:
            self._loop.result()
        except BaseException:
            self.close(failed=True)
            raise

    def call(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Make a call in the executor's thread and wait for its outcome; raise ``Closed`` if the executor is not open."""
        self.check_thread()
        loop, pending = self._loop.result(), _PendingCall(call)
        with self._calling:
            if self._stopped:
                raise self._closed()
            self._pending.add(pending)
            try:
                loop.call_soon_threadsafe(self._start_call, pending, context=self._caller_context())
            except RuntimeError as exc:  # the event loop is closed
                self._pending.discard(pending)
                raise self._closed() from exc
        return pending.wait()

    def check_thread(self) -> None:
        """Raise ``Closed`` in a forked child, ``InvalidRequest`` in the executor's thread: such callers would wait for ever."""
        if self.in_forked_child:
            raise Closed(f"The {self._name} belongs to the process that this one was forked from: open an executor here.")
        if threading.get_ident() == self._thread.ident:
            raise InvalidRequest(f"Hooks and on_output run in the {self._name}'s thread: make blocking calls from another one.")

    def close(self, *, failed: bool) -> None:
        """Leave the executor and wait for the thread's end; its exception is raised here unless the block ``failed``."""
        opened = self._loop.exception() is None
        with self._calling:  # earlier calls have reached the loop, and later ones are refused
            if opened and not self._stopped:
                with suppress(RuntimeError):  # as above
                    self._loop.result().call_soon_threadsafe(self._stop_requested.set)
            self._stopped = True
        self._thread.join()
        if self._failure is not None and not failed:
            raise self._failure

    def _run(self) -> None:
        try:
            anyio.run(self._serve)
        except BaseException as exc:  # noqa: BLE001 - raised by ``open`` or ``close``
            self._failure = exc
        if not self._loop.done():  # callers wait for it
            self._loop.set_exception(self._failure or self._closed())
        with self._calling:
            self._stopped = True
        for pending in list(self._pending):
            pending.set_outcome(failure=self._closed())

    async def _serve(self) -> None:
        try:
            async with self._target:
                self._thread_context = copy_context()
                self._loop.set_result(asyncio.get_running_loop())
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
        task = asyncio.get_running_loop().create_task(self._run_call(pending))
        self._tasks.add(task)
        task.add_done_callback(self._remove_task)

    def _remove_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # the caller gets it, so that asyncio need not log it

    async def _run_call(self, pending: _PendingCall[Any]) -> None:
        try:
            pending.set_outcome(await pending.call())
        except asyncio.CancelledError:
            pending.set_outcome(failure=self._closed())
            raise
        except Exception as exc:  # noqa: BLE001 - raised in the caller
            pending.set_outcome(failure=exc)
        except BaseException as exc:
            self._stopped = True  # the loop breaks down
            pending.set_outcome(failure=exc)
            raise
        finally:
            self._pending.discard(pending)


class _PendingCall(Generic[_T]):
    """A call and its outcome. The waiting thread can be interrupted at any time, unlike with ``threading.Condition``."""

    def __init__(self, call: Callable[[], Awaitable[_T]]) -> None:
        self.call = call
        self._value: _T | None = None
        self._failure: BaseException | None = None
        self._settled = threading.Lock()
        self._settled.acquire()

    def set_outcome(self, value: _T | None = None, *, failure: BaseException | None = None) -> None:
        """Set the outcome, once, and wake the waiting thread."""
        self._value, self._failure = value, failure
        self._settled.release()

    def wait(self) -> _T:
        """Wait for the outcome; return the value or raise the exception."""
        self._settled.acquire()
        if self._failure is not None:
            raise self._failure
        return cast("_T", self._value)
