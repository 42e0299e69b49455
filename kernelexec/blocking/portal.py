"""The thread that an executor lives in, for callers without an event loop, and the one way to call into it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Any, Generic, TypeVar, cast

import anyio

from kernelexec.errors import Closed, InvalidRequest
from kernelexec.executor import AsyncExecutor

_T = TypeVar("_T")
_CLOSED = "The executor is closed: open it anew, and ask it for a session."


class Portal:
    """The thread in which an executor lives, and the one way to call into it. Any number of threads may call at once.

    A call wakes that thread once, and its caller once.
    """

    def __init__(self, executor: AsyncExecutor) -> None:
        self._executor = executor
        self._opened: Future[asyncio.AbstractEventLoop] = Future()
        self._failure: BaseException | None = None
        self._calling = threading.RLock()  # a signal's handler may call amid a call
        self._unanswered: set[_Answer[Any]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._over = asyncio.Event()
        self._stopped = False
        self._own = Context()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="kernelexec", daemon=True)

    @property
    def inherited(self) -> bool:
        """Whether this is a forked child of the process that has the thread."""
        return os.getpid() != self._pid

    def open(self) -> None:
        """Start the thread and enter the executor; what that raises is raised here."""
        self._thread.start()
        try:
            self._opened.result()
        except BaseException:
            self.close(failed=True)
            raise

    def call(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Make a call in the executor's thread and wait for what becomes of it.

        Raises:
            Closed: the executor is not open any more; and what ``check_here`` raises.
        """
        self.check_here()
        loop, answer = self._opened.result(), _Answer(call)
        with self._calling:
            if self._stopped:
                raise Closed(_CLOSED)
            self._unanswered.add(answer)
            try:
                loop.call_soon_threadsafe(self._begin, answer, context=self._context())
            except RuntimeError as exc:  # what asyncio says where the loop broke down
                self._unanswered.discard(answer)
                raise Closed(_CLOSED) from exc
        return answer.wait()

    def check_here(self) -> None:
        """Refuse a caller that would wait for ever.

        Raises:
            Closed: it is in a forked child of the process that has the thread.
            InvalidRequest: it is in the executor's own thread.
        """
        if self.inherited:
            message = "The executor belongs to the process that this one was forked from: open an executor here."
            raise Closed(message)
        if threading.get_ident() == self._thread.ident:
            message = "Hooks and on_output run in the executor's thread: make blocking calls from another one."
            raise InvalidRequest(message)

    def close(self, *, failed: bool) -> None:
        """Leave the executor and wait for the thread's end; unless the block ``failed``, what that raises is raised here."""
        opened = self._opened.exception() is None
        with self._calling:  # what was called before has reached the loop, and what comes after is refused
            if opened and not self._stopped:
                with suppress(RuntimeError):  # as above
                    self._opened.result().call_soon_threadsafe(self._over.set)
            self._stopped = True
        self._thread.join()
        if self._failure is not None and not failed:
            raise self._failure

    def _run(self) -> None:
        try:
            anyio.run(self._serve)
        except BaseException as exc:  # noqa: BLE001 - given to who opens or closes
            self._failure = exc
        if not self._opened.done():  # whoever calls meanwhile waits for it
            self._opened.set_exception(self._failure or Closed(_CLOSED))
        with self._calling:
            self._stopped = True
        for answer in list(self._unanswered):
            answer.settle(failure=Closed(_CLOSED))

    async def _serve(self) -> None:
        try:
            async with self._executor:
                self._own = copy_context()
                self._opened.set_result(asyncio.get_running_loop())
                await self._over.wait()
        except Exception as exc:  # noqa: BLE001 - the same, and as itself
            self._failure = exc
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _context(self) -> Context:
        """The caller's, but for what is this thread's own: for one, which library runs its event loop."""
        context = copy_context()
        for variable, value in self._own.items():
            context.run(variable.set, value)
        return context

    def _begin(self, answer: _Answer[Any]) -> None:
        task = asyncio.get_running_loop().create_task(self._find(answer))
        self._tasks.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # the caller has it, and asyncio need not tell of it

    async def _find(self, answer: _Answer[Any]) -> None:
        try:
            answer.settle(await answer.call())
        except asyncio.CancelledError:
            answer.settle(failure=Closed(_CLOSED))
            raise
        except Exception as exc:  # noqa: BLE001 - the caller's, as itself
            answer.settle(failure=exc)
        except BaseException as exc:
            self._stopped = True  # the loop breaks down
            answer.settle(failure=exc)
            raise
        finally:
            self._unanswered.discard(answer)


class _Answer(Generic[_T]):
    """What becomes of a call. Whoever waits can be interrupted at any time, which ``threading.Condition`` does not bear."""

    def __init__(self, call: Callable[[], Awaitable[_T]]) -> None:
        self.call = call
        self._found: _T | None = None
        self._failure: BaseException | None = None
        self._settled = threading.Lock()
        self._settled.acquire()

    def settle(self, found: _T | None = None, *, failure: BaseException | None = None) -> None:
        """Say it, once, to the one who waits."""
        self._found, self._failure = found, failure
        self._settled.release()

    def wait(self) -> _T:
        """What was found; what failed is raised as itself."""
        self._settled.acquire()
        if self._failure is not None:
            raise self._failure
        return cast("_T", self._found)
