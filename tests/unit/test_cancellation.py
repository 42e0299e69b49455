"""Calls that run to their end although their caller is cancelled, and waits that signals end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

import anyio
import pytest

from kernelexec import cancellation
from kernelexec.cancellation import await_to_end, read_interruptibly, wait_interruptibly


@pytest.mark.parametrize("cancellations", [0, 1, 2, 5])
def test_a_call_runs_to_its_end_and_then_its_caller_is_cancelled(cancellations: int) -> None:
    async def steps() -> None:
        ends, may_end = list[str](), asyncio.Event()

        async def call() -> str:
            await may_end.wait()
            ends.append("call")
            return "value"

        caller = asyncio.create_task(await_to_end(call()))
        for _ in range(cancellations):
            await asyncio.sleep(0.001)
            caller.cancel()
        may_end.set()
        outcome = (await asyncio.gather(caller, return_exceptions=True))[0]
        assert ends == ["call"]
        assert isinstance(outcome, asyncio.CancelledError) if cancellations else outcome == "value"

    asyncio.run(steps())


def test_the_scope_of_a_caller_is_left_after_the_end() -> None:
    async def steps() -> None:
        ends: list[str] = []

        async def call() -> None:
            await anyio.sleep(0.05)
            ends.append("call")

        with anyio.move_on_after(0.001) as scope:
            await await_to_end(call())
            ends.append("caller")
            await anyio.sleep(1)
            ends.append("never")
        assert scope.cancelled_caught
        assert ends == ["call", "caller"]

    asyncio.run(steps())


def test_the_exception_of_a_call_is_raised() -> None:
    async def call() -> None:
        await asyncio.sleep(0)
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        asyncio.run(await_to_end(call()))


def test_a_wait_wakes_up_by_itself_since_a_signal_may_come_just_before_the_thread_sleeps() -> None:
    answers, waits = [False, False, False, True], list[float]()

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return answers.pop(0)

    wait_interruptibly(wait)
    assert (answers, waits[0] <= 0.1, max(waits) <= 1.0) == ([], True, True)


def test_a_pipe_is_read_to_its_end_and_no_read_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    later: list[Callable[[], object]] = [lambda: os.write(writer, b"b" * 10), lambda: os.close(writer)]

    def wait(is_readable: Callable[[float], bool]) -> None:
        while not is_readable(0.0):
            later.pop(0)()

    monkeypatch.setattr(cancellation, "wait_interruptibly", wait)
    os.write(writer, b"a" * 10)
    try:
        assert read_interruptibly(reader, 4) == b"aaaa"
        assert read_interruptibly(reader) == b"a" * 6 + b"b" * 10
    finally:
        os.close(reader)


def test_a_signal_ends_a_read_that_nothing_comes_for() -> None:
    reader, writer = os.pipe()

    def end(signum: int, frame: object) -> None:
        raise TimeoutError(signum)

    former = signal.signal(signal.SIGALRM, end)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(TimeoutError):
            read_interruptibly(reader)
    finally:
        signal.signal(signal.SIGALRM, former)
        os.close(reader)
        os.close(writer)
