"""``python -m tests.benchmarks [--smoke] [--rounds N]``: kernelexec beside its peers, in one run, as medians and ratios.

Every round measures every peer, in an order that rotates, so that other work on the machine falls on all of them. Read the
ratios; absolute figures are those of the machine. All parts run, or those that are named: ``--peers``, ``--sessions`` (how
soon they give results, what many cost), ``--programs`` (whole processes: imports, helps, a cell, a notebook), ``--mcp`` (how
soon a server answers, what a call costs), ``--containers`` (where the time of a start goes), ``--checkpoints`` (what going
back costs, by the size of the state) and ``--timeouts`` (how fast cells over their timeout are ended).
What was found is shown as tables, written as JSON and drawn. ``--notebooks DIRECTORY``
instead runs each notebook of a directory through nbclient and through kernelexec, and fails if outputs differ.
"""

from __future__ import annotations

import argparse
import asyncio
import os
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

from tests.benchmarks.checkpoints import SIZES, show_checkpoints
from tests.benchmarks.cold_start import BARE, measure_memory, measure_starts
from tests.benchmarks.containers import show_containers
from tests.benchmarks.mcp import calls, throughput
from tests.benchmarks.notebooks import compare_notebooks
from tests.benchmarks.peers import ALONE, PEERS, missing
from tests.benchmarks.programs import measure_programs
from tests.benchmarks.report import draw, show_figures, show_times, write_json
from tests.benchmarks.sessions import at_once, beside, restarts, starts
from tests.benchmarks.timeouts import show_timeouts

ONE_LINE = "print('x' * 10_000_000)"
MANY_LINES = "for _ in range(100_000): print('x' * 99)"
FIRST = "session to first result, with numpy, pandas and matplotlib imported"
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
    actual = execute(code)
    size: int = await actual if asyncio.iscoroutine(actual) else actual
    return size


async def timed(execute: Callable[[str], Any], code: str) -> float:
    start = time.perf_counter()
    await call(execute, code)
    return time.perf_counter() - start


async def measure(make: Callable[[], Any], cells: int, sessions: int) -> dict[str, float]:
    actual: dict[str, float] = {}
    start = time.perf_counter()
    peer = make()
    await peer.open()
    try:
        execute = await peer.session()
        await call(execute, "1+1")
        actual["cold"] = time.perf_counter() - start
        start = time.perf_counter()
        await call(await peer.session(), "1+1")
        actual["second"] = time.perf_counter() - start
        times = sorted([await timed(execute, "1+1") * 1000 for _ in range(cells)])
        actual["p50"], actual["p95"] = statistics.median(times), times[int(len(times) * 0.95)]
        sizes = []
        for name, code in (("one", ONE_LINE), ("lines", MANY_LINES)):
            start = time.perf_counter()
            sizes.append(await call(execute, code))
            actual[name] = time.perf_counter() - start
        actual["lost"] = 100 * (1 - min(1.0, sum(sizes) / 20_000_001))
    finally:
        await peer.close()
    return actual | await many(make, sessions)


async def many(make: Callable[[], Any], sessions: int) -> dict[str, float]:
    peer = make()
    await peer.open()
    start = time.perf_counter()

    async def agent() -> None:
        execute = await peer.session()
        for _ in range(5):
            actual = execute if asyncio.iscoroutinefunction(execute) else lambda code: asyncio.to_thread(execute, code)
            await actual("1+1")

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
    actual: dict[str, dict[str, list[float]]] = {name: {key: [] for key in MEASURES} for name in names}
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            try:
                values = asyncio.run(measure(PEERS[name], cells, sessions))
            except Exception as exc:  # noqa: BLE001 - a peer that fails is a finding
                print(f"round {number + 1}: {name} FAILED: {type(exc).__name__}: {str(exc)[:200]}", flush=True)
                continue
            for key, value in values.items():
                actual[name][key].append(value)
            print(f"round {number + 1}: {name} done", flush=True)
    for name, reason in absent.items():
        print(f"not measured, since it cannot be imported: {name} ({reason})")
    return actual


def show(actual: dict[str, dict[str, list[float]]]) -> None:
    table = Table(title="medians, and in brackets the ratio to the first column")
    table.add_column("")
    for name in actual:
        table.add_column(name, justify="right")
    base = next(iter(actual.values()))
    table.add_row("rounds that ended", *(str(len(values["many"])) for values in actual.values()))
    for key, title in MEASURES.items():
        row = []
        for values in actual.values():
            if not values[key]:
                row.append("failed")
                continue
            middle, first = statistics.median(values[key]), statistics.median(base[key])
            ratio = f" ({middle / first:.2f})" if first > 0 and key != "lost" else ""
            row.append(f"{middle:.3g}{ratio}" if key != "lost" else f"{middle:.1f}")
        table.add_row(title, *row)
    Console(width=170).print(table)


