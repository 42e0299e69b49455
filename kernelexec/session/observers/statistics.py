"""What a session's calls take, counted as they end."""

from __future__ import annotations

from collections.abc import Callable

from kernelexec.config import Config
from kernelexec.events import CellExecuted, CellStarted, Event
from kernelexec.results import CallStatistics, ExecutionResult, Statistics, Tally

#: How many calls are remembered one by one.
CALLS_MAX = 1000


class Counter:
    """A hook that counts the cells of one session; those that never ran are none."""

    def __init__(self, config: Callable[[], Config]) -> None:
        self._config = config
        self._timeouts: dict[str, float | None] = {}
        self._tally = Tally(CALLS_MAX)

    def __call__(self, event: Event, /) -> None:
        """Take notice of a cell that begins or ends."""
        match event:
            case CellStarted():
                self._timeouts[event.execution_id] = event.timeout
            case CellExecuted():
                self._tally.add(self._call(event.result, self._timeouts.pop(event.result.execution_id, None)))

    @property
    def statistics(self) -> Statistics:
        """All of them."""
        return self._tally.statistics

    def _call(self, result: ExecutionResult, timeout: float | None) -> CallStatistics:
        config, timing = self._config(), result.timing
        limits = config.container if result.isolation == "container" else None
        return CallStatistics(
            result.execution_id,
            result.language,
            result.ok,
            timing.run,
            timeout,
            config.profile,
            None if limits is None else limits.memory_bytes,
            None if limits is None else limits.cpus,
            timing.cpu_seconds,
            timing.peak_memory_bytes,
            result.total_bytes,
        )
