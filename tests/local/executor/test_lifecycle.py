"""An executor's block may be entered, left and cancelled by any task, and whatever happens it ends whole and says why."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest

from kernelexec import AsyncExecutor, AsyncSession, Closed, InvalidRequest
from kernelexec.kernel.process import KernelProcess
from kernelexec.provisioning import KernelexecProvisioner
from tests.support.night import at_night
from tests.support.pace import BOUND, until_equal
from tests.support.remains import descriptors, marked_processes, runtime_directories

SLEEPS = "import time\nprint('begun\\n', end='', flush=True)\ntime.sleep(600)"  # one write: heard whole


def traces() -> Counter[object]:
    """What there is of executors; what is less afterwards is of earlier tests, and ended meanwhile."""
    return Counter[object]([*Counter(descriptors()).elements(), *marked_processes(), *runtime_directories()])


def run(main: Callable[[], Awaitable[None]]) -> None:
    """Run it in a loop of its own; nothing is left behind."""
    before = traces()

    async def bounded() -> None:
        async with asyncio.timeout(BOUND):
            await main()

    asyncio.run(bounded())
    until_equal(lambda: traces() - before, Counter())


@pytest.fixture
def executor(tmp_path: Path) -> AsyncExecutor:
    return AsyncExecutor("local", workspace=tmp_path, config={"notebook": False})


def test_a_block_may_be_entered_in_one_task_and_left_in_another(executor: AsyncExecutor) -> None:
    async def main() -> None:
        await asyncio.create_task(executor.__aenter__())
        session = await asyncio.create_task(executor.session())
        assert (await session.execute("1 + 1")).text == "2"
        await asyncio.create_task(executor.__aexit__(None, None, None))
        with pytest.raises(Closed, match="Session 'default' is closed"):
            await session.execute("1")

    run(main)


def test_an_exit_stack_may_be_closed_by_another_task_in_any_order(executor: AsyncExecutor, tmp_path: Path) -> None:
    async def main() -> None:
        other = AsyncExecutor("local", workspace=tmp_path / "other", config={"notebook": False})
        first, second = AsyncExitStack(), AsyncExitStack()
        await first.enter_async_context(executor)
        await second.enter_async_context(other)
        await first.aclose()
        assert (await (await other.session()).execute("1 + 1")).text == "2"
        await asyncio.create_task(second.aclose())

    run(main)


def test_a_generator_that_another_task_finishes_leaves_the_block(executor: AsyncExecutor) -> None:
    async def main() -> None:
        async def fixture() -> AsyncIterator[AsyncSession]:
            async with executor:
                yield await executor.session()

        generator = fixture()
        session = await asyncio.create_task(step(generator))
        assert (await session.execute("1 + 1")).text == "2"
        with pytest.raises(StopAsyncIteration):
            await asyncio.create_task(step(generator))

    run(main)


async def step(generator: AsyncIterator[AsyncSession]) -> AsyncSession:
    return await anext(generator)


@pytest.mark.parametrize("error", [ValueError("mine"), Closed("mine"), KeyError(), SystemExit(3)], ids=repr)
def test_errors_of_the_block_are_raised_unchanged(executor: AsyncExecutor, error: BaseException) -> None:
    async def main() -> None:
        with pytest.raises(type(error)) as caught:
            await block()
        assert caught.value is error

    async def block() -> None:
        async with executor:
            await executor.session()
            raise error

    run(main)


@pytest.mark.parametrize("how", ["task", "scope", *at_night("timeout")])
def test_a_block_that_is_cancelled_ends_whole_and_the_cancellation_comes_out(executor: AsyncExecutor, how: str) -> None:
    before = runtime_directories()
    begun = asyncio.Event()

    async def block() -> None:
        async with executor:
            session = await executor.session()
            await session.execute(SLEEPS, on_output=lambda _: begun.set())

    async def main() -> None:
        if how == "task":
            task = asyncio.create_task(block())
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        elif how == "scope":
            with anyio.move_on_after(1.0) as scope:
                await block()
            assert scope.cancelled_caught
        else:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.0):
                    await block()
        assert runtime_directories() == before
        assert executor.sessions() == ()

    run(main)


def test_a_block_that_is_cancelled_while_it_ends_ends_first(executor: AsyncExecutor) -> None:
    before = runtime_directories()

    async def main() -> None:
        left = asyncio.Event()

        async def block() -> None:
            async with executor:
                await executor.session()
                left.set()

        task = asyncio.create_task(block())
        await left.wait()
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert runtime_directories() == before

    run(main)


def test_an_executor_is_entered_once_at_a_time(executor: AsyncExecutor) -> None:
    async def main() -> None:
        async with executor:
            with pytest.raises(InvalidRequest, match="already open"):
                await executor.__aenter__()
            assert (await (await executor.session()).execute("1 + 1")).text == "2"
        with pytest.raises(Closed, match="async with"):
            await executor.session()
        async with executor:
            assert (await (await executor.session()).execute("1 + 2")).text == "3"
        await executor.__aexit__(None, None, None)

    run(main)


def test_an_executor_may_be_opened_in_one_loop_after_the_other(executor: AsyncExecutor) -> None:
    for _ in range(2):
        run(lambda: entered(executor))


async def entered(executor: AsyncExecutor) -> None:
    async with executor:
        assert (await (await executor.session()).execute("1 + 1")).text == "2"


UNCLOSED = """
import asyncio, sys
from kernelexec import AsyncExecutor

