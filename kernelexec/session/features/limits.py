"""A session's use of memory, processors and time: now and cell by cell, changes of its limits, and the culling of idle kernels.

Culling frees the memory of kernels: the session stays, and its next cell reports the lost state.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import anyio

from kernelexec.config import parse_size, with_limits
from kernelexec.errors import InvalidRequest
from kernelexec.events import CellExecuted, CellStarted, Event, KernelChanged, MemoryHigh, OutputReceived
from kernelexec.results import (
    CallStatistics,
    ExecutionResult,
    KernelStatus,
    LimitsSet,
    Statistics,
    StatisticsAccumulator,
    Stats,
)
from kernelexec.session.context import SessionContext
from kernelexec.session.features.background_commands import BackgroundCommands

#: The number of cells that are remembered one by one.
CALLS_MAX = 1000
logger = logging.getLogger("kernelexec")


class SessionLimits:
    """The measured use and the limits of a session, and the statistics of its cells."""

    def __init__(self, context: SessionContext) -> None:
        self._context = context
        self._timeouts: dict[str, float | None] = {}
        self._tally = StatisticsAccumulator(CALLS_MAX)

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
        limits = {"memory_bytes": memory, "cpus": cpus, "timeout": timeout}
        limits = {name: value for name, value in limits.items() if value is not None}
        if profile is None and not limits:
            raise InvalidRequest("set_limits() needs at least one limit: pass profile, memory_bytes, cpus or timeout.")
        async with self._context.kernels.languages_lock:
            return await self._apply_change(profile, limits)

    async def _apply_change(self, profile: str | None, limits: Mapping[str, Any]) -> LimitsSet:
        settings, kernels = self._context.settings, self._context.kernels
        config, limits = with_limits(settings.config, profile, limits)
        if missing := await kernels.apply_limits(config, limits.get("memory_bytes"), limits.get("cpus")):
            for supervisor in kernels.select_supervisors(None):
                supervisor.notes.extend(missing)
            config = config.model_copy(update={"container": settings.config.container})
        settings.config = config
        if missing:
            return LimitsSet(None, None, config.budgets.timeout, missing)
        return LimitsSet(config.container.memory_bytes, config.container.cpus, config.budgets.timeout)

    def note_event(self, event: Event, /) -> None:
        """Count beginning and ending cells. This is a hook of the session."""
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
        config, timing = self._context.config, result.timing
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


class IdleCulling:
    """The end of a session's kernels after ``capacity.idle_seconds`` without a use.

    Cells, also those of other clients of a kernel, file operations, snapshots, tests and background commands are uses, from
    their beginning to their end. Inspections and a cell's remaining threads are not.
    """

    def __init__(self, context: SessionContext, background: BackgroundCommands) -> None:
        self._context = context
        self._background = background
        self._task = anyio.CancelScope()
        self._last_use = time.monotonic()
        self.culled_at: float | None = None
        """The time, on the monotonic clock, of the last culling."""

    def note_event(self, event: Event, /) -> None:
        """Note each use and each start of a kernel, but no event caused by a kernel. This is a hook of the session."""
        has_started = isinstance(event, KernelChanged) and event.change == "started"
        if has_started or not isinstance(event, KernelChanged | MemoryHigh | OutputReceived):
            self._last_use = time.monotonic()

    async def run(self, idle_seconds: float) -> None:
        """End idle kernels, as a task of the session. The idle time begins now, since a start may take longer."""
        self._last_use = time.monotonic()
        with self._task:
            while True:
                await anyio.sleep(max(0.0, self._last_use + idle_seconds - time.monotonic()))
                if self._is_idle(idle_seconds) and not await self._background.has_running():
                    # checked again under the supervisor's lock: a cell may have begun during ``has_running``
                    epochs = await self._context.kernels.cull(lambda: self._is_idle(idle_seconds))
                    if epochs:
                        self.culled_at = time.monotonic()
                        extra = {"session": self._context.name, "kernel_epoch": epochs, "idle": idle_seconds}
                        logger.info("kernelexec.kernel_culled", extra=extra)
                if self._is_due(idle_seconds):
                    self._last_use = time.monotonic()  # the next check follows after another idle time

    def stop(self) -> None:
        """End the task."""
        self._task.cancel()

    def _is_idle(self, idle_seconds: float) -> bool:
        return self._context.queue.first is None and self._is_due(idle_seconds)

    def _is_due(self, idle_seconds: float) -> bool:
        self._last_use = max(self._last_use, self._context.kernels.last_visit)
        return time.monotonic() >= self._last_use + idle_seconds
