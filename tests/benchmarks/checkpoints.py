"""Checkpoints of a kernel with so much state: what they cost, beside pickling the state and beside running its cells again."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any, TypeVar

import psutil

from kernelexec import AsyncExecutor, AsyncSession
from kernelexec.kernel.process import KernelProcess
from tests.benchmarks.report import show_times
from tests.support.engine import IMAGE

MIB = 2**20
SIZES = {"no state": 0, "100 MiB": 100 * MIB, "1 GiB": 1024 * MIB, "4 GiB": 4096 * MIB}
#: A frame of floats, written once, so that each page is in memory.
STATE = "import numpy as np, pandas as pd\nstate = pd.DataFrame({{'value': np.arange({count}, dtype=float)}})\nlen(state)"
PICKLE = "import {module} as module\ncontent = module.dumps({{'state': state}})\nlen(content)"
UNPICKLE = "state = module.loads(content)['state']\nlen(state)"
#: The cells whose cost the modes change: one that cannot change anything, and one that can.
CELLS = ("1+1", "x = 1")
MODES = ("off", "named", "auto", "each")
_BUDGET = 600.0

Times = dict[str, list[float]]
T = TypeVar("T")


def make_executor(isolation: str, mode: str) -> AsyncExecutor:
    KernelProcess.checkpoints_bytes = 8192 * MIB
    config = {"checkpoints": mode}
    container: Any = {"image": IMAGE, "memory": "16g"} if isolation == "container" else {}
    return AsyncExecutor(isolation, workspace="temporary", config=config, **container)


async def run(session: AsyncSession, code: str) -> None:
    (await session.execute(code, timeout=_BUDGET)).raise_for_error()


async def clock(times: Times, name: str, call: Awaitable[T]) -> T:
    """Note the milliseconds of a call."""
    begin = time.perf_counter()
    value = await call
    times.setdefault(name, []).append(1000 * (time.perf_counter() - begin))
    return value


def memory_mib() -> float:
    """Return the memory of all kernels on this machine that are children of this process: shared pages count once."""
    total = 0.0
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # a checkpoint that was dropped ends in a moment
            total += child.memory_full_info().pss
    return total / MIB


async def go_back(isolation: str, size: int, rounds: int) -> tuple[Times, float | None]:
    """Return the milliseconds of each step, and the memory in MiB that a checkpoint adds, of local kernels."""
    times: Times = {}
    added = []
    async with make_executor(isolation, "named") as executor:
        session = await executor.session()
        make = STATE.format(count=size // 8)
        await run(session, make)
        for _ in range(rounds):
            before = memory_mib()
            checkpoint = await clock(times, "checkpoint", session.checkpoint())
            added.append(memory_mib() - before)
            await run(session, "state = None")
            await clock(times, "restore", session.restore(checkpoint))
            await clock(times, "the first cell after it", run(session, "len(state)"))
            await checkpoint.drop()
            branch = await clock(times, "branch", session.branch(files="shared"))
            await clock(times, "the first cell in it", run(branch, "len(state)"))
            await clock(times, "its end", branch.close())
        await pickled(session, isolation, times, rounds)
        for _ in range(rounds):
            await clock(times, "restart, and run the cell again", again(session, make))
    return times, statistics.median(added) if isolation == "local" else None


async def pickled(session: AsyncSession, isolation: str, times: Times, rounds: int) -> None:
    """Measure the other way to keep the state: as text in the memory. The image of containers has no dill."""
    module = "dill" if isolation == "local" else "pickle"
    for _ in range(rounds):
        await clock(times, f"{module}: dumps", run(session, PICKLE.format(module=module)))
        await clock(times, f"{module}: loads", run(session, UNPICKLE))
        await run(session, "del content")


async def again(session: AsyncSession, make: str) -> None:
    await session.restart()
    await run(session, make)


async def cells(isolation: str, size: int, count: int) -> Times:
    """Return the milliseconds of cells in each mode."""
    times: Times = {}
    for mode in MODES:
        async with make_executor(isolation, mode) as executor:
            session = await executor.session()
            await run(session, STATE.format(count=size // 8))
            for code in CELLS:
                for _ in range(count):
                    await clock(times, f"{code}, {mode}", run(session, code))
    return times


def show_checkpoints(rounds: int, count: int, sizes: dict[str, int]) -> dict[str, Any]:
    """Measure and show; sizes that do not fit four times into the free memory are left out, and named."""
    actual: dict[str, Any] = {}
    for isolation in ("local", "container"):
        for name, size in sizes.items():
            if 4 * size > psutil.virtual_memory().available:
                print(f"{isolation}, {name}: not measured, since it does not fit into the memory of this machine.")
                continue
            times, added = asyncio.run(go_back(isolation, size, rounds))
            title = f"{isolation}, {name}"
            memory = "" if added is None else f": a checkpoint adds {added:.1f} MiB until one side writes"
            show_times(f"{title}{memory}", times, "checkpoint")
            actual[title] = times if added is None else {**times, "added, MiB": added}
            if size <= SIZES["100 MiB"]:
                actual[f"{title}, cells"] = by_cell = asyncio.run(cells(isolation, size, count))
                show_times(f"{title}: a cell, by the mode of checkpoints", by_cell, next(iter(by_cell)))
    return actual
