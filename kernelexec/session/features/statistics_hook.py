"""Statistics of the time and memory that a session's cells use."""

from __future__ import annotations

from kernelexec.events import CellExecuted, CellStarted, Event
from kernelexec.results import CallStatistics, ExecutionResult, Statistics, StatisticsAccumulator
from kernelexec.session.context import SessionSettings

#: The number of cells that are remembered one by one.
CALLS_MAX = 1000


class StatisticsHook:
    """A hook that counts the cells of one session that ran."""

    def __init__(self, settings: SessionSettings) -> None:
        self._settings = settings
        self._timeouts: dict[str, float | None] = {}
        self._tally = StatisticsAccumulator(CALLS_MAX)

    def __call__(self, event: Event, /) -> None:
        """Count a cell that begins or ends."""
        match event:
            case CellStarted():
                self._timeouts[event.execution_id] = event.timeout
            case CellExecuted():
                self._tally.add(self._make_statistics(event.result, self._timeouts.pop(event.result.execution_id, None)))

    @property
    def statistics(self) -> Statistics:
        """The statistics of all counted cells."""
        return self._tally.statistics

    def _make_statistics(self, result: ExecutionResult, timeout: float | None) -> CallStatistics:
        config, timing = self._settings.config, result.timing
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
