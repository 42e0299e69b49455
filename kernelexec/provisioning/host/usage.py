"""What a kernel on this machine uses, with all that it started, as /proc has it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from kernelexec.results import Stats

_PROC = Path("/proc")


def usage_of(pids: Iterable[int]) -> Stats | None:
    """The sums over these processes, those that have ended left out; None where nothing can be read of any.

    Memory that several share counts once where the system tells shares; processor time includes that of children that ended.
    """
    memory, seconds, tasks, found = 0, 0.0, 0, False
    for pid in pids:
        with suppress(OSError, ValueError, IndexError):
            fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
            used = _memory(pid)
            memory += used
            seconds += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
            tasks += int(fields[17])
            found = True
    return Stats("local", "idle", 0, memory_bytes=memory, cpu_seconds=seconds, pids=tasks) if found else None


def _memory(pid: int) -> int:
    """The proportional share of a process, or else all that it has in memory."""
    with suppress(OSError):
        for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return int((_PROC / str(pid) / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
