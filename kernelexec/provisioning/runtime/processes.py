"""The processes of a kernel: search, signals, usage and end, also outside the kernel's session and process group.

A kernel has a marker in the environment, and descendants inherit the marker. A process without the marker (``env -i``) is found
by the kernel's session and, while the kernel lives, by parentage: the launcher adopts orphaned processes. A process outside
both is lost when the kernel crashes: local kernels are no security boundary.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import socket
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

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
)
from kernelexec.provisioning import platform
from kernelexec.results import Stats

_GROUPS = Path("/sys/fs/cgroup")
_PEER = struct.Struct("3i")
_DEATH_MILLISECONDS = 100
_GENERATIONS = 100
#: Exit status of a process that ended unobserved, where the system reports the real one to its parent only.
UNKNOWN_STATUS = 256
#: The request ``PIDFD_GET_INFO`` with the bit that asks for the exit status, which Linux 6.15 and later have of a process that
#: its parent has waited for, and its message.
_GET_INFO, _INFO_EXIT, _INFO = 0xC040FF0B, 1 << 3, struct.Struct("=Q52xi")


@dataclass(frozen=True, slots=True)
class SessionLeader:
    """A kernel's own process, the leader of a session: id and start time, since ids are reused."""

    pid: int
    born: int

    @classmethod
    def of(cls, pid: int) -> SessionLeader:
        """Return a child of this process; for an ended child the start time is -1, unlike any process."""
        status = read_live_status(pid)
        return cls(pid, status.born if status else -1)


@dataclass(frozen=True, slots=True)
class ProcessMarker:
    """The marker of one kernel: 128 random bits."""

    value: str = field(default_factory=lambda: secrets.token_hex(16))

    @property
    def environ(self) -> dict[str, str]:
        """The marker as an environment variable."""
        return {protocol.KERNEL_MARK_VARIABLE: self.value}

    @property
    def entry(self) -> bytes:
        """The marker as an entry of ``/proc/PID/environ``."""
        return f"{protocol.KERNEL_MARK_VARIABLE}={self.value}".encode()

    def marked_pids(self, leader: SessionLeader | None = None) -> list[int]:
        """Return the ids of all living processes with the marker, in the leader's session, or descended from the leader."""
        return list(self._find(leader))

    def sweep(self, leader: SessionLeader | None = None, spare: Collection[int] = ()) -> int:
        """Kill all except ``spare`` in bounded rounds, since processes may fork meanwhile; return the number of kills."""
        if not platform.PLATFORM.has_pidfd:
            return 0
        return len(kill_rounds(lambda table: self._find(leader, table), spared=spare, wait_milliseconds=_DEATH_MILLISECONDS))

    def _find(self, leader: SessionLeader | None, table: Mapping[int, ProcessStatus] | None = None) -> dict[int, ProcessStatus]:
        living = {pid: status for pid, status in (table or read_processes()).items() if not status.has_ended}
        # An ended leader still names its session, whose members keep that number: no other process gets it meanwhile. A living
        # process with the leader's id and another start time is a stranger, and so is its session.
        leader_status = living.get(leader.pid) if leader else None
        leader_pid = leader.pid if leader and (leader_status is None or leader_status.born == leader.born) else None
        family = find_descendants(leader_pid, living) | {leader_pid} if leader_pid else set()
        entry = self.entry

        def belongs(pid: int) -> bool:
            return pid in family or living[pid].session == leader_pid or has_variable(pid, entry)

        return {pid: living[pid] for pid in living if belongs(pid)}


def is_descendant(pid: int, ancestor: int) -> bool:
    """Return whether a process is ``ancestor`` or a living descendant."""
    return ancestor in walk_ancestors(pid)


def walk_ancestors(pid: int) -> Iterator[int]:
    """Yield a process, the parent, and so on, up to the first dead process or 100 generations."""
    for _ in range(_GENERATIONS):
        yield pid
        status = read_live_status(pid)
        if status is None or status.parent == 0:
            return
        pid = status.parent


def find_children(parent: int, table: Mapping[int, ProcessStatus] | None = None) -> set[int]:
    """Return the living children of a process."""
    processes = read_processes() if table is None else table
    return {pid for pid, status in processes.items() if status.parent == parent and not status.has_ended}


def find_guarded_children(guard: int) -> dict[int, int]:
    """Return ids and start times of the children of a guarded kernel, the guard's only child."""
    table = read_processes()
    kernels = find_children(guard, table)
    return {pid: status.born for pid, status in table.items() if status.parent in kernels and not status.has_ended}


class OomKillReader:
    """A counter of kills for want of memory: in a process's own control group, or else on the whole machine."""

    def __init__(self, pid: int | None = None) -> None:
        self._file = next((file for file in _find_counter_files(pid) if file.is_file()), PROC / "vmstat")
        self.reset()

    def reset(self) -> None:
        """Count later kills only."""
        self._kills = self._count_kills()

    @property
    def has_new_kills(self) -> bool:
        """Whether there was a kill since the creation of this reader or the last reset."""
        return self._count_kills() > self._kills

    def _count_kills(self) -> int:
        """Return the kills since the creation of the group or the boot; 0 if unreadable."""
        try:
            lines = self._file.read_text().splitlines()
        except OSError:
            return 0
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def _find_counter_files(pid: int | None) -> Iterator[Path]:
    """Yield the counter files of a process's control group, of version 1 and 2."""
    with suppress(OSError, ValueError):
        for line in (PROC / str(pid) / "cgroup").read_text().splitlines() if pid else ():
            _, controllers, path = line.split(":", 2)  # version 2 has the line 0::/path
            if controllers == "memory":
                yield _GROUPS / "memory" / path.lstrip("/") / "memory.oom_control"
            elif not controllers:
                # Not memory.events, which counts the kills in all groups below too.
                yield _GROUPS / path.lstrip("/") / "memory.events.local"


