"""``python -m tests.benchmarks [--smoke] [--rounds N]``: kernelexec beside its peers, in one run, as medians and ratios.

Every round measures every peer, in an order that rotates, so that other work on the machine falls on all of them. Read the
ratios; absolute figures are those of the machine. ``--ladder`` times how fast cells over their timeout are ended
instead, ``--containers`` where the time of a container's start goes, ``--sessions`` how sessions start and what many cost.
``--json FILE`` and ``--chart FILE`` keep what ``--sessions`` found.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from tests.benchmarks.containers import show_containers
from tests.benchmarks.ladder import show_ladder
from tests.benchmarks.peers import PEERS, missing
from tests.benchmarks.report import draw, show_figures, show_times, write_json
from tests.benchmarks.sessions import at_once, calls, restarts, starts

ONE_LINE = "print('x' * 10_000_000)"
MANY_LINES = "for _ in range(100_000): print('x' * 99)"
MEASURES = {
    "cold": "cold start to first result, s",
    "second": "second session, s",
    "p50": "cell p50, ms",
    "p95": "cell p95, ms",
    "one": "10 MB in one print, s",
    "lines": "100k lines of 100 B, s",
    "lost": "of these lost, %",
    "many": "20 sessions x 5 cells, s",
    "memory": "MiB PSS a session",
}


async def call(execute: Callable[[str], Any], code: str) -> int:
    """Run a cell as its peer's users would: awaited, or blocking this thread."""
    found = execute(code)
    size: int = await found if asyncio.iscoroutine(found) else found
    return size


async def timed(execute: Callable[[str], Any], code: str) -> float:
    start = time.perf_counter()
    await call(execute, code)
    return time.perf_counter() - start


async def measure(make: Callable[[], Any], cells: int, sessions: int) -> dict[str, float]:
    found: dict[str, float] = {}
    start = time.perf_counter()
    peer = make()
    await peer.open()
    try:
        execute = await peer.session()
        await call(execute, "1+1")
        found["cold"] = time.perf_counter() - start
        start = time.perf_counter()
        await call(await peer.session(), "1+1")
        found["second"] = time.perf_counter() - start
        times = sorted([await timed(execute, "1+1") * 1000 for _ in range(cells)])
        found["p50"], found["p95"] = statistics.median(times), times[int(len(times) * 0.95)]
        sizes = []
        for name, code in (("one", ONE_LINE), ("lines", MANY_LINES)):
            start = time.perf_counter()
            sizes.append(await call(execute, code))
            found[name] = time.perf_counter() - start
        found["lost"] = 100 * (1 - min(1.0, sum(sizes) / 20_000_001))
    finally:
        await peer.close()
    return found | await many(make, sessions)


async def many(make: Callable[[], Any], sessions: int) -> dict[str, float]:
    peer = make()
    await peer.open()
    start = time.perf_counter()

    async def agent() -> None:
        execute = await peer.session()
        for _ in range(5):
            found = execute if asyncio.iscoroutinefunction(execute) else lambda code: asyncio.to_thread(execute, code)
            await found("1+1")

    try:
        await asyncio.gather(*(agent() for _ in range(sessions)))
        seconds = time.perf_counter() - start
        kernels = psutil.Process().children(recursive=True)
        memory = sum(kernel.memory_full_info().pss for kernel in kernels) / sessions / 2**20
    finally:
        await peer.close()
    return {"many": seconds, "memory": memory}


def run(rounds: int, cells: int, sessions: int) -> dict[str, dict[str, list[float]]]:
    absent = missing()
    names = [name for name in PEERS if name not in absent]
    found: dict[str, dict[str, list[float]]] = {name: {key: [] for key in MEASURES} for name in names}
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            try:
                values = asyncio.run(measure(PEERS[name], cells, sessions))
            except Exception as exc:  # noqa: BLE001 - a peer that fails is a finding
                print(f"round {number + 1}: {name} FAILED: {type(exc).__name__}: {str(exc)[:200]}", flush=True)
                continue
            for key, value in values.items():
                found[name][key].append(value)
            print(f"round {number + 1}: {name} done", flush=True)
    for name in absent:
        print(f"not installed, so not measured: {name} (pip install '.[benchmarks]')")
    return found


def show(found: dict[str, dict[str, list[float]]]) -> None:
    table = Table(title="medians, and in brackets the ratio to the first column")
    table.add_column("")
    for name in found:
        table.add_column(name, justify="right")
    base = next(iter(found.values()))
    table.add_row("rounds that ended", *(str(len(values["many"])) for values in found.values()))
    for key, title in MEASURES.items():
        row = []
        for values in found.values():
            if not values[key]:
                row.append("failed")
                continue
            middle, first = statistics.median(values[key]), statistics.median(base[key])
            ratio = f" ({middle / first:.2f})" if first > 0 and key != "lost" else ""
            row.append(f"{middle:.3g}{ratio}" if key != "lost" else f"{middle:.1f}")
        table.add_row(title, *row)
    Console(width=170).print(table)


def show_sessions(chosen: argparse.Namespace) -> None:
    rounds, cells, sessions, idle = (1, 5, 3, 1.0) if chosen.smoke else (max(10, chosen.rounds), 300, 200, 30.0)
    found = asyncio.run(starts(rounds, containers=True)) | asyncio.run(restarts(rounds, containers=True))
    base = next(iter(found))
    title = "session to first result, with numpy, pandas and matplotlib imported"
    show_times(title, found, base)
    by_call = asyncio.run(calls(cells))
    show_times("a cell 1+1, and the same by a tool call over MCP stdio", by_call, "cell")
    together = asyncio.run(at_once(sessions, idle))
    show_figures(f"{sessions} sessions at once", together)
    if chosen.json is not None:
        write_json(chosen.json, {"starts_ms": found, "calls_ms": by_call, f"{sessions} sessions": together})
    if chosen.chart is not None:
        draw(chosen.chart, title, found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="one short round: fails unless everything runs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ladder", action="store_true", help="how fast, and by which rung, overruns are ended")
    parser.add_argument("--containers", action="store_true", help="how long a container's kernel takes, stage by stage")
    parser.add_argument("--sessions", action="store_true", help="how soon sessions give results, and what 200 of them cost")
    parser.add_argument("--json", type=Path, help="where --sessions writes all its figures")
    parser.add_argument("--chart", type=Path, help="where --sessions draws its times, as PNG")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    if chosen.containers or chosen.smoke:
        show_containers(*((1, 20) if chosen.smoke else (max(10, chosen.rounds),)))
    if chosen.ladder or chosen.smoke:
        show_ladder(rounds=1 if chosen.smoke else chosen.rounds)
    if chosen.sessions or chosen.smoke:
        show_sessions(chosen)
    if chosen.ladder or chosen.containers or chosen.sessions:
        return
    found = run(1, 20, 3) if chosen.smoke else run(chosen.rounds, 200, 20)
    show(found)
    if chosen.smoke and (unmeasured := [name for name in PEERS if name not in found or not found[name]["many"]]):
        sys.exit(f"not everything runs: {', '.join(unmeasured)}")


if __name__ == "__main__":
    main()
