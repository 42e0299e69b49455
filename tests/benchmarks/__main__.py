"""``python -m tests.benchmarks [--smoke]``: kernelexec beside plain jupyter_client, in one run, as a table of medians."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable

from jupyter_client.manager import start_new_kernel

from kernelexec import Executor


def measure(execute: Callable[[], object], cells: int) -> list[float]:
    times = []
    for _ in range(cells):
        start = time.perf_counter()
        execute()
        times.append((time.perf_counter() - start) * 1000)
    return sorted(times)


def ours(cells: int) -> tuple[float, list[float]]:
    with tempfile.TemporaryDirectory() as directory, Executor(isolation="local", workspace=directory) as executor:
        start = time.perf_counter()
        session = executor.session()
        session.execute("1+1")
        cold = time.perf_counter() - start
        return cold, measure(lambda: session.execute("1+1"), cells)


def plain(cells: int) -> tuple[float, list[float]]:
    start = time.perf_counter()
    manager, client = start_new_kernel()
    try:
        client.execute_interactive("1+1", output_hook=lambda _: None)
        cold = time.perf_counter() - start
        return cold, measure(lambda: client.execute_interactive("1+1", output_hook=lambda _: None), cells)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="few rounds: shows that it runs")
    cells = 20 if parser.parse_args().smoke else 200
    print(f"{'':30} {'cold start s':>12} {'cell p50 ms':>12} {'cell p95 ms':>12}")
    for name, run in (("kernelexec local", ours), ("jupyter_client, blocking", plain)):
        cold, times = run(cells)
        print(f"{name:30} {cold:12.2f} {statistics.median(times):12.2f} {times[int(len(times) * 0.95)]:12.2f}")


if __name__ == "__main__":
    main()
