"""Finding and ending every process that a kernel started, also those that left its session or process group.

A kernel carries a mark in its environment, which its descendants inherit. What drops the mark (``env -i``) is still found
while it stays in the kernel's session, and, as long as the kernel lives, by its descent: the launcher adopts orphans.
What dropped both is lost when its kernel crashes: a local kernel is no wall.
"""

from __future__ import annotations

import secrets
import socket
import struct
from collections.abc import Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from kernelexec.launcher import protocol
from kernelexec.launcher.processes.proc import (
    PROC,
    ProcessStatus,
    find_descendants,
    has_variable,
    kill_rounds,
    parse_status,
    read_processes,
    read_status,
    signal_process,
)
from kernelexec.provisioning import platform

_GROUPS = Path("/sys/fs/cgroup")
_PEER = struct.Struct("3i")
_DEATH_MILLISECONDS = 100
_GENERATIONS = 100


@dataclass(frozen=True, slots=True)
class Leader:
    """A kernel's own process, which leads a session: by its id, and when it was born, since ids are given again."""

    pid: int
    born: int

    @classmethod
    def of(cls, pid: int) -> Leader:
        """A child of this process. Of one that has ended already nothing can be mistaken for it."""
        status = status_of(pid)
        return cls(pid, status.born if status else -1)


@dataclass(frozen=True, slots=True)
class Mark:
    """One kernel's mark: 128 random bits."""

    value: str = field(default_factory=lambda: secrets.token_hex(16))

    @property
    def environ(self) -> dict[str, str]:
        """The mark as the environment variable that it is."""
        return {protocol.KERNEL_MARK_VARIABLE: self.value}

    def holders(self, leader: Leader | None = None) -> list[int]:
        """The ids of all living processes that carry the mark, belong to the leader's session, or descend from it."""
        return list(self._find(leader))

    def signal(self, signum: int, *, leader: Leader | None = None, spare: Container[int] = ()) -> int:
        """Signal every holder but those to ``spare``, each through a pidfd so that a reused id is never hit; how many were."""
        return sum(signal_process(pid, signum, found) for pid, found in self._find(leader).items() if pid not in spare)

    def sweep(self, leader: Leader | None = None, spare: int | None = None) -> int:
        """Kill all but ``spare`` until nobody is left (bounded, for what forks faster than it dies); how many were killed."""
        if not platform.HERE.process_handles:
            return 0
        spared = () if spare is None else (spare,)
        return len(kill_rounds(lambda table: self._find(leader, table), spared=spared, wait_milliseconds=_DEATH_MILLISECONDS))

    def _find(self, leader: Leader | None, table: Mapping[int, ProcessStatus] | None = None) -> dict[int, ProcessStatus]:
        living = {pid: status for pid, status in (table or read_processes()).items() if not status.has_ended}
        first = living.get(leader.pid) if leader else None
        known = leader.pid if leader and (first is None or first.born == leader.born) else None
        family = find_descendants(known, living) | {known} if known else set()
        entry = f"{protocol.KERNEL_MARK_VARIABLE}={self.value}".encode()

        def belongs(pid: int) -> bool:
            return pid in family or living[pid].session == known or has_variable(pid, entry)

        return {pid: living[pid] for pid in living if belongs(pid)}


def descends(pid: int, ancestor: int) -> bool:
    """Whether a living process is another one, or comes from it."""
    return ancestor in ancestors_of(pid)


def ancestors_of(pid: int) -> Iterator[int]:
    """A process, its parent, and so on, as far as they live."""
    for _ in range(_GENERATIONS):
        yield pid
        status = status_of(pid)
        if status is None or status.parent == 0:
            return
        pid = status.parent


def children_of(parent: int, table: Mapping[int, ProcessStatus] | None = None) -> set[int]:
    """The living processes whose parent it is."""
    known = read_processes() if table is None else table
    return {pid for pid, status in known.items() if status.parent == parent and not status.has_ended}


def programs_of(guard: int) -> dict[int, int]:
    """The programs that a guarded kernel runs, children of the guard's only child: ids, and when they were born."""
    table = read_processes()
    kernels = children_of(guard, table)
    return {pid: status.born for pid, status in table.items() if status.parent in kernels and not status.has_ended}


class OomCount:
    """Counts what was killed for want of memory: in a process's own control group, or anywhere if that is silent."""

    def __init__(self, pid: int | None = None) -> None:
        self._file = next((file for file in _counts_of(pid) if file.is_file()), PROC / "vmstat")

    def kills(self) -> int:
        """Since the group, or the machine, came to be; 0 if nobody says."""
        try:
            lines = self._file.read_text().splitlines()
        except OSError:
            return 0
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def _counts_of(pid: int | None) -> Iterator[Path]:
    """Where the control group of a process counts, of version 1 and 2."""
    with suppress(OSError, ValueError):
        for line in (PROC / str(pid) / "cgroup").read_text().splitlines() if pid else ():
            _, controllers, path = line.split(":", 2)
            if controllers == "memory":
                yield _GROUPS / "memory" / path.lstrip("/") / "memory.oom_control"
            elif not controllers:
                yield _GROUPS / path.lstrip("/") / "memory.events.local"


def status_of(pid: int) -> ProcessStatus | None:
    """Return the status of a process; None where it has ended."""
    status = read_status(pid)
    return None if status is None or status.has_ended else status


def peer_of(sock: socket.socket) -> tuple[int, int] | None:
    """The process and the user at the other end of a unix socket; None where the system does not say."""
    if not platform.HERE.peers:
        return None
    pid, uid, _ = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return pid, uid


def has_ended(pid: int, born: int) -> bool:
    """Whether the process of that id that was born then is surely gone: not where that cannot be read."""
    try:
        said = (PROC / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return True
    except OSError:
        return False
    status = parse_status(said)
    return status.has_ended or status.born != born