def read_live_status(pid: int) -> ProcessStatus | None:
    """Return the status of a living process; None for a missing process or a zombie."""
    status = read_status(pid)
    return None if status is None or status.has_ended else status


def read_peer(sock: socket.socket) -> tuple[int, int] | None:
    """Return the process id and user id at the other end of a unix socket; None if the system reports none."""
    if not platform.PLATFORM.has_peer_credentials:
        return None
    pid, uid, _ = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return pid, uid


def has_ended(pid: int, born: int) -> bool:
    """Return whether the process with that id and start time has certainly ended; False if the status is unreadable."""
    try:
        content = (PROC / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return True
    except OSError:  # EMFILE, for example: without a descriptor a living owner must not count as dead
        return False
    status = parse_status(content)
    return status.has_ended or status.born != born


def read_usage(pids: Iterable[int]) -> Stats | None:
    """Return the summed usage of all living processes of ``pids``; None if no process can be read.

    Shared memory counts once if the system reports shares. Processor time includes ended children.
    """
    memory, seconds, tasks, is_known = 0, 0.0, 0, False
    for pid in pids:
        with suppress(OSError, ValueError, IndexError):
            # The name in parentheses may itself hold ") ": the fields begin after the last parenthesis, with the state.
            fields = (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
            used = _read_memory(pid)
            memory += used
            seconds += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")  # utime, stime, cutime, cstime
            tasks += int(fields[17])  # threads
            is_known = True
    return Stats("local", "idle", 0, memory_bytes=memory, cpu_seconds=seconds, pids=tasks) if is_known else None


def _read_memory(pid: int) -> int:
    """Return the proportional memory share of a process in bytes, or else the resident memory."""
    with suppress(OSError):
        for line in (PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return int((PROC / str(pid) / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class AdoptedProcess:
    """A process started by another process, with the methods of ``Popen`` needed by a provisioner.

    A pidfd rules out confusion with a later process of the same id.
    """

    stdin = stdout = stderr = None

    def __init__(self, pid: int, fd: int) -> None:
        self.pid = pid
        self._fd: int | None = fd
        self._killed = False
        self._exit_status: int | None = None

    @classmethod
    def of(cls, pid: int, born: int) -> Self | None:
        """Return the process with that id and start time; None after the end."""
        try:
            fd = os.pidfd_open(pid)
        except (OSError, AttributeError):
            return None
        # Read after the pidfd is open: from here on the id cannot pass to another process without this check seeing it.
        status = read_live_status(pid)
        if status is None or status.born != born:
            os.close(fd)
            return None
        return cls(pid, fd)

    def duplicate_pidfd(self) -> int:
        """Return a duplicate of the pidfd; the caller must close the duplicate.

        Raises:
            ProcessLookupError: ``close`` or ``wait`` came before.
        """
        if self._fd is None:
            raise ProcessLookupError
        return os.dup(self._fd)

    def poll(self) -> int | None:
        """Return the exit status, None while the process lives.

        An unknown status is -9 after a kill by this object, else ``UNKNOWN_STATUS``.
        """
        if self._exit_status is None and self._fd is not None:
            if not _is_readable(self._fd, 0):
                return None
            self._exit_status = _read_exit_status(self._fd, self.pid)
        substitute = -signal.SIGKILL if self._killed else UNKNOWN_STATUS
        return substitute if self._exit_status is None else self._exit_status

    def wait(self) -> int:
        """Wait for the end and return the exit status as ``poll`` does. Blocks."""
        if self._fd is not None:
            _is_readable(self._fd, None)
        status = self.poll()
        assert status is not None
        self.close()
        return status

    async def wait_report(self) -> None:
        """Wait for a report of the exit status; only subclasses get reports."""

    def send_signal(self, signum: int) -> None:
        """Signal the process; an ended process gets no signal."""
        if self._fd is not None:
            self._killed |= signum == signal.SIGKILL
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._fd, signum)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Close the pidfd."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _is_readable(fd: int, milliseconds: int | None) -> bool:
    ended = select.poll()
    ended.register(fd, select.POLLIN)
    return bool(ended.poll(milliseconds))


def _read_exit_status(fd: int, pid: int) -> int | None:
    """Return the exit status of an ended process; None if the system reports the status to the parent only."""
    # A zombie shows the status in /proc; once the parent has waited for it, only the pidfd does (Linux 6.15). The parent may do
    # so between the two looks, so both are tried twice.
    for _ in range(2):
        with suppress(OSError):
            has, status = _INFO.unpack(platform.control_fd(fd, _GET_INFO, _INFO.pack(_INFO_EXIT, 0)))
            if has & _INFO_EXIT:
                return os.waitstatus_to_exitcode(status)
        with suppress(OSError, ValueError, IndexError):
            state, *fields = (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
            if state == b"Z":
                return os.waitstatus_to_exitcode(int(fields[48]))  # field 52 of proc(5), exit_code
    return None
