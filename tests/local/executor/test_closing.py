"""Closing is one thing, however many ask for it: all of them wait for its end, and what comes after is new."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from kernelexec import AsyncExecutor, Closed
from tests.local.executor.test_lifecycle import executor, run
from tests.support.remains import kernel_processes, runtime_directories

__all__ = ["executor"]


def test_a_second_exit_waits_for_the_first(executor: AsyncExecutor) -> None:
    async def main() -> None:
        before = runtime_directories()
        await executor.__aenter__()
        await executor.session()
        exits = [asyncio.create_task(executor.__aexit__(None, None, None)) for _ in range(3)]
        await asyncio.wait(exits, return_when=asyncio.FIRST_COMPLETED)
        assert runtime_directories() == before
        with pytest.raises(Closed):
            await executor.session()
        await asyncio.gather(*exits)

    run(main)


def test_a_session_asked_for_while_it_closes_is_a_new_one(executor: AsyncExecutor) -> None:
    async def main() -> None:
        async with executor:
            old = await executor.session("one")
            await old.execute("x = 1")
            closing = asyncio.create_task(old.close())
            await asyncio.sleep(0)
            assert executor.sessions() == ()
            new = await executor.session("one")
            assert new is not old
            assert closing.done()
            assert (await new.execute("'x' in globals()")).text == "False"
            assert executor.sessions() == ("one",)

    run(main)


def test_a_second_close_of_a_session_waits_for_its_end(executor: AsyncExecutor) -> None:
    async def main() -> None:
        async with executor:
            session = await executor.session("one")
            closes = [asyncio.create_task(session.close()) for _ in range(3)]
            closes.append(asyncio.create_task(executor.close_session("one")))
            await asyncio.wait(closes, return_when=asyncio.FIRST_COMPLETED)
            assert kernel_processes() == {}
            assert not list(next(iter(runtime_directories())).glob("one"))
            await asyncio.gather(*closes)
            await session.close()

    run(main)


def test_a_closer_that_is_cancelled_does_not_stop_the_closing(executor: AsyncExecutor) -> None:
    async def main() -> None:
        async with executor:
            session = await executor.session("one")
            closing = asyncio.create_task(session.close())
            for _ in range(3):
                await asyncio.sleep(0)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            with pytest.raises(Closed, match="'one' is closed"):
                await session.execute("1")
            await session.close()
            assert kernel_processes() == {}

    run(main)


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_an_entrance_that_is_cancelled_leaves_nothing_and_can_be_tried_again(executor: AsyncExecutor, steps: int) -> None:
    async def main() -> None:
        entering = asyncio.create_task(executor.__aenter__())
        for _ in range(steps):
            await asyncio.sleep(0)
        entering.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await entering
        if not entering.cancelled():
            await executor.__aexit__(None, None, None)
        assert runtime_directories() == set()
        async with executor:
            assert (await (await executor.session()).execute("1 + 1")).text == "2"

    run(main)
