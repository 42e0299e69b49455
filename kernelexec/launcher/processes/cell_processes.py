"""The processes that a cell has started: its end by an interrupt ends them, and spares those of earlier cells."""

from __future__ import annotations

import _thread
import os
import signal
from contextlib import suppress

from .. import platform
from . import proc, tree

#: Rounds of signals: some programs fork faster than they die.
_ROUNDS = 5


class CellProcesses:
    """The descendants of the kernel that began after the running cell did.

    A process that one of an earlier cell starts meanwhile is an earlier one too, unless that has ended since.
    """

    def __init__(self) -> None:
        self._earlier: dict[int, int] = {}
        """The start of each descendant at the beginning of the cell."""
        self.lasting: set[int] = set()
        """Leaders of sessions of which no process belongs to a cell: background commands."""

    def begin(self) -> None:
        """Note which processes there are already."""
        self._earlier = {}
        if tree.has_children():
            self._earlier = {pid: status.born for pid, status in self._list(everything=True).items()}

    def interrupt(self) -> None:
        """Interrupt this process as SIGINT does, and then those of the cell in its process group."""
        if _ignores_interrupts():
            _thread.interrupt_main()  # C code, such as `system`, ignores the signal while it waits for a process
        else:
            os.kill(os.getpid(), signal.SIGINT)
        if tree.has_children():
            own_group = os.getpgrp()
            for pid, status in self._list().items():
                if status.group == own_group:
                    proc.signal_process(pid, signal.SIGINT, status)

    def kill(self) -> None:
        """Kill the processes of the cell, or all of the kernel where the system does not list them."""
        if not platform.PLATFORM.adopts_orphans:
            tree.kill_descendants()
        for _ in range(_ROUNDS):
            if not (listed := self._list()):
                return
            for pid, status in listed.items():
                proc.signal_process(pid, signal.SIGKILL, status)

    def _list(self, *, everything: bool = False) -> dict[int, proc.ProcessStatus]:
        """Return the living processes of the cell, or all descendants of this process."""
        listed: dict[int, proc.ProcessStatus] = {}
        pids = [pid for pid in tree.list_children() if pid not in tree.own_children]
        while pids:
            pid = pids.pop()
            status = proc.read_status(pid)
            if pid in listed or status is None or status.session in self.lasting:
                continue
            if not everything and self._earlier.get(pid) == status.born:
                continue
            if not status.has_ended:
                listed[pid] = status
            pids += tree.list_children(pid)
        return listed


def _ignores_interrupts() -> bool:
    """Return whether SIGINT is ignored while Python itself handles it."""
    with suppress(OSError, ValueError, StopIteration):
        with open(proc.PROC / "self" / "status", encoding="ascii", errors="replace") as file:  # noqa: PTH123 - read at once
            ignored = next(line for line in file if line.startswith("SigIgn:"))
        return bool(int(ignored.partition(":")[2], 16) >> (signal.SIGINT - 1) & 1)
    return False
