"""The thread of a blocking caller, which makes calls of the executor's thread while it waits for its own call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from kernelexec.cancellation import settle_from_thread, wait_interruptibly

_T = TypeVar("_T")
_END = object()


class CallerThread:
    """The calls that wait for one caller's thread."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    async def run(self, call: Callable[[], _T]) -> _T:
        """Return the value of a call in the caller's thread; its exceptions are raised in that thread, and end its own call."""
        future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()

        def perform() -> None:
            settle_from_thread(future, call())

        self._calls.put(perform)
        return await future

    async def iterate(self, items: Iterable[Any]) -> AsyncIterator[Any]:
        """Yield the items of an iterable of the caller, each when it is asked for."""
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
