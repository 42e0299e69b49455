"""Resource usage of a kernel on this machine and of its descendants, read from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from kernelexec.results import Stats

_PROC = Path("/proc")


def read_usage(pids: Iterable[int]) -> Stats | None:
    """Return the sums over the living ones of these processes; None if none can be read.

    Shared memory counts once where the system reports shares; processor time includes that of ended children.
    """
    memory, seconds, tasks, is_known = 0, 0.0, 0, False
    for pid in pids:
        with suppress(OSError, ValueError, IndexError):
            fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
            used = _read_memory(pid)
            memory += used
            seconds += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
            tasks += int(fields[17])
            is_known = True
    return Stats("local", "idle", 0, memory_bytes=memory, cpu_seconds=seconds, pids=tasks) if is_known else None


def _read_memory(pid: int) -> int:
    """Return the proportional memory share of a process, or else all of its memory."""
    with suppress(OSError):
        for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return int((_PROC / str(pid) / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
