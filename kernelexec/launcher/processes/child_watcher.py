"""A child process with its output, its end and a way to end it."""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from .. import platform
from . import tree

#: Size and number of reads: an unprivileged pipe holds at most a mebibyte.
_READ_BYTES, _READS = 64 * 1024, 16
#: Interval of looks at a process where it has no descriptor, in seconds.
_LOOK_SECONDS = 0.05
#: The longest time of one poll, in milliseconds.
_LONGEST_MS = 2**31 - 2
_DECODE = json.JSONDecoder().decode


class OwnerGone(Exception):
    """The kernel has ended or has closed its end of the pipe."""


class WatchedChild:
    """A child and its output, which is read as it comes and kept up to a bound, so that the child never waits."""

    def __init__(self, pid: int, pipes: dict[str, tuple[int, int]], owner: int | None = None) -> None:
        self.received = {name: bytearray() for name in pipes}
        self.exit_code: int | None = None
        self._pid, self._owner = pid, owner
        self._names = {fd: (name, room) for name, (fd, room) in pipes.items()}
        self._poll = select.poll()
        self._handle = os.pidfd_open(pid) if platform.PLATFORM.has_pidfd else None
        for fd in self._names:
            os.set_blocking(fd, False)
        for watched in (*self._names, self._handle, owner):
            if watched is not None:
                self._poll.register(watched, select.POLLIN)

    def watch(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Read until the child has ended or ``until`` is true; return False once the seconds are over.

        Raises:
            OwnerGone: the owner has closed its end.
        """
        deadline = time.monotonic() + seconds
        while not (until() or self.has_ended()):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            left = left if self._handle is not None else min(left, _LOOK_SECONDS)
            ready = [fd for fd, _ in self._poll.poll(int(min(left * 1000, _LONGEST_MS)) + 1)]
            if self._owner in ready:
                raise OwnerGone
            for fd in ready:
                self._read(fd)
        return True

    def has_ended(self) -> bool:
        """Return whether the child has ended, also if it was reaped elsewhere."""
        try:
            info = os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return True
        if info is not None:
            self.exit_code = info.si_status if info.si_code == os.CLD_EXITED else -info.si_status
        return info is not None

    def lines(self) -> list[Any]:
        """Return the child's reports, one for each line of JSON."""
        reports = []
        for line in bytes(self.received["reports"]).split(b"\n")[:-1]:
            with suppress(ValueError, RecursionError):  # user code in the child may write anything
                reports.append(_DECODE(line.decode()))
        return reports

    def drain(self) -> None:
        """Read the output so far only: a process that escaped may go on writing."""
        for fd in list(self._names):
            for _ in range(_READS):
                if not self._read(fd):
                    break

    def end(self) -> None:
        """Kill the child and its descendants, read the rest and close all descriptors."""
        with suppress(ChildProcessError):  # it was reaped elsewhere, so its id may be another process's
            os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            tree.kill_tree(self._pid)
        self.drain()
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        for fd in (*self._names, *(() if self._handle is None else (self._handle,))):
            os.close(fd)

    def _read(self, fd: int) -> bool:
        """Read the output that is ready; return whether there was any."""
        if fd not in self._names:
            return False
        name, room = self._names[fd]
        try:
            content = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return False
        self.received[name] += content[: max(room - len(self.received[name]), 0)]
        if not content:
            self._poll.unregister(fd)
            os.close(fd)
            del self._names[fd]
        return bool(content)
