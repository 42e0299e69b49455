"""What a journal's cells took, as their session counted it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from kernelexec.records.journal.reader import read
from kernelexec.results import CallStatistics, Statistics, Tally

_LARGEST = 2.0**53


def statistics(path: Path, *, keep: int) -> Statistics:
    """All cells of a journal that ended, and the newest of them one by one; without the limits that they had."""
    tally, begun = Tally(keep), dict[str, dict[str, Any]]()
    for said in read(path):
        name = said.get("execution_id")
        if isinstance(name, str) and said.get("event") == "started":
            begun[name] = said
        elif isinstance(name, str) and said.get("event") == "finished":
            tally.add(_call(name, begun.pop(name, {}), said))
    return tally.statistics


def _call(name: str, begun: dict[str, Any], ended: dict[str, Any]) -> CallStatistics:
    peak = _number(ended.get("peak_memory_bytes"))
    return CallStatistics(
        name,
        str(begun.get("language", "")),
        ended.get("status") == "ok",
        _number(ended.get("seconds")) or 0.0,
        _number(begun.get("timeout")),
        cpu_seconds=_number(ended.get("cpu_seconds")),
        peak_memory_bytes=None if peak is None else int(peak),
        output_bytes=int(_number(ended.get("total_bytes")) or 0),
    )


def _number(said: object) -> float | None:
    """One that a journal can hold: it is a file, and anybody may write one."""
    is_number = isinstance(said, int | float) and not isinstance(said, bool) and math.isfinite(said)
    return float(said) if is_number and 0 <= said < _LARGEST else None  # type: ignore[arg-type, operator]
