"""How long it takes from the timeout of a cell to control over its kernel, by which step, and whether the state is kept."""

from __future__ import annotations

import statistics
import tempfile

from rich.console import Console
from rich.table import Table

from kernelexec import Executor
from tests.support.overrunning_cells import OVERRUNS

TIMEOUT = 0.5


def show_timeouts(rounds: int) -> dict[str, list[float]]:
    table = Table(title=f"cells over a timeout of {TIMEOUT} s, grace 1 s: medians of {rounds}")
    actual: dict[str, list[float]] = {}
    for name in ("cell", "s from timeout to result", "step", "state"):
        table.add_column(name)
    with tempfile.TemporaryDirectory() as directory, Executor("local", workspace=directory) as executor:
        for name, overrun in OVERRUNS.items():
            session = executor.session()
            results = []
            for _ in range(rounds):
                session.execute(overrun.prepared)
                results.append(session.execute(overrun.code, timeout=TIMEOUT))
            session.close()
            actual[name] = [result.timing.run - TIMEOUT for result in results]
            late = statistics.median(actual[name])
            steps, states = {str(result.ended_by) for result in results}, {result.state for result in results}
            table.add_row(name, f"{late:.3f}", " ".join(sorted(steps)), " ".join(sorted(states)))
    Console(width=120).print(table)
    return actual
