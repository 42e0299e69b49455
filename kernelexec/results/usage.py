"""The usage of a session: memory of the kernel, statistics of the backend, changed limits; and statistics of cells."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from kernelexec.results.json_values import JsonConvertible, is_count, read_list, read_text, to_plain_json
from kernelexec.results.one_line import format_bytes, format_seconds, join_parts

#: ``none``: no kernel is alive; the next cell starts one.
KernelStatus = Literal["idle", "busy", "starting", "none"]

_BIGGEST_MAX, _NAME_CHARS = 5, 100
_KIB, _MIB = 1024, 1024 * 1024


@dataclass(frozen=True, slots=True)
class LargeVariable:
    """A user's variable, with the size of the value in bytes."""

    name: str
    size_bytes: int

    def __str__(self) -> str:
        return f"{self.name} {format_size(self.size_bytes)}"


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The memory of a kernel and its child processes, the limit, and the biggest variables, the biggest first.

    ``high`` means that 80 % of the limit or more is in use. ``kills`` counts the processes killed so far for lack of memory,
    and ``checkpoints`` the checkpoints of the kernel among them.
    """

    used_bytes: int
    limit_bytes: int
    high: bool = False
    kills: int = 0
    checkpoints: int = 0
    biggest: tuple[LargeVariable, ...] = ()

    @classmethod
    def from_reply(cls, reply: object) -> Self | None:
        """Read a kernel's message; return None for an invalid message."""
        if not isinstance(reply, dict):
            return None
        used, limit, kills, biggest = (reply.get(name) for name in ("used", "limit", "kills", "biggest"))
        if not (is_count(used) and is_count(limit) and is_count(kills)):
            return None
        variables = (_read_large_variable(item) for item in read_list(biggest)[:_BIGGEST_MAX])
        checkpoints = min(kills, count) if is_count(count := reply.get("checkpoints")) else 0
        return cls(used, limit, reply.get("high") is True, kills, checkpoints, tuple(filter(None, variables)))

    @property
    def names_text(self) -> str:
        """The biggest variables as text; empty without known variables."""
        return ", ".join(map(str, self.biggest))

    def __str__(self) -> str:
        limit = format_size(self.limit_bytes)
        used = str(self.used_bytes // _MIB) if limit.endswith(" MiB") else format_size(self.used_bytes)
        return f"memory: {used} of {limit} in use" + (f"; biggest: {self.names_text}" if self.names_text else "")


@dataclass(frozen=True, slots=True)
class Stats(JsonConvertible):
    """The resource usage of a session's kernel and its child processes. None means unavailable, as without a kernel.

    ``cpu_percent`` is relative to a single processor, since the last call, or since the kernel's start for the first call.
    ``pids`` counts processes and threads. Memory reclaimable at once by the system does not count.
    """

    isolation: str
    kernel: KernelStatus
    kernel_epoch: int
    uptime_seconds: float | None = None
    """Time since the kernel was ready."""
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    cpu_seconds: float | None = None
    """Processor time since the start of the kernel's process."""
    cpu_percent: float | None = None
    cpus: float | None = None
    """The limit of processor time, in processors."""
    pids: int | None = None
    pids_limit: int | None = None
    container: str | None = None
    """The id of the kernel's container; the next three fields are the container's too."""
    container_name: str | None = None
    image: str | None = None
    network: str | None = None


@dataclass(frozen=True, slots=True)
class LimitsSet:
    """The limits of a session from now on; None means no limit.

    ``not_applied`` lists failed changes, with reasons: a kernel on this machine has no memory or processor limit of its own.
    """

    memory_bytes: int | None
    cpus: float | None
    timeout: float
    not_applied: tuple[str, ...] = ()


def format_size(size: int) -> str:
    """Return a size as text: in GiB for a whole number of GiB, else in MiB, KiB or bytes."""
    if 0 < size < _KIB:
        return f"{size} B"
    if size and size % (_KIB * _MIB) == 0:
        return f"{size // (_KIB * _MIB)} GiB"
    if size < _MIB:
        return f"{size / _KIB:.0f} KiB"
    return f"{size // _MIB} MiB" if size % _MIB == 0 or size >= 10 * _MIB else f"{size / _MIB:.1f} MiB"


def _read_large_variable(item: object) -> LargeVariable | None:
    match item:
        case [str() as name, size] if is_count(size):
            return LargeVariable(read_text(name, _NAME_CHARS), size)
    return None


@dataclass(frozen=True, slots=True)
class CallStatistics:
    """The statistics of a cell: wall clock and processor time in seconds, memory and output in bytes, and limits.

    ``complexity`` is the name of the chosen profile, if any. The limits are the container's; None on this machine.
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
    """The statistics of all calls of a session so far; ``calls`` holds the newest calls.

    ``p50`` and ``p95`` are percentiles of ``execution_time`` in seconds, by nearest rank, of the newest calls; None without
    calls.
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
    """Counter of calls, which keeps the newest ``keep`` calls."""

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
