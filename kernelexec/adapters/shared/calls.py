"""Cells and commands of a blocking session, from any event loop: a cancelled call interrupts its own execution only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

from kernelexec.blocking import Session
from kernelexec.config import SHORTEST_TIMEOUT
from kernelexec.results import ExecutionResult

T = TypeVar("T")

#: Calls wait for cells, so they do not take the threads of the event loop, which other parts of a program need.
_threads = ThreadPoolExecutor(max_workers=256, thread_name_prefix="kernelexec-call")


async def call_in_thread(call: Callable[[], T]) -> T:
    """Make a blocking call in a thread and wait for its outcome."""
    return await asyncio.get_running_loop().run_in_executor(_threads, copy_context().run, call)


async def await_result(session: Session, send: Callable[[float], ExecutionResult]) -> ExecutionResult:
    """Send a cell or command and wait for its result; if the caller is cancelled, it is interrupted, and its state is kept.

    Args:
        session: an open session.
        send: calls ``session.execute`` or ``session.execute_command`` with the given ``wait`` and returns the result so far.

    Raises:
        Exception: the errors of ``send``.
        Closed: the session ended before its execution.
    """
    begun: Future[str] = Future()

    def run() -> ExecutionResult:
        try:
            first = send(SHORTEST_TIMEOUT)
        except BaseException as exc:
            begun.set_exception(exc)
            raise
        begun.set_result(first.execution_id)
        return first if first.status != "running" else wait_for_result(session, first.execution_id)

    def interrupt() -> None:
        if begun.exception() is None and not running.done():
            session.interrupt(begun.result())

    running = _start_thread(run)
    try:
        return await _await_thread(running)
    except asyncio.CancelledError:
        if not running.cancel():  # a second cancellation must not end the thread that interrupts
            await _await_thread(_start_thread(interrupt))
        raise


def _start_thread(call: Callable[[], T]) -> Future[T]:
    return _threads.submit(copy_context().run, call)


async def _await_thread(future: Future[T]) -> T:
    """Wait for the outcome of a call in a thread; a cancelled caller leaves the call alone."""
    outcome = asyncio.wrap_future(future)
    outcome.add_done_callback(lambda done: done.cancelled() or done.exception())  # the caller may be gone by then
    await asyncio.wait([outcome])
    return outcome.result()


def wait_for_result(session: Session, execution_id: str) -> ExecutionResult:
    """Wait for the end of an execution and return its result."""
    result = session.wait_for(execution_id).result
    assert result is not None
    return result
