"""What was measured, as tables on the screen, as JSON, and as a chart."""

from __future__ import annotations

import json
import os
import platform
import statistics
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.benchmarks.sessions import Found, percentile


def machine() -> dict[str, Any]:
    """Where and when: figures of another machine are other figures."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
    }


def show_times(title: str, actual: Found, base: str) -> None:
    """Medians and 95th percentiles in milliseconds, and the ratio of the medians to that of ``base``."""
    table = Table(title=title)
    for name in ("", "p50, ms", "p95, ms", "p50 / base", "n"):
        table.add_column(name, justify="left" if not name else "right")
    first = statistics.median(actual[base])
    for name, values in actual.items():
        middle = statistics.median(values)
        row = (f"{middle:.1f}", f"{percentile(values, 0.95):.1f}", f"{middle / first:.4f}", str(len(values)))
        table.add_row(name, *row)
    Console(width=120).print(table)


def show_figures(title: str, actual: dict[str, float]) -> None:
    table = Table(title=title)
    table.add_column("")
    table.add_column("", justify="right")
    for name, value in actual.items():
        table.add_row(name, f"{value:.3g}")
    Console(width=120).print(table)


def write_json(path: Path, actual: dict[str, Any]) -> None:
    """All that was measured, each single time too, with the machine and the date."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine(), **actual}, indent=1) + "\n")


def draw(path: Path, title: str, actual: Found) -> None:
    """Medians as bars, on a logarithmic scale, with their 95th percentiles."""
    import matplotlib as mpl  # noqa: PLC0415 - slow to import, and wanted for charts only

    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - as above

    names = list(actual)
    middles = [statistics.median(actual[name]) for name in names]
    above = [percentile(actual[name], 0.95) - middle for name, middle in zip(names, middles, strict=True)]
    figure, axes = plt.subplots(figsize=(8, 0.5 * len(names) + 1.2))
    bars = axes.barh(names, middles, xerr=[[0] * len(names), [max(0.0, value) for value in above]], capsize=3)
    axes.bar_label(bars, [f" {middle:.3g} ms" for middle in middles])
    axes.set(xscale="log", xlabel="ms, median and 95th percentile", title=title)
    axes.invert_yaxis()
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
