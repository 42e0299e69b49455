"""Statistics of the cells in a journal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kernelexec.records.journal.reader import read, read_number
from kernelexec.results import CallStatistics, Statistics, StatisticsAccumulator


def statistics(path: Path, *, keep: int) -> Statistics:
    """Return the statistics of all ended cells of a journal, and the newest of them one by one; without their limits."""
    tally, begun = StatisticsAccumulator(keep), dict[str, dict[str, Any]]()
    for fields in read(path):
        name = fields.get("execution_id")
        if isinstance(name, str) and fields.get("event") == "started":
            begun[name] = fields
        elif isinstance(name, str) and fields.get("event") == "finished":
            tally.add(_call(name, begun.pop(name, {}), fields))
    return tally.statistics


def _call(name: str, begun: dict[str, Any], ended: dict[str, Any]) -> CallStatistics:
    peak = read_number(ended.get("peak_memory_bytes"))
    return CallStatistics(
        name,
        str(begun.get("language", "")),
        ended.get("status") == "ok",
        read_number(ended.get("seconds")) or 0.0,
        read_number(begun.get("timeout")),
        cpu_seconds=read_number(ended.get("cpu_seconds")),
        peak_memory_bytes=None if peak is None else int(peak),
        output_bytes=int(read_number(ended.get("total_bytes")) or 0),
    )
