"""Calls that run to their end although their caller is cancelled."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from kernelexec.cancellation import await_to_end, wait_interruptibly


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
