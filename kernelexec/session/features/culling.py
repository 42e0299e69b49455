"""The end of kernels that nobody uses: their memory is free, the session stays, and its next cell says what was lost."""

from __future__ import annotations

import logging
import time

import anyio

from kernelexec.errors import KernelNotAnswering
from kernelexec.events import Event, KernelChanged, MemoryHigh, OutputHeard
from kernelexec.session.cells.queue import Queue
from kernelexec.session.features.background import Background
from kernelexec.session.kernels.languages import Kernels

logger = logging.getLogger("kernelexec")


class LastUse:
    """A hook that knows when something was last done with a session, on the monotonic clock."""

    def __init__(self) -> None:
        self.at = time.monotonic()

    def __call__(self, event: Event, /) -> None:
        """Take notice of what somebody did; what a kernel does by itself counts for nothing."""
        if not isinstance(event, KernelChanged | MemoryHigh | OutputHeard):
            self.at = time.monotonic()


class Culling(Background):
    """The part of a session that ends its kernels once ``capacity.idle_seconds`` have passed without a use.

    Cells, file operations, snapshots, tests and background commands are uses, from their beginning to their end; looking at
    variables is none, nor is a thread that a cell left behind.
    """

    _kernels: Kernels
    _queue: Queue
    _used: LastUse
    _culling: anyio.CancelScope
    _culled: float | None

    @property
    def culled(self) -> float | None:
        """When its kernels were ended for want of use, on the monotonic clock; None where one lives, or may."""
        return self._culled if self._kernels.culled else None

    async def _cull(self, idle: float) -> None:
        """A task of the session's life: end what is idle, whenever it is."""
        with self._culling:
            while True:
                await anyio.sleep(max(0.0, self._used.at + idle - time.monotonic()))
                if self._idle_for(idle) and not await self._has_background():
                    await self._end_idle(idle)
                if self._over(idle):
                    self._used.at = time.monotonic()  # it is looked at again after as long

    async def _end_idle(self, idle: float) -> None:
        epochs = await self._kernels.cull(lambda: self._idle_for(idle))
        if epochs:
            self._culled = time.monotonic()
            logger.info("kernelexec.kernel_culled", extra={"session": self.name, "kernel_epoch": epochs, "idle": idle})

    def _idle_for(self, idle: float) -> bool:
        return self._queue.first is None and self._over(idle)

    def _over(self, idle: float) -> bool:
        return time.monotonic() >= self._used.at + idle

    async def _has_background(self) -> bool:
        """Whether a command runs beside the cells; where the kernel does not say, it may."""
        try:
            return any(one.status == "running" for one in await self.background_commands())
        except KernelNotAnswering:
            return self._keeper.kernel is not None and self._keeper.kernel.alive
