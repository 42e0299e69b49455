"""What the cells of ten ordinary sessions take next to one that computes all the time, and next to one that is hostile.

python -m tests.load.neighbours                 ten minutes each
python -m tests.load.neighbours --minutes 0.5   a short one

Exit status 1 where an answer was wrong, or the slowest hundredth took more than 1.5 times as long next to the hostile session.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from kernelexec import AsyncExecutor, AsyncSession, KernelexecError
from tests.hostile.cells import CELLS, MEANS

Neighbour = Callable[[AsyncSession, float], Coroutine[Any, Any, None]]
#: Ordinary sessions; what one pauses between two cells, in seconds, on average; the largest ratio that is allowed.
_SESSIONS, _PAUSE, _MOST = 10, 0.5, 1.5
#: How long a hostile cell may run, in seconds.
_HOSTILE_SECONDS = 2.0
#: Displays that are dear to read.
DISPLAYS = {
    "application/vnd.plotly.v1+json": "{'data': [], 'layout': {'title': ' ' * 80_000 + 'x'}}",
    "application/vnd.vegalite.v5+json": "{'title': '&' * 1_000_000, 'mark': 'bar'}",
    "application/json": "[[] for _ in range(2_000_000)]",
    "application/vnd.jupyter.widget-view+json": "{'model_id': 'x' * 1_000_000}",
    "text/html": "'<' * 900_000",
    "text/markdown": "'|' * 900_000",
    "text/latex": "'$' * 900_000",
    "image/svg+xml": "'<svg>' * 200_000",
    "image/png": "'A' * 5_000_000",
}
#: Values that are dear to read.
VALUES = ("{n * (2**61 - 1) for n in range(40_000)}", "[[] for _ in range(1_000_000)]", "'x' * 50_000_000", "10**4000")


async def work_in(session: AsyncSession, number: int, until: float, seconds: list[float]) -> None:
    """Count in a session, and note how long each cell takes."""
    pauses, count = random.Random(number), 0  # noqa: S311 - a test's numbers are no secrets
    assert (await session.execute("count = 0")).ok
    while time.monotonic() < until:
        count += 1
        begun = time.perf_counter()
        result = await session.execute("count += 1; print(count)")
        seconds.append(time.perf_counter() - begun)
        assert result.text == f"{count}\n", f"session {number}: {result.text[:300]}"
        await asyncio.sleep(pauses.uniform(0, 2 * _PAUSE))


async def compute(session: AsyncSession, until: float) -> None:
    await session.execute("while True: sum(range(1_000_000))", timeout=max(1.0, until - time.monotonic()))


async def attack(session: AsyncSession, until: float) -> None:
    """Run hostile cells, show what is dear to read and read it, one after the other."""
    choices = random.Random(1)  # noqa: S311 - as above
    while time.monotonic() < until:
        with suppress(KernelexecError):  # what is refused
            await choices.choice((_run_cell, _show, _get))(session, choices)


async def _run_cell(session: AsyncSession, choices: random.Random) -> None:
    cell = choices.choice(list(CELLS.values()))
    await session.execute(MEANS, timeout=10)
    result = await session.execute(cell.code, timeout=min(cell.timeout, _HOSTILE_SECONDS))
    _ = result.text, result.to_json()


async def _show(session: AsyncSession, choices: random.Random) -> None:
    mime, value = choices.choice(list(DISPLAYS.items()))
    result = await session.execute(f"display({{{mime!r}: {value}, 'text/plain': 'x'}}, raw=True)", timeout=10)
    _ = result.text, result.to_json()


async def _get(session: AsyncSession, choices: random.Random) -> None:
    await session.execute(f"value = {choices.choice(VALUES)}", timeout=10)
    await session.variables()
    await session.get("value")


async def measure(
    neighbour: Callable[[AsyncSession, float], Coroutine[Any, Any, None]], minutes: float, directory: Path
) -> list[float]:
    """Return how long each cell of the ordinary sessions took, in seconds."""
    seconds: list[float] = []
    async with AsyncExecutor("local", workspace=directory) as executor:
        sessions = [await executor.session(f"s{number}") for number in range(_SESSIONS)]
        other = await executor.session("neighbour")
        until = time.monotonic() + minutes * 60
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(neighbour(other, until))
            for number, session in enumerate(sessions):
                tasks.create_task(work_in(session, number, until, seconds))
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.load.neighbours", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    chosen = parser.parse_args()
    slowest = {}
    for neighbour in (compute, attack):
        with tempfile.TemporaryDirectory() as directory:
            seconds = asyncio.run(measure(neighbour, chosen.minutes, Path(directory)))
        percentiles = statistics.quantiles(seconds, n=100)
        slowest[neighbour] = percentiles[98]
        shown = ", ".join(f"p{n} {percentiles[n - 1] * 1000:.1f} ms" for n in (50, 90, 99))
        print(f"{neighbour.__name__}: {len(seconds)} cells, {shown}, longest {max(seconds) * 1000:.0f} ms", flush=True)
    ratio = slowest[attack] / slowest[compute]
    print(f"p99 next to the hostile session: {ratio:.2f} times that next to the one that computes")
    sys.exit(1 if ratio > _MOST else 0)


if __name__ == "__main__":
    main()
