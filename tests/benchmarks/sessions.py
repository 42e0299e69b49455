"""Sessions: how soon the first result is there, with the data stack; and two hundred at once."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import psutil

from kernelexec import AsyncExecutor, AsyncSession
from tests.benchmarks.peers import PlainAsync, PlainBlocking
from tests.support.engine import IMAGE

IMPORTS = "import matplotlib.pyplot, numpy, pandas\n1+1"
_IDLE_SECONDS, _READY_SECONDS = 30.0, 120.0
_CELLS = 5
_TURN, _PAUSE = 100, 0.05
_CONTAINER = {"image": IMAGE, "layout": "classic"}
Found = dict[str, list[float]]
_STOCK, _OURS = "jupyter_client, stock ipykernel", "kernelexec"
FLOODS = {
    "10 MB in 100-byte lines": "for _ in range(100_000): print('x' * 99)",
    "100k prints": "for number in range(100_000): print(number)",
}


@asynccontextmanager
async def opened(isolation: str = "local", **config: Any) -> AsyncIterator[AsyncExecutor]:
    """An executor that has all ready that it makes ready ahead."""
    with tempfile.TemporaryDirectory() as directory:
        async with AsyncExecutor(isolation, workspace=directory, config={"quiet": True, **config}) as executor:
            forks, pool = executor._registry._forks, executor._registry._pool
            if forks is not None:
                await (
                    await executor.session("ahead")
                ).close()  # where the environment names a path to load from, none begins before
                assert forks.failure is None, forks.failure
                await until(
                    lambda: (server := forks.find_serving()) is not None and len(server.imported) == len(forks._modules)
                )
            if pool is not None:
                await until(lambda: len(pool._ready) == executor.config.pool.size)
            yield executor


async def until(true: Callable[[], bool]) -> None:
    """Wait, TimeoutError after a while, until that is so."""
    async with asyncio.timeout(_READY_SECONDS):
        while not true():  # noqa: ASYNC110 - kernels that are started ahead report to no caller
            await asyncio.sleep(0.05)


async def timed(call: Callable[[], Awaitable[Any]]) -> float:
    """How long it takes, in milliseconds."""
    began = time.perf_counter()
    await call()
    return (time.perf_counter() - began) * 1000


async def starts(rounds: int) -> Found:
    """From asking for a session to its first result, which needs the data stack; each way once in every round."""
    actual: Found = {}
    async with AsyncExitStack() as stack:
        cold = await stack.enter_async_context(opened())
        wrapped = await stack.enter_async_context(opened("bubblewrap"))
        unforked = await stack.enter_async_context(opened(fork_server=False))
        warm = await stack.enter_async_context(opened(pool={"size": 1}))
        there = await stack.enter_async_context(opened("container", container=_CONTAINER))
        ready = await stack.enter_async_context(opened("container", container=_CONTAINER, pool={"size": 1}))
        ways: dict[str, Callable[[int], Awaitable[AsyncSession | None]]] = {
            _STOCK: _stock,
            "local": lambda number: _first(cold, number),
            "local, not forked": lambda number: _first(unforked, number),
            "bubblewrap": lambda number: _first(wrapped, number),
            "local, pool": lambda number: _first(warm, number),
            "container": lambda number: _first(there, number),
            "container, pool": lambda number: _first(ready, number),
        }
        for number in range(rounds + 1):
            for name, way in ways.items():
                for executor in (warm, ready):
                    await _filled(executor)
                began = time.perf_counter()
                session = await way(number)
                if number:  # the first round warms disks and engines
                    actual.setdefault(name, []).append((time.perf_counter() - began) * 1000)
                if session is not None:
                    await session.close()
    return actual


async def _filled(executor: AsyncExecutor) -> None:
    pool = executor._registry._pool
    if pool is not None:
        await until(lambda: bool(pool._ready))
    await asyncio.sleep(0.3)


async def _first(executor: AsyncExecutor, number: int) -> AsyncSession:
    session = await executor.session(f"s{number}")
    assert (await session.execute(IMPORTS)).ok
    return session


async def _stock(_number: int) -> None:
    peer = PlainAsync()
    await peer.open()
    try:
        await (await peer.session())(IMPORTS)
    finally:
        await peer.close()


async def restarts(rounds: int) -> Found:
    """From asking for a session, and for a restart of its kernel, to the result of ``1+1``, in milliseconds, in turn."""
    actual: Found = {}
    for isolation, options in (("local", {}), ("container", {"container": _CONTAINER})):
        cold, again = actual.setdefault(f"{isolation}, cold", []), actual.setdefault(f"{isolation}, restart", [])
        async with opened(isolation, **options) as executor:
            for number in range(rounds + 1):
                began = time.perf_counter()
                session = await executor.session(f"s{number}")
                await session.execute("1+1")
                created = time.perf_counter()
                await session.restart()
                await session.execute("1+1")
                if number:  # the first round warms disks and engines
                    cold.append((created - began) * 1000)
                    again.append((time.perf_counter() - created) * 1000)
                await session.close()
    return actual


async def beside(rounds: int, cells: int) -> dict[str, Found]:
    """Cells, and floods of output, in kernels of jupyter_client's blocking client and in ours, in turn, in milliseconds.

    Turns are short, so that a spell in which the machine is slow falls on both, and long enough that p95 is not that of the
    first three cells of a turn, for which memory has cooled and processes change their processor (2 ms, 0.7 and 0.3 more in
    either). The blocking client stops our event loop too: what waits for that is done in a pause before each turn, of either
    side.
    """
    actual: dict[str, Found] = {name: {_STOCK: [], _OURS: []} for name in ("a cell 1+1", *FLOODS)}
    turn = min(cells, _TURN)
    parts = (({"a cell 1+1": "1+1"}, rounds * cells // turn, turn), (FLOODS, rounds, 1))
    for codes, turns, times in parts:  # in kernels of their own
        async with AsyncExitStack() as stack:
            peer = PlainBlocking()
            await peer.open()
            stack.push_async_callback(peer.close)
            stock, executor = await peer.session(), await stack.enter_async_context(opened())
            session = await executor.session()

            async def theirs(code: str, stock: Callable[[str], Any] = stock) -> None:
                stock(code)  # it blocks, and nothing else runs

            async def ours(code: str, session: AsyncSession = session) -> None:
                await session.execute(code)

            for number in range(turns + 1):
                for name, run in ((_STOCK, theirs), (_OURS, ours)):
                    await asyncio.sleep(_PAUSE)
                    for title, code in codes.items():
                        taken = [await timed(partial(run, code)) for _ in range(times)]
                        if number:  # the first turn warms both
                            actual[title][name] += taken
    return actual


async def at_once(sessions: int, idle_seconds: float = _IDLE_SECONDS) -> dict[str, float]:
    """So many sessions at once: made, five cells each with the data stack, left idle, ended."""
    own = psutil.Process()
    firsts, cells = list[float](), list[float]()

    async def agent(executor: AsyncExecutor, number: int) -> None:
        firsts.append(await timed(lambda: _first(executor, number)))
        session = await executor.session(f"s{number}")
        cells.extend([await timed(lambda: session.execute("1+1")) for _ in range(_CELLS - 1)])

    async with opened(capacity={"sessions": sessions}) as executor:
        descriptors = own.num_fds()
        began = time.perf_counter()
        await asyncio.gather(*(agent(executor, number) for number in range(sessions)))
        created = time.perf_counter() - began
        kernels = own.children(recursive=True)
        shares = [kernel.memory_full_info().pss / 2**20 for kernel in kernels]
        held = (own.num_fds() - descriptors) / sessions
        await asyncio.sleep(min(5.0, idle_seconds))
        busy = _seconds(own, kernels)
        await asyncio.sleep(idle_seconds)
        idle = (_seconds(own, kernels) - busy) / idle_seconds * 100
        began = time.perf_counter()
    ended = time.perf_counter() - began
    return {
        "made, five cells each, s": created,
        "ended, s": ended,
        "first result p50, ms": statistics.median(firsts),
        "first result p95, ms": percentile(firsts, 0.95),
        "cell p50, ms": statistics.median(cells),
        "cell p95, ms": percentile(cells, 0.95),
        "PSS in all, GiB": sum(shares) / 1024,
        "PSS of a kernel, median, MiB": statistics.median(shares),
        "CPU of all while idle, %": idle,
        "descriptors a session": held,
        "processes left": len(own.children(recursive=True)),
    }


def _seconds(own: psutil.Process, kernels: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in (own, *kernels))


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]
