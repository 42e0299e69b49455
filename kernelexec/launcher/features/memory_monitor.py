"""Memory of the kernel's control group, and the biggest variables before memory is used up. No thread runs without a limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ..protocol import MemoryReport

_BASES = (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup"))
_GROUPS = Path("/proc/self/cgroup")
#: Files of version 1 and 2: usage, limit and count of kills; and the name of the memory that is reclaimable at once.
_FILES = (
    ("memory.usage_in_bytes", "memory.limit_in_bytes", "memory.oom_control", "total_inactive_file"),
    ("memory.current", "memory.max", "memory.events", "inactive_file"),
)
#: Higher limits count as none: version 1 writes a number near 2**63 for no limit.
_NO_LIMIT = 2**60
_HIGH = 0.8
#: The biggest variables are looked for again when usage has grown by this share of the limit.
_STEP = 1 / 16
#: Interval of measurements while a cell runs, in seconds.
TICK_SECONDS = 0.5


class CGroup:
    """The memory counters of a control group."""

    def __init__(self, directory: Path, files: tuple[str, str, str, str]) -> None:
        usage, limit, events, self._idle = files
        self._usage, self._limit, self._events, self._stat = (
            str(directory / name) for name in (usage, limit, events, "memory.stat")
        )

    def read_limit(self) -> int | None:
        """Return the limit in bytes, or None."""
        content = _read(self._limit)
        return int(content) if content.isdigit() and int(content) < _NO_LIMIT else None

    def read_usage(self, limit: int) -> int:
        """Return the used bytes; above the mark without reclaimable bytes, which cost another read."""
        content = _read(self._usage)
        used = int(content) if content.isdigit() else 0
        return used if used < limit * _HIGH else max(0, used - _find_number(_read(self._stat), self._idle))

    def read_kills(self) -> int:
        """Return the number of processes killed for want of memory."""
        return _find_number(_read(self._events), "oom_kill")


def find_limited_cgroup() -> CGroup | None:
    """Return the innermost group of this process with a limit; None without a limit."""
    for base, files in zip(_BASES, _FILES, strict=True):
        if (base / "memory.stat").exists() or (base / "cgroup.procs").exists():
            for directory in _find_group_directories(base):
                group = CGroup(directory, files)
                if group.read_limit() is not None:
                    return group
    return None


def _find_group_directories(base: Path) -> list[Path]:
    """Return the visible directories of this process's group and the groups around it."""
    name = ""
    for line in _read(str(_GROUPS)).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == ("" if base == _BASES[1] else "memory"):
            name = path.lstrip("/")
    inner = base / name
    return [directory for directory in (inner, *inner.parents) if directory.is_relative_to(base) and directory.is_dir()]


class MemoryMonitor:
    """A monitor which reads the group after each cell, and during a cell in a thread that sleeps between cells.

    ``biggest`` lists the biggest variables, ``report`` sends a report to the owner while a cell runs.
    """

    def __init__(
        self, group: CGroup | None, biggest: Callable[[], list[tuple[str, int]]], report: Callable[[MemoryReport], None]
    ) -> None:
        self._group = group
        self._biggest = biggest
        self._report = report
        self._listed_at_bytes = 0
        self._biggest_variables: list[tuple[str, int]] = []
        self._was_high = False
        self._kills = self._kills_before = 0
        self.start()

    def start(self) -> None:
        """Start the thread, also in a copy of a process with such a thread."""
        # New in a copy: a semaphore copied in a fork may be held by a thread that the copy lacks.
        self._is_running = False
        self._is_sleeping = True
        self._wake = threading.Semaphore(0)
        if self._group is not None:
            self._kills_before = self._group.read_kills()
            threading.Thread(target=self._watch, name="memory", daemon=True).start()

    def begin_cell(self) -> None:
        """Start measuring. The thread is still awake if the last cell has just ended."""
        self._is_running = True
        if self._is_sleeping:
            self._is_sleeping = False
            self._wake.release()

    def end_cell(self) -> MemoryReport | None:
        """Return the report of this cell; None without a limit."""
        self._is_running = False
        with suppress(Exception):  # a group's files may contain anything, and must cost no reply
            return self._measure()
        return None

    def _watch(self) -> None:
        while True:
            self._wake.acquire()
            ran = True
            while ran:  # one measurement after the last cell: quick cells need no wake-up each
                time.sleep(TICK_SECONDS)  # these files report no changes; polled only while cells run
                ran = self._is_running
                with suppress(Exception):
                    if ran:
                        self._report_changes()
            # In this order: `begin_cell` sets "running" first and then looks at "sleeping", so one of both sides sees the
            # other. If both do, the semaphore is released once too often, which costs one more measurement.
            self._is_sleeping = True
            if self._is_running and self._is_sleeping:  # a cell began meanwhile, and saw the thread awake
                self._is_sleeping = False
                self._wake.release()

    def _report_changes(self) -> None:
        high, kills, listed = self._was_high, self._kills, self._listed_at_bytes
        report = self._measure()
        if (
            report is not None
            and self._is_running
            and (listed != self._listed_at_bytes or high != report["high"] or kills != report["kills"])
        ):
            self._report(report)

    def _measure(self) -> MemoryReport | None:
        limit = self._group.read_limit() if self._group is not None else None
        if self._group is None or limit is None:
            return None
        used = self._group.read_usage(limit)
        high = used >= limit * _HIGH
        if abs(used - self._listed_at_bytes) >= limit * _STEP or high > self._was_high:
            self._listed_at_bytes, self._biggest_variables = used, self._biggest()
        self._was_high, self._kills = high, self._group.read_kills() - self._kills_before
        return {"used": used, "limit": limit, "high": high, "kills": self._kills, "biggest": self._biggest_variables}


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:  # noqa: PTH123 - read after every cell
            return file.read().strip()
    except OSError:
        return ""


def _find_number(text: str, name: str) -> int:
    """Return the number behind a word at the beginning of a line, or 0."""
    for line in text.splitlines():
        word, _, number = line.partition(" ")
        if word == name and number.isdigit():
            return int(number)
    return 0
