"""How much memory is left: the kernel's control group is read, and the biggest variables are named while there is still time.

Nothing here runs, and no thread is started, where no limit is set.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

_BASES = (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup"))
_GROUPS = Path("/proc/self/cgroup")
#: Files of version 1 and 2: usage, limit, the count of kills and its word, and the word for what can be taken back at once.
_FILES = (
    ("memory.usage_in_bytes", "memory.limit_in_bytes", "memory.oom_control", "total_inactive_file"),
    ("memory.current", "memory.max", "memory.events", "inactive_file"),
)
#: Above this there is no limit worth the name: version 1 says "none" by a number near 2**63.
_NO_LIMIT = 2**60
_HIGH = 0.8
#: The biggest variables are looked for again when usage has grown by this share of the limit.
_STEP = 1 / 16
#: How often memory is looked at while a cell runs, in seconds.
TICK_SECONDS = 0.5


class Group:
    """One control group, as far as it says how much memory is used."""

    def __init__(self, place: Path, files: tuple[str, str, str, str]) -> None:
        usage, limit, events, self._idle = files
        self._usage, self._limit, self._events, self._stat = (
            str(place / name) for name in (usage, limit, events, "memory.stat")
        )

    def limit(self) -> int | None:
        """In bytes; None where there is none."""
        said = _read(self._limit)
        return int(said) if said.isdigit() and int(said) < _NO_LIMIT else None

    def used(self, limit: int) -> int:
        """What is used and cannot be taken back, in bytes. Below the mark what can be is not told apart: that costs a read."""
        said = _read(self._usage)
        used = int(said) if said.isdigit() else 0
        return used if used < limit * _HIGH else max(0, used - _word(_read(self._stat), self._idle))

    def kills(self) -> int:
        """How many of its processes have been killed for want of memory."""
        return _word(_read(self._events), "oom_kill")


def own_group() -> Group | None:
    """The innermost group of this process that has a limit; None where none has."""
    for base, files in zip(_BASES, _FILES, strict=True):
        if (base / "memory.stat").exists() or (base / "cgroup.procs").exists():
            for place in _places(base):
                group = Group(place, files)
                if group.limit() is not None:
                    return group
    return None


def _places(base: Path) -> list[Path]:
    """The directories of this process's group and of those around it, as they can be seen from here."""
    name = ""
    for line in _read(str(_GROUPS)).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == ("" if base == _BASES[1] else "memory"):
            name = path.lstrip("/")
    inner = base / name
    return [place for place in (inner, *inner.parents) if place.is_relative_to(base) and place.is_dir()]


class Gauge:
    """Looks at the group after each cell and, by a thread that sleeps while no cell runs, during one.

    ``biggest`` names the biggest variables, ``say`` tells the owner in mid-cell.
    """

    def __init__(self, group: Group | None, biggest: Callable[[], list[tuple[str, int]]], say: Callable[[Any], None]) -> None:
        self._group = group
        self._biggest = biggest
        self._say = say
        self._listed = 0
        self._list: list[tuple[str, int]] = []
        self._was_high = False
        self._kills = self._kills_before = 0
        self._running = False
        self._sleeps = True
        self._wake = threading.Semaphore(0)
        if group is not None:
            self._kills_before = group.kills()
            threading.Thread(target=self._watch, name="memory", daemon=True).start()

    def begin_cell(self) -> None:
        """Look at the memory every now and then from here on. The thread is awake anyway if the last cell was just now."""
        self._running = True
        if self._sleeps:
            self._sleeps = False
            self._wake.release()

    def end_cell(self) -> dict[str, Any] | None:
        """What is used now, and by what; None where there is no limit."""
        self._running = False
        with suppress(Exception):  # what a group says is anybody's guess, and must cost no reply
            return self._look()
        return None

    def _watch(self) -> None:
        while True:
            self._wake.acquire()
            ran = True
            while ran:  # one look more than there are cells: between quick ones nobody is woken
                time.sleep(TICK_SECONDS)  # a file of the system tells nobody when it changes; only while cells run
                ran = self._running
                with suppress(Exception):
                    if ran:
                        self._look_within()
            self._sleeps = True
            if self._running and self._sleeps:  # a cell began meanwhile, and saw nobody asleep
                self._sleeps = False
                self._wake.release()

    def _look_within(self) -> None:
        high, kills, listed = self._was_high, self._kills, self._listed
        told = self._look()
        if told is not None and self._running and (listed != self._listed or high != told["high"] or kills != told["kills"]):
            self._say(told)

    def _look(self) -> dict[str, Any] | None:
        limit = self._group.limit() if self._group is not None else None
        if self._group is None or limit is None:
            return None
        used = self._group.used(limit)
        high = used >= limit * _HIGH
        if abs(used - self._listed) >= limit * _STEP or high > self._was_high:
            self._listed, self._list = used, self._biggest()
        self._was_high, self._kills = high, self._group.kills() - self._kills_before
        return {"used": used, "limit": limit, "high": high, "kills": self._kills, "biggest": self._list}


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:  # noqa: PTH123 - read after every cell
            return file.read().strip()
    except OSError:
        return ""


def _word(text: str, name: str) -> int:
    """The number behind a word at the beginning of a line; 0 where there is none."""
    for line in text.splitlines():
        word, _, number = line.partition(" ")
        if word == name and number.isdigit():
            return int(number)
    return 0
