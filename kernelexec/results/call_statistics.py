"""Statistics of the time, memory and output of a session's cells."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace
from typing import Any

from kernelexec.results.json_values import JsonConvertible, to_plain_json
from kernelexec.results.readable.one_line import format_bytes, format_seconds, join_parts


@dataclass(frozen=True, slots=True)
class CallStatistics:
    """The statistics of one cell: wall clock and processor time in seconds, memory and output in bytes, and its limits.

    ``complexity`` is the name of the profile, if one was chosen; the limits are its container's, None on this machine.
    """

    execution_id: str
    language: str
    success: bool
    execution_time: float
    timeout: float | None = None
    complexity: str | None = None
    memory_limit: int | None = None
    cpu_limit: float | None = None
    cpu_seconds: float | None = None
    peak_memory_bytes: int | None = None
    output_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Statistics(JsonConvertible):
    """The statistics of all calls of a session so far; ``calls`` holds the newest, and the percentiles are of these.

    ``p50`` and ``p95`` are percentiles of ``execution_time`` in seconds, by nearest rank; None without any call.
    """

    count: int = 0
    succeeded: int = 0
    execution_time: float = 0.0
    cpu_seconds: float = 0.0
    peak_memory_bytes: int | None = None
    output_bytes: int = 0
    calls: tuple[CallStatistics, ...] = ()

    @property
    def success_rate(self) -> float | None:
        """The share of successful calls, from 0 to 1."""
        return self.succeeded / self.count if self.count else None

    @property
    def p50(self) -> float | None:
        """The median of ``execution_time``."""
        return self._percentile(50)

    @property
    def p95(self) -> float | None:
        """The 95th percentile of ``execution_time``."""
        return self._percentile(95)

    def __repr__(self) -> str:
        times = f"p50 {format_seconds(self.p50)}, p95 {format_seconds(self.p95)}" if self.p50 and self.p95 else None
        cells = f"{self.count} cells, {self.succeeded} succeeded"
        return f"<Statistics {join_parts(cells, format_seconds(self.execution_time), times, format_bytes(self.output_bytes))}>"

    def _percentile(self, percent: int) -> float | None:
        times = sorted(call.execution_time for call in self.calls)
        return times[math.ceil(percent / 100 * len(times)) - 1] if times else None

    def to_dict(self) -> dict[str, Any]:
        """Return the statistics as JSON types, with the success rate and the percentiles."""
        return {**to_plain_json(self), "success_rate": self.success_rate, "p50": self.p50, "p95": self.p95}


class StatisticsAccumulator:
    """Counter of calls, with the newest ``keep`` of them."""

    def __init__(self, keep: int) -> None:
        self._calls: deque[CallStatistics] = deque(maxlen=keep)
        self._total = Statistics()

    def add(self, call: CallStatistics) -> None:
        """Add a call."""
        total = self._total
        self._calls.append(call)
        self._total = Statistics(
            total.count + 1,
            total.succeeded + call.success,
            total.execution_time + call.execution_time,
            total.cpu_seconds + (call.cpu_seconds or 0.0),
            max(filter(None, (total.peak_memory_bytes, call.peak_memory_bytes)), default=None),
            total.output_bytes + call.output_bytes,
        )

    @property
    def statistics(self) -> Statistics:
        """The statistics of all calls."""
        return replace(self._total, calls=tuple(self._calls))
