"""The processes of cells: an interrupt ends those of the running cell, and ``os.wait`` waits for children of user code only.

A checkpoint is a child of the kernel and never ends by itself: code waiting for any child would wait for the checkpoint.
"""

from __future__ import annotations

import _thread
import errno
import os
import select
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from .. import platform
from . import proc, tree

#: Children of other threads may start while a wait blocks, so it looks for new ones after this time.
_LOOK_MILLISECONDS = 200
_wait4, _waitid = platform.wait4, platform.waitid


class CellProcesses:
    """The descendants of the kernel started since the beginning of the running cell.

    A process started meanwhile by a process of an earlier cell belongs to the earlier cell, while the parent lives.
    """

    def __init__(self) -> None:
        self._earlier: dict[int, int] = {}
        """The start of each descendant at the beginning of the cell."""
        self.lasting: set[int] = set()
        """Leaders of sessions of which no process belongs to a cell: background commands."""

    def begin(self) -> None:
        """Note the processes of earlier cells."""
        self._earlier = {}
        if tree.has_children():
            self._earlier = {pid: status.born for pid, status in self._list(everything=True).items()}

    def interrupt(self) -> None:
        """Interrupt this process as SIGINT does, and then the cell's processes in the same process group."""
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
        """Kill the processes of the cell, or all processes of the kernel where the system does not list them."""
        if not platform.PLATFORM.adopts_orphans:
            tree.kill_descendants()
        for _ in range(proc.SIGNAL_ROUNDS):
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
            # The start too: the id alone may be that of an earlier cell's process which has ended since.
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


def hide_own_children() -> None:
    """Let ``os.wait``, ``wait3``, ``wait4``, ``waitpid`` and ``waitid`` wait for no process of ``tree.own_children``."""
    if _wait4 is None or _waitid is None or os.wait is wait:
        return
    for function in (wait, wait3, wait4, waitpid, waitid):
        setattr(os, function.__name__, function)


def wait() -> tuple[int, int]:
    """Wait for the end of any child, as ``os.wait``."""
    return waitpid(-1, 0)


def wait3(options: int) -> tuple[int, int, Any]:
    """Wait for any child, as ``os.wait3``."""
    return wait4(-1, options)


def waitpid(pid: int, options: int) -> tuple[int, int]:
    """Wait for a child, as ``os.waitpid``."""
    return wait4(pid, options)[:2]


def wait4(pid: int, options: int) -> tuple[int, int, Any]:
    """Wait for a child, as ``os.wait4``."""
    if pid > 0 or not tree.own_children:
        return _wait4(pid, options)  # type: ignore[no-any-return]
    group = None if pid == -1 else -pid or os.getpgrp()
    change: tuple[int, int, Any] = _wait_any(
        group,
        lambda child: ended if (ended := _wait4(child, options | os.WNOHANG))[0] else None,
        (0, 0, None) if options & os.WNOHANG else None,
    )
    return change


def waitid(idtype: int, ident: int, options: int, /) -> Any:
    """Wait for a child, as ``os.waitid``."""
    if idtype not in (os.P_ALL, os.P_PGID) or not tree.own_children:
        return _waitid(idtype, ident, options)
    group = None if idtype == os.P_ALL else ident or os.getpgrp()
    change = _wait_any(
        group,
        lambda child: _waitid(os.P_PID, child, options | os.WNOHANG),
        _NOTHING if options & os.WNOHANG else None,
    )
    return None if change is _NOTHING else change


_NOTHING = object()


def _wait_any(group: int | None, look: Callable[[int], Any], none_yet: Any) -> Any:
    """Return the result of ``look`` for the first changed child of user code, or ``none_yet`` at once; wait if that is None."""
    while True:
        children = [child for child in tree.list_children() if child not in tree.own_children]
        if group is not None:
            statuses = {child: proc.read_status(child) for child in children}
            children = [child for child, status in statuses.items() if status is not None and status.group == group]
        if not children:
            raise ChildProcessError(errno.ECHILD, os.strerror(errno.ECHILD))
        for child in children:
            with suppress(ChildProcessError):  # another thread was faster
                if (change := look(child)) is not None:
                    return change
        if none_yet is not None:
            return none_yet
        _wait_for_end(children)


def _wait_for_end(children: list[int]) -> None:
    descriptors = []
    ended = select.poll()
    try:
        for child in children:
            with suppress(OSError):
                descriptors.append(os.pidfd_open(child))
                ended.register(descriptors[-1], select.POLLIN)
        ended.poll(_LOOK_MILLISECONDS)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
