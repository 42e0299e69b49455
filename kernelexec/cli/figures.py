"""What a session's cells took, as tables for people: all together, then each of the newest."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from kernelexec.cli.surroundings import write_any
from kernelexec.cli.table import show_table
from kernelexec.records.journal import statistics
from kernelexec.results import CallStatistics, Statistics
from kernelexec.results.usage import size_text

_ALL = ("cells", "ok", "p50 s", "p95 s", "all s", "cpu s", "peak memory", "output")
_EACH = ("execution", "language", "ok", "seconds", "timeout", "cpu s", "peak memory", "output")
_NONE = "-"


def show_figures(path: Path, *, last: int, as_json: bool) -> int:
    """Print what a journal's cells took."""
    found = statistics(path, keep=last)
    if as_json:
        write_any(sys.stdout, json.dumps(found.to_dict()) + "\n")
        return 0
    show_table(_ALL, [_all(found)])
    write_any(sys.stdout, "\n")
    show_table(_EACH, [_each(call) for call in found.calls])
    return 0


def _all(found: Statistics) -> list[str]:
    rate = _NONE if found.success_rate is None else f"{found.success_rate:.0%}"
    times = [_seconds(found.p50), _seconds(found.p95), _seconds(found.execution_time), _seconds(found.cpu_seconds)]
    return [str(found.count), rate, *times, _bytes(found.peak_memory_bytes), _bytes(found.output_bytes)]


def _each(call: CallStatistics) -> list[str]:
    times = [_seconds(call.execution_time), _seconds(call.timeout), _seconds(call.cpu_seconds)]
    peak, output = _bytes(call.peak_memory_bytes), _bytes(call.output_bytes)
    return [call.execution_id[:8], call.language, "yes" if call.success else "no", *times, peak, output]


def _seconds(found: float | None) -> str:
    return _NONE if found is None else f"{found:.3f}"


def _bytes(found: int | None) -> str:
    return _NONE if found is None else size_text(found)
