"""Finding and ending every process that a kernel started, also those that left its session or process group.

A kernel carries a mark in its environment, which its descendants inherit. What drops the mark (``env -i``) is still found
while it stays in the kernel's session. Code that drops both on purpose gets away: a local kernel is no wall.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

NAME = "KERNELEXEC_KERNEL"
_PROC = Path("/proc")
_SWEEPS = 5
_DEATH_MILLISECONDS = 100


@dataclass(frozen=True, slots=True)
class Mark:
    """One kernel's mark: 128 random bits."""

    value: str = field(default_factory=lambda: secrets.token_hex(16))

    @property
    def environ(self) -> dict[str, str]:
        """The mark as the environment variable that it is."""
        return {NAME: self.value}

    def holders(self, session_id: int | None = None) -> list[int]:
        """The ids of all living processes of this user that carry the mark or belong to the session."""
        return [pid for pid in _processes() if self._marks(pid) or (session_id and _session_of(pid) == session_id)]

    def signal(self, signum: int, *, session_id: int | None = None, spare: int | None = None) -> int:
        """Signal every holder but ``spare``, each through a pidfd so that a reused id is never hit; how many were."""
        return sum(self._signal(pid, signum, session_id, 0) for pid in self.holders(session_id) if pid != spare)

    def sweep(self, session_id: int | None = None) -> int:
        """Kill until nobody is left (bounded, for what forks faster than it dies); how many were killed."""
        if not hasattr(os, "pidfd_open"):
            return 0
        killed: set[int] = set()
        for _ in range(_SWEEPS):
            found = self.holders(session_id)
            killed.update(pid for pid in found if self._signal(pid, signal.SIGKILL, session_id, _DEATH_MILLISECONDS))
            if not found:
                break
        return len(killed)

    def _signal(self, pid: int, signum: int, session_id: int | None, wait_milliseconds: int) -> bool:
        """Signal one process if it is still a holder, and wait for its end if told to; whether it was signalled."""
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            return False
        try:
            if not (self._marks(pid) or (session_id and _session_of(pid) == session_id)):
                return False
            signal.pidfd_send_signal(fd, signum)
            if wait_milliseconds:
                ended = select.poll()
                ended.register(fd, select.POLLIN)
                ended.poll(wait_milliseconds)
        except OSError:
            return False
        finally:
            os.close(fd)
        return True

    def _marks(self, pid: int) -> bool:
        try:
            return f"{NAME}={self.value}".encode() in (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
        except OSError:
            return False


def oom_kills() -> int:
    """How many processes this machine has killed for want of memory since it started, in any control group; 0 if unknown."""
    try:
        lines = (_PROC / "vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def _processes() -> Iterator[int]:
    if not _PROC.is_dir():
        return
    uid, own = os.getuid(), os.getpid()
    with os.scandir(_PROC) as entries:
        for entry in entries:
            if entry.name.isdigit() and int(entry.name) != own:
                with suppress(OSError):
                    if entry.stat().st_uid == uid:
                        yield int(entry.name)


def _session_of(pid: int) -> int | None:
    try:
        text = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    fields = text.rpartition(b")")[2].split()
    return int(fields[3]) if fields[0] not in (b"Z", b"X") else None
