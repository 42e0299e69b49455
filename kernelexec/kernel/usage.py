"""What one kernel uses: its memory as the launcher tells it, unasked; the rest as its provisioner does when asked."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kernelexec.provisioning import KernelProvisionerBase
from kernelexec.results import MemoryUse, Stats


class Usage:
    """Follows the memory of one kernel, and asks and changes what its provisioner knows of it."""

    def __init__(self, provisioner: Callable[[], KernelProvisionerBase | None]) -> None:
        self.memory: MemoryUse | None = None
        self.watermark: MemoryUse | None = None
        """The newest word of the running cell that memory is getting short."""
        self.killed = 0
        """What was killed for want of memory, and was not the kernel, since this was set back."""
        self.on_high: Callable[[MemoryUse], None] | None = None
        self._provisioner = provisioner
        self._limit: int | None = None
        self._served = 0.0
        self._asked = time.monotonic(), 0.0

    def begin(self) -> None:
        """Count the time from here: the kernel serves."""
        self._served = time.monotonic()
        served: Callable[[], None] = getattr(self._provisioner(), "served", lambda: None)
        served()

    def begin_cell(self) -> None:
        """Forget what was said of the cell before."""
        self.watermark, self.killed = None, 0
        self._limit = self.limit_bytes

    def learn(self, said: object) -> None:
        """Take what the launcher said of its memory."""
        use = MemoryUse.of(said)
        if use is None:
            return
        before, self.memory = self.memory, use
        if use.kills != (before.kills if before else 0):
            self.killed += use.kills - (before.kills if before else 0)
            survived = getattr(self._provisioner(), "survived", None)
            if survived is not None:
                survived(use.kills)
        if use.high:
            self.watermark = use
            if self.on_high is not None and not (before and before.high):
                self.on_high(use)

    @property
    def limit_bytes(self) -> int | None:
        """How much memory the kernel may use, where that is known."""
        known: int | None = getattr(self._provisioner(), "memory_limit_bytes", None)
        return known or (self.memory.limit_bytes if self.memory else None) or self._limit

    async def stats(self) -> Stats:
        """What the provisioner says; without figures where it can say nothing.

        Raises:
            EngineFailed: the container engine does not say.
        """
        asked: Callable[[], Any] | None = getattr(self._provisioner(), "stats", None)
        found: Stats = await asked() if asked is not None else Stats("local", "idle", 0)
        now = time.monotonic()
        percent = self._percent(now, found.cpu_seconds)
        limit = found.memory_limit_bytes or self.limit_bytes
        return replace(found, uptime_seconds=now - self._served, cpu_percent=percent, memory_limit_bytes=limit)

    def _percent(self, now: float, seconds: float | None) -> float | None:
        if seconds is None:
            return None
        since, before = self._asked
        self._asked = now, seconds
        return 100 * max(0.0, seconds - before) / max(now - since, 1e-3)

    async def limit(self, memory_bytes: int | None, cpus: float | None) -> bool:
        """Change the limits of the living kernel, None being no change; whether its provisioner can do that.

        Raises:
            LimitRefused: it cannot be; nothing changed.
            EngineAway: nobody can know.
        """
        limit: Callable[..., Any] | None = getattr(self._provisioner(), "limit", None)
        if limit is None:
            return False
        await limit(memory_bytes, cpus)
        return True
