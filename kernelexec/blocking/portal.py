"""The thread that an executor lives in, for callers without an event loop, and the one way to call into it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from typing import Any, TypeVar

import anyio
import anyio.to_thread

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
        self._unanswered: set[Future[Any]] = set()
        self._failure: BaseException | None = None
        self._calling = threading.Lock()
        self._over = asyncio.Event()
        self._stopped = False
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

        async def found() -> _T:
            return await call()

        with self._calling:
            if self._stopped:
                raise Closed(_CLOSED)
            begun = found()
            try:
                answer = asyncio.run_coroutine_threadsafe(begun, self._opened.result())
            except RuntimeError as exc:  # what asyncio says where the loop broke down
                begun.close()
                raise Closed(_CLOSED) from exc
            self._unanswered.add(answer)
        answer.add_done_callback(self._unanswered.discard)
        try:
            return answer.result()
        except CancelledError as exc:
            raise Closed(_CLOSED) from exc

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
        with self._calling:  # what was called before has reached the loop, and what comes after is refused
            if not self._stopped and self._opened.exception() is None:
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
        with self._calling:
            self._stopped = True
        for answer in list(self._unanswered):
            answer.cancel()
        if not self._opened.done():
            self._opened.set_exception(self._failure or Closed(_CLOSED))

    async def _serve(self) -> None:
        try:
            async with self._executor:
                self._opened.set_result(asyncio.get_running_loop())
                await self._over.wait()
        except Exception as exc:  # noqa: BLE001 - the same, and as itself
            self._failure = exc
        if self._unanswered:
            await anyio.to_thread.run_sync(wait, list(self._unanswered))
