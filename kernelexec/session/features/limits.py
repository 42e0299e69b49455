"""A session's use of memory, processors and time: now and cell by cell, and changes of its limits."""

from __future__ import annotations

from dataclasses import replace

from kernelexec.config import LimitChange, parse_size
from kernelexec.errors import InvalidRequest
from kernelexec.events import CellExecuted, CellStarted, Event
from kernelexec.results import (
    CallStatistics,
    ExecutionResult,
    KernelStatus,
    LimitsSet,
    Statistics,
    StatisticsAccumulator,
    Stats,
)
from kernelexec.session.context import SessionContext, SessionSettings

#: The number of cells that are remembered one by one.
CALLS_MAX = 1000


class SessionLimits:
    """The measured use and the limits of one session."""

    def __init__(self, context: SessionContext) -> None:
        self._context = context

    async def stats(self) -> Stats:
        """Return the present use of the session's Python kernel and all its processes, also while a cell runs.

        Without a living kernel there are no figures, and ``kernel`` is ``none``. ``cpu_percent`` counts from the previous
        call.

        Raises:
            Closed: the session is closed.
            EngineFailed: the container engine does not answer.
        """
        context, supervisor = self._context, self._context.kernels.python
        context.scope.check_open()
        kernel, epoch = supervisor.kernel, supervisor.epoch
        if kernel is None or not kernel.alive:
            return Stats(context.isolation, "starting" if supervisor.is_starting else "none", epoch)
        status: KernelStatus = "busy" if context.queue.first is not None else "idle"
        return replace(await kernel.usage.stats(), isolation=context.isolation, kernel=status, kernel_epoch=epoch)

    async def set_limits(
        self,
        profile: str | None = None,
        *,
        memory_bytes: int | str | None = None,
        cpus: float | None = None,
        timeout: float | None = None,
    ) -> LimitsSet:
        """Change the limits of the session's present and later kernels; the state is kept. None means no change.

        ``profile`` names a profile of the configuration; the other arguments take precedence over it. ``memory_bytes`` may be
        text as in ``512m``.

        The limits of a living kernel's container change at once, also while a cell runs. ``timeout`` applies to later cells.
        Kernels on this machine support only ``timeout``: the answer and the next result name the limits that do not apply.

        Raises:
            InvalidRequest, InvalidConfig, InvalidTimeout, Closed: before anything changed.
            LimitRefused: the living kernel cannot have that limit, for example because it uses more memory; nothing changed.
            EngineFailed: the container engine does not answer.
        """
        self._context.scope.check_open()
        memory = parse_size(memory_bytes, "memory_bytes") if isinstance(memory_bytes, str) else memory_bytes
        change = LimitChange(profile, memory, cpus, timeout)
        if change == LimitChange():
            raise InvalidRequest("set_limits() needs at least one limit: pass profile, memory_bytes, cpus or timeout.")
        async with self._context.kernels.languages_lock:
            return await self._apply_change(change.resolve_profile(self._context.config))

    async def _apply_change(self, change: LimitChange) -> LimitsSet:
        settings, kernels = self._context.settings, self._context.kernels
        config = change.apply_to(settings.config)
        if missing := await kernels.apply_limits(config, change.memory_bytes, change.cpus):
            for supervisor in kernels.select_supervisors(None):
                supervisor.notes.extend(missing)
            config = config.model_copy(update={"container": settings.config.container})
        settings.config = config
        if missing:
            return LimitsSet(None, None, config.budgets.timeout, missing)
        return LimitsSet(config.container.memory_bytes, config.container.cpus, config.budgets.timeout)


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
