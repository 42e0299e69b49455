"""The ends of living kernels: restarts, and the culling of idle ones, which frees their memory.

The session stays, and its next cell reports the lost state.
"""

from __future__ import annotations

import logging
import time

import anyio

from kernelexec.events import Event, KernelChanged, MemoryHigh, OutputReceived
from kernelexec.session.context import SessionContext
from kernelexec.session.features.background_commands import BackgroundCommands
from kernelexec.session.features.packages.installer import PackageInstaller

logger = logging.getLogger("kernelexec")


class KernelRestarts:
    """The restarts of one session's kernels."""

    def __init__(self, context: SessionContext, packages: PackageInstaller) -> None:
        self._context = context
        self._packages = packages

    async def restart(self, *, language: str | None = None, fresh_venv: bool = False) -> None:
        """Replace all kernels, or the kernel of one language; their state and a running cell are lost.

        Waiting cells run in the new kernels. ``fresh_venv`` also removes the packages of the session's virtual environment.

        Raises:
            InvalidRequest: the session has no kernel of that language.
            KernelStartFailed: a kernel did not start.
        """
        context, queue = self._context, self._context.queue
        context.scope.check_open()
        supervisors = context.kernels.select_supervisors(language)
        if fresh_venv:
            await self._packages.replace_venv()
        first_run = queue.first
        first_supervisor = context.kernels.get_supervisor(first_run.cell) if first_run is not None else None
        is_sent = first_run is not None and (first_run.execution is not None or first_run.in_flight)
        for supervisor in supervisors:
            if is_sent and supervisor is first_supervisor:
                await supervisor.kill("request")
            else:
                supervisor.is_restart_pending = True
        if first_run is not None and first_supervisor in supervisors and first_run.collector is not None:
            await first_run.done.wait()
        if queue.first is None:
            async with context.scope.hold_open(), queue.run_lock:
                for supervisor in supervisors:
                    if supervisor.epoch:
                        await supervisor.acquire()


class IdleTimer:
    """A hook that records the time of a session's last use, on the monotonic clock."""

    def __init__(self) -> None:
        self.last_use = time.monotonic()

    def __call__(self, event: Event, /) -> None:
        """Restart the timer at each use, and when a kernel has started for one; events that a kernel causes are none."""
        has_started = isinstance(event, KernelChanged) and event.change == "started"
        if has_started or not isinstance(event, KernelChanged | MemoryHigh | OutputReceived):
            self.restart()

    def restart(self) -> None:
        """Count the idle time from now on."""
        self.last_use = time.monotonic()


class IdleCulling:
    """The end of a session's kernels after ``capacity.idle_seconds`` without a use.

    Cells, also those of other clients of a kernel, file operations, snapshots, tests and background commands are uses, from
    their beginning to their end. Inspections and threads that a cell left running are not.
    """

    def __init__(self, context: SessionContext, timer: IdleTimer, background: BackgroundCommands) -> None:
        self._context = context
        self._timer = timer
        self._background = background
        self._task = anyio.CancelScope()
        self.culled_at: float | None = None
        """The time, on the monotonic clock, of the last culling."""

    async def run(self, idle_seconds: float) -> None:
        """End idle kernels, as a task of the session; its time begins now, since a start may take longer."""
        self._timer.restart()
        with self._task:
            while True:
                await anyio.sleep(max(0.0, self._timer.last_use + idle_seconds - time.monotonic()))
                if self._is_idle(idle_seconds) and not await self._background.has_running():
                    epochs = await self._context.kernels.cull(lambda: self._is_idle(idle_seconds))
                    if epochs:
                        self.culled_at = time.monotonic()
                        extra = {"session": self._context.name, "kernel_epoch": epochs, "idle": idle_seconds}
                        logger.info("kernelexec.kernel_culled", extra=extra)
                if self._is_due(idle_seconds):
                    self._timer.restart()  # the next check follows after another idle time

    def stop(self) -> None:
        """End the task."""
        self._task.cancel()

    def _is_idle(self, idle_seconds: float) -> bool:
        return self._context.queue.first is None and self._is_due(idle_seconds)

    def _is_due(self, idle_seconds: float) -> bool:
        self._timer.last_use = max(self._timer.last_use, self._context.kernels.last_visit)
        return time.monotonic() >= self._timer.last_use + idle_seconds