async def main():
    executor = await AsyncExecutor(isolation="local", workspace=sys.argv[1], config={"quiet": True, "preload": ()}).open()
    print((await (await executor.session()).execute("1 + 1")).text)

asyncio.run(main())
"""


def test_a_loop_that_ends_without_close_ends(tmp_path: Path) -> None:
    words = [sys.executable, "-c", UNCLOSED, str(tmp_path)]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=BOUND, check=False)
    assert (ended.returncode, ended.stdout) == (0, "2\n"), ended.stderr


def test_a_task_of_ours_that_fails_ends_its_session_alone_and_is_reported(
    executor: AsyncExecutor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole, failing = KernelProcess.record_exit, asyncio.Event()

    async def record_exit(process: KernelProcess, provisioner: KernelexecProvisioner, *, is_killed: bool = False) -> None:
        if "bad" in str(process.runtime.path) and not is_killed:
            await failing.wait()
            message = "inside"
            raise ZeroDivisionError(message)
        await whole(process, provisioner, is_killed=is_killed)

    async def main() -> None:
        async with executor:
            bad, good = await executor.session("bad"), await executor.session("good")
            begun = asyncio.Event()
            running = asyncio.create_task(bad.execute(SLEEPS, on_output=lambda _: begun.set()))
            waiting = asyncio.create_task(bad.execute("1"))
            await begun.wait()
            failing.set()
            result = await running
            assert (result.status, result.state, result.stdout) == ("error", "unknown", "begun\n")
            assert ((await waiting).status, (await waiting).exit_code) == ("aborted", -1)
            await bad.close()
            with pytest.raises(Closed, match=r"'bad' is closed\. A part of it failed: ZeroDivisionError\('inside'\)") as caught:
                await bad.execute("1")
            assert isinstance(caught.value.__cause__, ZeroDivisionError)
            assert (await good.execute("1 + 1")).text == "2"
            assert executor.sessions() == ("good",)

    monkeypatch.setattr(KernelProcess, "record_exit", record_exit)
    with caplog.at_level(logging.ERROR, logger="kernelexec"):
        run(main)
    [record] = caplog.records
    assert record.message == "kernelexec.tasks_failed"
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ZeroDivisionError)


def test_a_failure_of_the_executors_own_is_raised_as_itself_unless_the_block_raises(
    executor: AsyncExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> None:
        message = "inside"
        raise ZeroDivisionError(message)

    async def main() -> None:
        with pytest.raises(ZeroDivisionError, match="inside"):
            await block(None)
        with pytest.raises(KeyError):
            await block(KeyError())

    async def block(error: Exception | None) -> None:
        async with executor:
            for _ in range(100):  # steps of the loop, in which its own task fails and ends it
                await asyncio.sleep(0)
            with pytest.raises(Closed, match="The executor is closed"):
                await executor.session()
            if error is not None:
                raise error

    monkeypatch.setattr(executor._directories, "sweep", fail)
    run(main)