def peers(chosen: argparse.Namespace) -> Any:
    """Fail in smoke mode unless every installable peer runs."""
    actual = run(1, 20, 3) if chosen.smoke else run(chosen.rounds, 200, 20)
    show(actual)
    wanted = [name for name in PEERS if name not in ALONE]
    if chosen.smoke and (unmeasured := [name for name in wanted if name not in actual or not actual[name]["many"]]):
        sys.exit(f"not everything runs: {', '.join(unmeasured)}")
    return actual


def sessions(chosen: argparse.Namespace) -> Any:
    rounds, cells, many, idle = (1, 5, 3, 1.0) if chosen.smoke else (max(10, chosen.rounds), 300, 200, 30.0)
    first = asyncio.run(starts(rounds))
    show_times(FIRST, first, next(iter(first)))
    again = asyncio.run(restarts(rounds))
    show_times("1+1 in a new session, and after a restart", again, "container, cold")
    both = asyncio.run(beside(rounds, cells // 3))
    for title, times in both.items():
        show_times(title, times, next(iter(times)))
    together = asyncio.run(at_once(many, idle))
    show_figures(f"{many} sessions at once", together)
    return {"starts, ms": first, "restarts, ms": again, "beside, ms": both, f"{many} sessions": together}


def mcp(chosen: argparse.Namespace) -> Any:
    cells, agents, rounds = (5, 4, 1) if chosen.smoke else (300, 100, max(10, chosen.rounds))
    cold, memory = measure_starts(rounds), measure_memory()
    show_times("MCP cold start: from the start of a process to its list of tools", cold, BARE)
    show_figures("idle after the list of tools, MiB PSS", memory)
    by_call = asyncio.run(calls(cells))
    show_times("a cell 1+1, and the same by a tool call", by_call, "cell")
    many = asyncio.run(throughput(agents, 10))
    show_figures(f"{agents} agents at once over HTTP, ten calls each", many)
    return {"cold start, ms": cold, "idle, MiB": memory, "calls, ms": by_call, f"{agents} agents over HTTP": many}


def containers(chosen: argparse.Namespace) -> Any:
    return show_containers(*((1, 20) if chosen.smoke else (max(10, chosen.rounds),)))


def checkpoints(chosen: argparse.Namespace) -> Any:
    if chosen.smoke:
        return show_checkpoints(1, 3, {name: SIZES[name] for name in ("no state", "100 MiB")})
    return show_checkpoints(max(10, chosen.rounds), 200, SIZES)


def timeouts(chosen: argparse.Namespace) -> Any:
    return show_timeouts(rounds=1 if chosen.smoke else chosen.rounds)


def programs(chosen: argparse.Namespace) -> Any:
    actual = measure_programs(1, warm_up=False) if chosen.smoke else measure_programs(max(10, chosen.rounds))
    for title, times in actual.items():
        show_times(f"whole processes: {title}", times, next(iter(times)))
    return actual


PARTS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "programs": programs,
    "containers": containers,
    "checkpoints": checkpoints,
    "timeouts": timeouts,
    "sessions": sessions,
    "mcp": mcp,
    "peers": peers,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="one short round: fails unless everything runs")
    parser.add_argument("--rounds", type=int, default=3)
    for part in PARTS:
        parser.add_argument(f"--{part}", action="store_true", help="this part, not all")
    parser.add_argument("--notebooks", type=Path, metavar="DIRECTORY", help="these notebooks, beside nbclient")
    parser.add_argument("--json", type=Path, default="build/benchmarks.json", help="where all figures are written")
    parser.add_argument("--chart", type=Path, default="build/benchmarks.png", help="where the starts of sessions are drawn")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    # AG2 looks for ``jupyter``, and runs the ``python``, that are found by name: all are to use this environment's.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    if chosen.notebooks:
        sys.exit(0 if compare_notebooks(chosen.notebooks, chosen.rounds) else 1)
    named = [part for part in PARTS if getattr(chosen, part)]
    actual = {part: PARTS[part](chosen) for part in named or PARTS}
    write_json(chosen.json, actual)
    if "sessions" in actual:
        draw(chosen.chart, FIRST, actual["sessions"]["starts, ms"])


if __name__ == "__main__":
    main()
