"""Finding and ending every process that a kernel started, also those that left its session or process group.

A kernel carries a mark in its environment, which its descendants inherit. What drops the mark (``env -i``) is still found
while it stays in the kernel's session, and, as long as the kernel lives, by its descent: the launcher adopts orphans.
What dropped both is lost when its kernel crashes: a local kernel is no wall.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import socket
import struct
from collections.abc import Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from kernelexec.provisioning import platform

NAME = "KERNELEXEC_KERNEL"
_PROC, _GROUPS = Path("/proc"), Path("/sys/fs/cgroup")
_SWEEPS = 5
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
        return {NAME: self.value}

    def holders(self, leader: Leader | None = None) -> list[int]:
        """The ids of all living processes that carry the mark, belong to the leader's session, or descend from it."""
        return list(self._find(leader))

    def signal(self, signum: int, *, leader: Leader | None = None, spare: Container[int] = ()) -> int:
        """Signal every holder but those to ``spare``, each through a pidfd so that a reused id is never hit; how many were."""
        return sum(_signal(pid, signum, found, 0) for pid, found in self._find(leader).items() if pid not in spare)

    def sweep(self, leader: Leader | None = None, spare: int | None = None) -> int:
        """Kill all but ``spare`` until nobody is left (bounded, for what forks faster than it dies); how many were killed."""
        if not platform.HERE.process_handles:
            return 0
        killed: set[int] = set()
        for _ in range(_SWEEPS):
            found = {pid: status for pid, status in self._find(leader).items() if pid != spare}
            killed.update(pid for pid in found if _signal(pid, signal.SIGKILL, found[pid], _DEATH_MILLISECONDS))
            if not found:
                break
        return len(killed)

    def _find(self, leader: Leader | None) -> dict[int, Status]:
        table = {pid: status for pid in _processes() if (status := status_of(pid))}
        first = table.get(leader.pid) if leader else None
        known = leader.pid if leader and (first is None or first.born == leader.born) else None
        family = _descendants(known, table) if known else set()
        needle = f"{NAME}={self.value}".encode()

        def belongs(pid: int) -> bool:
            return pid in family or table[pid].session == known or needle in _environ(pid)

        return {pid: table[pid] for pid in table if belongs(pid)}


@dataclass(frozen=True, slots=True)
class Status:
    """What the system says of a living process."""

    parent: int
    session: int
    born: int  # in clock ticks since the machine started: tells a process from the next one with its id


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


def children_of(parent: int, table: Mapping[int, Status] | None = None) -> set[int]:
    """The living processes whose parent it is."""
    known = {pid: status for pid in _processes() if (status := status_of(pid))} if table is None else table
    return {pid for pid, status in known.items() if status.parent == parent}


def programs_of(guard: int) -> dict[int, int]:
    """The programs that a guarded kernel runs, children of the guard's only child: ids, and when they were born."""
    table = {pid: status for pid in _processes() if (status := status_of(pid))}
    kernels = children_of(guard, table)
    return {pid: status.born for pid, status in table.items() if status.parent in kernels}


class OomCount:
    """Counts what was killed for want of memory: in a process's own control group, or anywhere if that is silent."""

    def __init__(self, pid: int | None = None) -> None:
        self._file = next((file for file in _counts_of(pid) if file.is_file()), _PROC / "vmstat")

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
        for line in (_PROC / str(pid) / "cgroup").read_text().splitlines() if pid else ():
            _, controllers, path = line.split(":", 2)
            if controllers == "memory":
                yield _GROUPS / "memory" / path.lstrip("/") / "memory.oom_control"
            elif not controllers:
                yield _GROUPS / path.lstrip("/") / "memory.events.local"


def _processes() -> Iterator[int]:
    """All but this one."""
    if _PROC.is_dir():
        with os.scandir(_PROC) as entries:
            yield from (int(entry.name) for entry in entries if entry.name.isdigit() and int(entry.name) != os.getpid())


def _descendants(pid: int, table: dict[int, Status]) -> set[int]:
    family = more = {pid}
    while more:
        more = {child for child, status in table.items() if status.parent in more} - family
        family = family | more
    return family & table.keys()


def status_of(pid: int) -> Status | None:
    """Of a process by its id; None where it has ended."""
    try:
        return _read((_PROC / str(pid) / "stat").read_bytes())
    except (OSError, IndexError):
        return None


def _read(said: bytes) -> Status | None:
    fields = said.rpartition(b")")[2].split()
    return None if fields[0] in (b"Z", b"X") else Status(int(fields[1]), int(fields[3]), int(fields[19]))


def peer_of(sock: socket.socket) -> tuple[int, int] | None:
    """The process and the user at the other end of a unix socket; None where the system does not say."""
    if not platform.HERE.peers:
        return None
    pid, uid, _ = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return pid, uid


def has_ended(pid: int, born: int) -> bool:
    """Whether the process of that id that was born then is surely gone: not where that cannot be read."""
    try:
        said = (_PROC / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return True
    except OSError:
        return False
    status = _read(said)
    return status is None or status.born != born


def _environ(pid: int) -> list[bytes]:
    """Nothing for the processes of other users."""
    try:
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _signal(pid: int, signum: int, expected: Status, wait_milliseconds: int) -> bool:
    """Signal the process if it is still the expected one, and wait for its end if told to; whether it was signalled."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        status = status_of(pid)
        if status is None or status.born != expected.born:
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
