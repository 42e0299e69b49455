"""The launcher's reports: confinement, the user's variables, memory, and obstacles to a checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from kernelexec.provisioning import KernelexecProvisioner
from kernelexec.results import MemoryUse, Stats
from kernelexec.results.json_values import is_count, read_list, read_text

_OF_ONE_CELL, _IN_ALL = 1000, 10_000
_CHARS = 100
_NAME_CHARS, _NAMES_MAX = 100, 8
#: Obstacles to a copy by a fork, each with its remedy.
_OBSTACLES = {
    "threads": ("these threads run", "wait for their end, or shut their pools down"),
    "native threads": ("threads of C code run", "make the checkpoint before the library starts them"),
    "tasks": ("these asyncio tasks have not ended", "await or cancel them"),
    "connections": ("these connections are open", "close them"),
    "transactions": ("these databases have an open transaction", "commit or roll back"),
    "devices": ("these devices are open", "make the checkpoint before they are used"),
    "loop": ("the event loop is not asyncio's own", "use asyncio's"),
    "limit": ("it is not possible here", "see Config(checkpoints=...)"),
}


@dataclass(frozen=True, slots=True)
class ConfinementReport:
    """The names of the layers in force, and a sentence for each missing layer."""

    layers: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @classmethod
    def of(cls, launcher_info: dict[str, Any]) -> ConfinementReport:
        """Read the confinement from the launcher's report of itself; empty without a report."""
        report = launcher_info.get("confinement")
        parts = report if isinstance(report, dict) else {}
        return cls(*(_texts(parts.get(name)) for name in ("layers", "missing")))

    @property
    def notices(self) -> tuple[str, ...]:
        """Sentences on missing layers, for the first result of the kernel."""
        return tuple(f"This kernel is not confined in every way: {layer}." for layer in self.missing)


def _texts(value: object) -> tuple[str, ...]:
    return tuple(text for text in value if isinstance(text, str)) if isinstance(value, list) else ()


class VariableNames:
    """A bounded set of names from the launcher's reports; ``count`` is the number of all names, ``known`` or not."""

    def __init__(self) -> None:
        self.known: set[str] = set()
        self.count = 0

    def load(self, report: dict[str, Any]) -> None:
        """Take the launcher's report of all names, within bounds."""
        self.update(report, limit=_IN_ALL)

    def update(self, report: dict[str, Any], *, limit: int = _OF_ONE_CELL) -> None:
        """Take the launcher's report of a cell's changes, within bounds; a report without names changes nothing."""
        if "names_count" not in report:
            return
        for key, change in (("names_added", self.known.update), ("names_removed", self.known.difference_update)):
            names = report.get(key)
            change(
                name
                for name in (names if isinstance(names, list) else [])[:limit]
                if isinstance(name, str) and len(name) <= _CHARS
            )
        while len(self.known) > _IN_ALL:
            self.known.pop()
        # A report over its limit leaves names out, so ``count`` is the launcher's own figure.
        count = report.get("names_count")
        self.count = max(count if is_count(count) else 0, len(self.known))


class Usage:
    """The memory of a kernel from the launcher's reports, and the statistics and limits of the provisioner."""

    def __init__(self, provisioner: Callable[[], KernelexecProvisioner | None]) -> None:
        self.memory: MemoryUse | None = None
        self.watermark: MemoryUse | None = None
        """The newest warning of short memory during the running cell."""
        self.killed = 0
        """The number of processes killed for want of memory during the cell, without the kernel and its checkpoints."""
        self.killed_checkpoints = 0
        """The number of the kernel's checkpoints killed for want of memory during the cell."""
        self.on_high: Callable[[MemoryUse], None] | None = None
        self._provisioner = provisioner
        self._limit: int | None = None
        self._ready_at = 0.0
        self._measured = time.monotonic(), 0.0

    def start(self) -> None:
        """Begin the kernel's uptime: the kernel serves."""
        self._ready_at = time.monotonic()
        if (provisioner := self._provisioner()) is not None:
            provisioner.on_ready()

    def begin_cell(self) -> None:
        """Forget the warnings of the previous cell."""
        self.watermark, self.killed, self.killed_checkpoints = None, 0, 0
        self._limit = self.limit_bytes

    def update(self, report: object) -> None:
        """Take the launcher's report of memory."""
        use = MemoryUse.from_reply(report)
        if use is None:
            return
        # The launcher counts from its start, so a cell's kills are differences. ``kills`` includes the checkpoints.
        before, self.memory = self.memory or MemoryUse(0, use.limit_bytes), use
        checkpoints = use.checkpoints - before.checkpoints
        self.killed_checkpoints += checkpoints
        self.killed += use.kills - before.kills - checkpoints
        if use.kills != before.kills and (provisioner := self._provisioner()) is not None:
            provisioner.on_memory_kills(use.kills)
        if use.high:
            self.watermark = use
            if self.on_high is not None and not before.high:
                self.on_high(use)

    @property
    def limit_bytes(self) -> int | None:
        """The kernel's memory limit; None if unknown."""
        provisioner = self._provisioner()
        known = provisioner.memory_limit_bytes if provisioner is not None else None
        return known or (self.memory.limit_bytes if self.memory else None) or self._limit

    async def stats(self) -> Stats:
        """Return the provisioner's statistics; unknown figures are None.

        Raises:
            EngineFailed: the container engine reports no statistics.
        """
        provisioner = self._provisioner()
        stats = await provisioner.stats() if provisioner is not None else Stats("local", "idle", 0)
        now = time.monotonic()
        since, before = self._measured
        percent = None
        if stats.cpu_seconds is not None:
            percent = 100 * max(0.0, stats.cpu_seconds - before) / max(now - since, 1e-3)
            self._measured = now, stats.cpu_seconds
        limit = stats.memory_limit_bytes or self.limit_bytes
        return replace(stats, uptime_seconds=now - self._ready_at, cpu_percent=percent, memory_limit_bytes=limit)

    async def change_limits(self, memory_bytes: int | None, cpus: float | None) -> None:
        """Change the limits of the living kernel; None keeps a limit: see ``KernelexecProvisioner.change_limits``."""
        if (provisioner := self._provisioner()) is not None:
            await provisioner.change_limits(memory_bytes, cpus)


def read_obstacles(value: Any) -> dict[str, tuple[str, ...]]:  # noqa: ANN401 - JSON of the kernel
    """Return names by kind of obstacle, from an unvalidated report."""
    obstacles: dict[str, tuple[str, ...]] = {}
    for entry in read_list(value):
        kind = entry.get("kind") if isinstance(entry, dict) else None
        if isinstance(kind, str) and kind in _OBSTACLES:
            names = [read_text(name, _NAME_CHARS) for name in read_list(entry.get("names"))[:_NAMES_MAX]]
            obstacles[kind] = tuple(filter(None, names))
    return obstacles


def explain_obstacles(obstacles: dict[str, tuple[str, ...]]) -> str:
    """Return the obstacles and their remedies as the end of a sentence."""
    reasons = []
    for kind, names in obstacles.items():
        reason, remedy = _OBSTACLES[kind]
        reasons.append(f"{reason}: {', '.join(names)} ({remedy})")
    return "; ".join(reasons) + "."
