"""Processes in Linux's ``/proc``: status, descent, environment, out-of-memory score, and signals.

Driver and launcher both end trees of processes, so both import this module, which uses the standard library only. Systems
without ``/proc`` show no processes. On systems without descriptors of processes (pidfd) no process is signalled, since a signal
must never hit a reused id.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
#: The file of a process with its score (proc(5)), which is inherited. When memory is short, the system adds this number to the
#: memory of each process, in thousandths of all that there may be, and ends the one with the most.
_OOM_SCORE = "oom_score_adj"
HIGHEST_OOM_SCORE = 1000
_SCORE_BYTES = 16
#: A checkpoint is ended before the kernel unless the kernel alone uses this part of the memory, ...
_KERNELS_PART = 0.8
#: ... and in any case if both use the same, in thousandths of the memory.
_LEAST_MORE = 50
#: This process's own score, opened at the start, while it may still write it.
_own_score_file: int | None = None
#: How much of an environment is searched for a variable: four of the longest entries that Linux allows; a usual environment has
#: some KiB. The search finds ordinary programs, which inherit the variable: a program that hides from it can as well remove the
#: variable. Without a bound, long environments of many processes would hold up the end of every session.
_ENVIRONMENT_BYTES, _PIECE_BYTES = 512 * 1024, 64 * 1024
#: Rounds of signals: some programs fork faster than they die.
SIGNAL_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """The status of a process."""

    parent: int
    group: int
    session: int
    born: int
    """Start in clock ticks since boot: it distinguishes a process from a later one with the same id."""
    has_ended: bool
    """Whether it is a zombie."""
    is_stopped: bool = False
    """Whether a signal or a debugger has stopped it."""


def parse_status(content: bytes) -> ProcessStatus:
    """Parse ``/proc/PID/stat``; raise IndexError or ValueError for other content."""
    # proc_pid_stat(5): the second field is the program's name in brackets, and may contain blanks and brackets itself.
    fields = content.rpartition(b")")[2].split()
    parent, group, session, born = (int(fields[number]) for number in (1, 2, 3, 19))
    return ProcessStatus(parent, group, session, born, fields[0] in (b"Z", b"X"), fields[0] in (b"T", b"t"))


def read_status(pid: int) -> ProcessStatus | None:
    """Return the status of a process or zombie; None if there is no such process."""
    try:
        with open(f"{PROC}/{pid}/stat", "rb") as file:  # noqa: PTH123 - read for every process of the machine
            return parse_status(file.read())
    except (OSError, ValueError, IndexError):
        return None


def read_processes() -> dict[int, ProcessStatus]:
    """Return the status of every other process, zombies included."""
    own_pid = os.getpid()
    try:
        pids = [int(name) for name in os.listdir(PROC) if name.isdecimal()]  # noqa: PTH208 - names only
    except OSError:
        return {}
    return {pid: status for pid in pids if pid != own_pid and (status := read_status(pid)) is not None}


def find_descendants(pid: int, table: Mapping[int, ProcessStatus], *, session: int | None = None) -> set[int]:
    """Return the living descendants of a process, and of the members of a session."""
    family = more = {pid} | {member for member, status in table.items() if session is not None and status.session == session}
    while more:
        more = {child for child, status in table.items() if status.parent in more} - family
        family = family | more
    return {member for member in family - {pid} if member in table and not table[member].has_ended}


def has_variable(pid: int, entry: bytes) -> bool:
    """Return whether ``NAME=VALUE`` is in the head of a process's first environment; False for another user's process."""
    wanted, window, size = b"\0" + entry + b"\0", b"\0", 0
    try:
        with open(f"{PROC}/{pid}/environ", "rb", buffering=0) as file:  # noqa: PTH123 - as above
            while size < _ENVIRONMENT_BYTES:
                piece = file.read(_PIECE_BYTES)
                window += piece or b"\0"  # a process may have overwritten the end of its last entry
                if wanted in window:
                    return True
                if not piece:
                    break
                # The end is searched again with the next piece: an entry may lie across the border.
                window, size = window[-len(wanted) :], size + len(piece)
    except OSError:
        pass
    return False


def signal_process(pid: int, signum: int, expected: ProcessStatus, *, wait_milliseconds: int = 0) -> bool:
    """Signal a process unless its id was reused, and wait for the end; return whether the signal was sent."""
    try:
        descriptor = os.pidfd_open(pid)
    except (OSError, AttributeError):  # not every system has descriptors of processes
        return False
    try:
        # Checked after the opening: from there on the descriptor means one process, whatever becomes of its id.
        status = read_status(pid)
        if status is None or status.has_ended or status.born != expected.born:
            return False
        signal.pidfd_send_signal(descriptor, signum)
        if wait_milliseconds:
            ended = select.poll()
            ended.register(descriptor, select.POLLIN)
            ended.poll(wait_milliseconds)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def kill_rounds(
    find: Callable[[Mapping[int, ProcessStatus]], Iterable[int]], *, spared: Collection[int] = (), wait_milliseconds: int = 0
) -> set[int]:
    """Kill the living processes selected by ``find`` until none is left, at most ``SIGNAL_ROUNDS`` times; return the killed."""
    killed: set[int] = set()
    for _ in range(SIGNAL_ROUNDS):
        table = read_processes()
        selected = [pid for pid in find(table) if pid not in spared and not table[pid].has_ended]
        if not selected:
            break
        killed.update(
            pid for pid in selected if signal_process(pid, signal.SIGKILL, table[pid], wait_milliseconds=wait_milliseconds)
        )
    return killed


def open_own_score() -> None:
    """Open the score of this process, also in a copy of another process, whose descriptor means the other score."""
    global _own_score_file  # noqa: PLW0603 - one a process
    if _own_score_file is not None:
        os.close(_own_score_file)
        _own_score_file = None
    with suppress(OSError):
        _own_score_file = os.open(PROC / "self" / _OOM_SCORE, os.O_RDWR | os.O_CLOEXEC)


def read_own_score() -> int | None:
    """Return the score of this process; None if unknown."""
    if _own_score_file is None:
        return None
    try:
        return int(os.pread(_own_score_file, _SCORE_BYTES, 0))
    except (OSError, ValueError):
        return None


def _set_own_score(score: int) -> bool:
    try:
        return _own_score_file is not None and os.pwrite(_own_score_file, str(score).encode(), 0) > 0
    except OSError:
        return False


def set_oom_score(pid: int, score: int) -> None:
    """Set the score of this process or a child, where allowed: the confinement of local kernels allows neither."""
    with suppress(OSError):
        (PROC / str(pid) / _OOM_SCORE).write_text(str(score), encoding="ascii")


def give_oom_score(pid: int) -> None:
    """Set the score of a process, which may be the fork of a checkpoint, to the score of this process."""
    with suppress(OSError):
        score = (PROC / "self" / _OOM_SCORE).read_text(encoding="ascii")
        (PROC / str(pid) / _OOM_SCORE).write_text(score, encoding="ascii")


@contextmanager
def raise_oom_score(score: int = HIGHEST_OOM_SCORE) -> Iterator[None]:
    """Raise the score of processes started within the block, and of copies of this process.

    The score is inherited, since a shell may start other processes before a score could be set. Nothing changes on systems
    where a process cannot lower its own score after raising it.
    """
    own_pid, before = os.getpid(), read_own_score()
    # The trial is small: where the way back fails, this process keeps a score of one more, not the highest one.
    if before is None or before >= score or not (_set_own_score(before + 1) and _set_own_score(before)):
        yield
        return
    _set_own_score(score)
    try:
        yield
    finally:
        # A copy must not write: its descriptor is still that of this process's score.
        if os.getpid() == own_pid:
            _set_own_score(before)


def raise_oom_score_for_copy(score: int) -> AbstractContextManager[None]:
    """Let a copy forked within the block inherit a score, where confinement forbids the copy to set its own.

    Elsewhere this process keeps its score meanwhile: memory may become short by the fork itself.
    """
    return nullcontext() if _may_open_own_score() else raise_oom_score(score)


def _may_open_own_score() -> bool:
    try:
        os.close(os.open(PROC / "self" / _OOM_SCORE, os.O_WRONLY))
    except OSError:
        return False
    return True


def choose_checkpoint_score(limit_bytes: int | None) -> int:
    """Return the score of a checkpoint of this process, a kernel with a memory limit for both; None for the machine's memory.

    A cell writing to pages shared with the checkpoint must not be killed for the copies of these pages. A cell that needs all
    the memory for itself is killed, and the checkpoint survives.
    """
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    limit_bytes = limit_bytes or os.sysconf("SC_PHYS_PAGES") * page_bytes
    used_bytes = int((PROC / "self/statm").read_text(encoding="ascii").split()[1]) * page_bytes
    more = round(HIGHEST_OOM_SCORE * (_KERNELS_PART - used_bytes / limit_bytes))
    return min(HIGHEST_OOM_SCORE, (read_own_score() or 0) + max(_LEAST_MORE, more))
