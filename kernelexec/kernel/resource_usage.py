"""The resource usage of one kernel: memory as its launcher reports it, and statistics and limits of its provisioner."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from kernelexec.provisioning import KernelexecProvisioner
from kernelexec.results import MemoryUse, Stats


class Usage:
    """The memory of one kernel, followed through its reports, and the statistics and limits of its provisioner."""

    def __init__(self, provisioner: Callable[[], KernelexecProvisioner | None]) -> None:
        self.memory: MemoryUse | None = None
        self.watermark: MemoryUse | None = None
        """The newest warning of the running cell that memory is short."""
        self.killed = 0
        """Processes beside the kernel that were killed for want of memory during the cell."""
        self.on_high: Callable[[MemoryUse], None] | None = None
        self._provisioner = provisioner
        self._limit: int | None = None
        self._ready_at = 0.0
        self._measured = time.monotonic(), 0.0

    def start(self) -> None:
        """Note that the kernel serves: its uptime begins."""
        self._ready_at = time.monotonic()
        if (provisioner := self._provisioner()) is not None:
            provisioner.on_ready()

    def begin_cell(self) -> None:
        """Forget the warnings of the cell before."""
        self.watermark, self.killed = None, 0
        self._limit = self.limit_bytes

    def update(self, report: object) -> None:
        """Take the launcher's report of its memory."""
        use = MemoryUse.from_reply(report)
        if use is None:
            return
        before, self.memory = self.memory, use
        if use.kills != (before.kills if before else 0):
            self.killed += use.kills - (before.kills if before else 0)
            if (provisioner := self._provisioner()) is not None:
                provisioner.on_memory_kills(use.kills)
        if use.high:
            self.watermark = use
            if self.on_high is not None and not (before and before.high):
                self.on_high(use)

    @property
    def limit_bytes(self) -> int | None:
        """Memory that the kernel may use; None means unknown."""
        provisioner = self._provisioner()
        known = provisioner.memory_limit_bytes if provisioner is not None else None
        return known or (self.memory.limit_bytes if self.memory else None) or self._limit

    async def stats(self) -> Stats:
        """Return the provisioner's statistics; figures that it cannot measure are None.

        Raises:
            EngineFailed: the container engine does not answer.
        """
        provisioner = self._provisioner()
        stats = await provisioner.stats() if provisioner is not None else Stats("local", "idle", 0)
        now = time.monotonic()
        percent = self._percent(now, stats.cpu_seconds)
        limit = stats.memory_limit_bytes or self.limit_bytes
        return replace(stats, uptime_seconds=now - self._ready_at, cpu_percent=percent, memory_limit_bytes=limit)

    def _percent(self, now: float, seconds: float | None) -> float | None:
        if seconds is None:
            return None
        since, before = self._measured
        self._measured = now, seconds
        return 100 * max(0.0, seconds - before) / max(now - since, 1e-3)

    async def change_limits(self, memory_bytes: int | None, cpus: float | None) -> None:
        """Change the limits of the living kernel, where None keeps one: see ``KernelexecProvisioner.change_limits``."""
        if (provisioner := self._provisioner()) is not None:
            await provisioner.change_limits(memory_bytes, cpus)
