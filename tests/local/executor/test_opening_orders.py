"""Opening and closing in any order and at any moment: no directory, socket, process or descriptor is left."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kernelexec import AsyncExecutor, AsyncSession, Closed, Executor, KernelStartFailed
from tests.support.night import at_night
from tests.support.pace import BOUND, until_equal
from tests.support.remains import descriptors, marked_processes, runtime_directories

#: Steps of the event loop after which the end comes, of which those beyond some are followed by 10 ms each; and seconds.
STEPS, STEPS_MAX = [range(0, 48, 6), *at_night(range(3, 48, 6))], 24
DELAYS = (0, 0.002, 0.01, 0.03, 0.1, 0.3)


@pytest.fixture(autouse=True)
def leaves_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    before = Counter(descriptors())
    yield
    gc.collect()  # what never began is this test's, and not the next one's
    until_equal(runtime_directories, set())
    until_equal(marked_processes, {})
    if end_the_loop_during_the_first_session.__name__ not in request.node.name:  # it may cancel a thread that opens a file
        until_equal(lambda: Counter(descriptors()) - before, Counter())


async def take_steps(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
    if count > STEPS_MAX:
        await asyncio.sleep((count - STEPS_MAX) / 100)


def run_each(order: Callable[[AsyncExecutor, int], Any], all_steps: range, workspace: Path, **options: Any) -> None:
    async def main() -> None:
        executor = AsyncExecutor("local", workspace=workspace, **options)
        for steps in all_steps:
            await order(executor, steps)
            until_equal(runtime_directories, set())

    asyncio.run(main())


async def close_soon(executor: AsyncExecutor, steps: int) -> None:
    await executor.open()
    await take_steps(steps)
    await executor.close()


async def close_with_its_socket(executor: AsyncExecutor, steps: int) -> None:
    await executor.open()
    executor.start_control()
    await take_steps(steps)
    await executor.close()


async def cancel_the_opening(executor: AsyncExecutor, steps: int) -> None:
    opening = asyncio.create_task(executor.open())
    await take_steps(steps)
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    await executor.close()


async def close_during_the_opening(executor: AsyncExecutor, steps: int) -> None:
    opening = asyncio.create_task(executor.open())
    await take_steps(steps)
    await executor.close()
    await asyncio.gather(opening, return_exceptions=True)
    await executor.close()


async def close_during_the_first_session(executor: AsyncExecutor, steps: int) -> None:
    await executor.open()
    opening = asyncio.create_task(executor.session("a"))
    await take_steps(steps)
    await executor.close()
    (outcome,) = await asyncio.gather(opening, return_exceptions=True)
    assert isinstance(outcome, AsyncSession | Closed | KernelStartFailed), outcome


async def cancel_the_first_session_and_close(executor: AsyncExecutor, steps: int) -> None:
    await executor.open()
    opening = asyncio.create_task(executor.session("a"))
    await take_steps(steps)
    opening.cancel()
    await executor.close()
    await asyncio.gather(opening, return_exceptions=True)


async def end_the_loop_during_the_first_session(_: AsyncExecutor, steps: int) -> None:
    async def main() -> None:
        executor = await AsyncExecutor("local", workspace="temporary").open()
        asyncio.create_task(executor.session("a"))  # noqa: RUF006 - it ends with its loop
        await take_steps(steps)

    await asyncio.to_thread(asyncio.run, main())


@pytest.mark.parametrize(
    "order",
    [
        close_soon,
        close_with_its_socket,
        cancel_the_opening,
        close_during_the_opening,
        close_during_the_first_session,
        cancel_the_first_session_and_close,
        end_the_loop_during_the_first_session,
    ],
    ids=lambda order: order.__name__,
)
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # of tasks that end before they begin
@pytest.mark.parametrize("all_steps", STEPS)
def test_no_order_of_asynchronous_calls_leaves_a_directory(order: Any, all_steps: range, tmp_path: Path) -> None:
    run_each(order, all_steps, tmp_path)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # as above
@pytest.mark.parametrize("all_steps", STEPS)
def test_a_failed_start_leaves_no_directory(all_steps: range, tmp_path: Path) -> None:
    async def fail(executor: AsyncExecutor, steps: int) -> None:
        await executor.open()
        with pytest.raises(KernelStartFailed):
            await executor.session("a")
        await take_steps(steps)
        await executor.close()

    run_each(fail, all_steps, tmp_path, config={"programs": {"prefix": "false", "prefix_kernel": True}})


def test_no_order_of_blocking_calls_leaves_a_directory(tmp_path: Path) -> None:
    for delay in DELAYS:
        executor = Executor("local", workspace=tmp_path).open()
        outcomes: list[object] = []
        opening = threading.Thread(target=open_session, args=(executor, outcomes))
        opening.start()
        opening.join(delay)
        executor.close()
        opening.join(BOUND)
        assert len(outcomes) == 1
        until_equal(runtime_directories, set())
        executor.open().close()
        with executor:
            pass
        until_equal(runtime_directories, set())


def open_session(executor: Executor, outcomes: list[object]) -> None:
    try:
        outcomes.append(executor.session("a"))
    except (Closed, KernelStartFailed) as exc:
        outcomes.append(exc)


def test_an_interrupt_at_any_moment_leaves_no_directory(tmp_path: Path) -> None:
    def use() -> None:
        with Executor("local", workspace=tmp_path) as executor:
            executor.session("a").execute("import time; time.sleep(600)")

    handler, wakeup = signal.signal(signal.SIGINT, signal.default_int_handler), signal.set_wakeup_fd(-1)
    try:
        for delay in (0.0005, 0.001, *DELAYS, 1.5):
            timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the interrupt may come before the call
                timer.start()
                use()
            with suppress(KeyboardInterrupt):
                timer.join()
            until_equal(runtime_directories, set())
    finally:
        signal.signal(signal.SIGINT, handler)
        signal.set_wakeup_fd(wakeup)


@pytest.mark.parametrize("all_steps", STEPS)
def test_an_opening_that_is_cancelled_again_and_again_leaves_no_kernel(all_steps: range, tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncExecutor("local", workspace=tmp_path, config={"fork_server": False}) as executor:
            for steps in all_steps:
                opening = asyncio.create_task(executor.session("a"))
                await take_steps(steps)
                while not opening.done():
                    opening.cancel()
                    await asyncio.sleep(0)
                if not opening.cancelled():
                    await opening.result().close()
                assert executor.sessions() == ()
                await asyncio.to_thread(until_equal, marked_processes, {})

    asyncio.run(main())
