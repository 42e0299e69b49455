"""A child of this process, watched: what it writes, when it ends, and that it ends."""

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

#: A pipe holds a mebibyte at most, unless root has it hold more.
_READ_BYTES, _READS = 64 * 1024, 16
#: How often a process is looked at without descriptors, in seconds.
_LOOK_SECONDS = 0.05
#: The longest that can be polled for, in milliseconds.
_LONGEST_MS = 2**31 - 2
_DECODE = json.JSONDecoder().decode


class OwnerLeft(Exception):
    """The kernel has ended, or wants no more of it."""


class Watched:
    """A child, and what it writes: read as it comes, and kept up to a bound, so that it never waits for us."""

    def __init__(self, pid: int, pipes: dict[str, tuple[int, int]], owner: int | None = None) -> None:
        self.kept = {name: bytearray() for name in pipes}
        self.exit_code: int | None = None
        self._pid, self._owner = pid, owner
        self._names = {fd: (name, room) for name, (fd, room) in pipes.items()}
        self._poll = select.poll()
        self._handle = os.pidfd_open(pid) if platform.HERE.process_handles else None
        for fd in self._names:
            os.set_blocking(fd, False)
        for watched in (*self._names, self._handle, owner):
            if watched is not None:
                self._poll.register(watched, select.POLLIN)

    def watch(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Read until it has ended, or ``until`` says so; False once the seconds are over.

        Raises:
            OwnerLeft: the owner has closed its end.
        """
        deadline = time.monotonic() + seconds
        while not (until() or self.has_ended()):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            left = left if self._handle is not None else min(left, _LOOK_SECONDS)
            ready = [fd for fd, _ in self._poll.poll(int(min(left * 1000, _LONGEST_MS)) + 1)]
            if self._owner in ready:
                raise OwnerLeft
            for fd in ready:
                self._read(fd)
        return True

    def has_ended(self) -> bool:
        """Whether it has, or nobody can tell any more: it was waited for elsewhere."""
        try:
            found = os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return True
        if found is not None:
            self.exit_code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        return found is not None

    def lines(self) -> list[Any]:
        """What it told: a line each, in JSON."""
        found = []
        for line in bytes(self.kept["told"]).split(b"\n")[:-1]:
            with suppress(ValueError, RecursionError):  # whose code runs in the child may write anything
                found.append(_DECODE(line.decode()))
        return found

    def drain(self) -> None:
        """Read what was written so far, and no more: who has left this family may go on."""
        for fd in list(self._names):
            for _ in range(_READS):
                if not self._read(fd):
                    break

    def end(self) -> None:
        """End it and all that it started, read what is left, and close what is open."""
        with suppress(ChildProcessError):  # it was waited for elsewhere: its id may be another's
            os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            tree.end_tree(self._pid)
        self.drain()
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        for fd in (*self._names, *(() if self._handle is None else (self._handle,))):
            os.close(fd)

    def _read(self, fd: int) -> bool:
        """Read what is there: whether there was anything."""
        if fd not in self._names:
            return False
        name, room = self._names[fd]
        try:
            found = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return False
        self.kept[name] += found[: max(room - len(self.kept[name]), 0)]
        if not found:
            self._poll.unregister(fd)
            os.close(fd)
            del self._names[fd]
        return bool(found)
