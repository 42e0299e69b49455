"""The processes that come from this one: known, reaped and ended, also those whose parents are gone."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .. import platform
from ..libc import prctl
from .exec_audit import trusted

#: The owner's mark on a kernel and on all that it starts.
KERNEL_MARK = "KERNELEXEC_KERNEL"
#: The mark as the kernel was started with it: the cells may do to the environment what they like.
MARKED: dict[str, str] = {}

#: Whether this user becomes root by sudo, and the kernel is to use that on what its own commands leave.
_by_sudo = False

#: Process groups of the commands that run now.
running: set[int] = set()

_PROC = Path("/proc")
_ADOPT = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)
_ROUNDS = 5
_SUDO_SECONDS = 5.0
_SCORE, _FIRST, _SCORE_BYTES = _PROC / "self/oom_score_adj", 1000, 16
#: Open from the beginning: what a kernel may write later is another matter.
_score_file: int | None = None


def begin_family() -> None:
    """Take the mark that this process has now, and adopt orphans."""
    global _by_sudo, _score_file  # noqa: PLW0603 - one process, one family
    with suppress(OSError):
        _score_file = os.open(_SCORE, os.O_RDWR | os.O_CLOEXEC)
    MARKED.update({name: value for name, value in os.environ.items() if name == KERNEL_MARK})
    _by_sudo = os.environ.get("KERNELEXEC_SUDO") == "1"
    adopt_orphans()


def adopt_orphans() -> None:
    """Become the parent of all descendants whose own parents end (Linux)."""
    if platform.HERE.adopts:
        with suppress(OSError, AttributeError):
            prctl(_ADOPT, 1)


def has_children() -> bool:
    """Whether there is any child, ended ones that nobody has waited for included. One system call."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    except AttributeError:  # not on every system
        pass
    return True


def reap_adopted() -> None:
    """Wait for adopted children that have ended, where they can be told from user code's own, which it waits for itself.

    A child of ours is in our session or leads its own. Adopted ones of that kind stay zombies until the kernel ends.
    """
    if not platform.HERE.adopts:
        return
    with suppress(OSError, AttributeError):  # another thread may wait for it at the same moment
        if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return
    own = os.getsid(0)
    for pid in _children():
        _, session, ended = _status(pid)
        if ended and session not in (0, own, pid):
            with suppress(OSError):
                os.waitpid(pid, os.WNOHANG)


@contextmanager
def dying_first() -> Iterator[None]:
    """What is started within is killed before this process where memory is short: the state is here.

    It is inherited, since a shell may have started others before anybody could mark it. Whoever raises their own score may
    lower it again to what it was by the system's will, but for odd systems: there everything stays as it is.
    """
    before = _score()
    if before is None or before >= _FIRST or not (_set_score(before + 1) and _set_score(before)):
        yield
        return
    _set_score(_FIRST)
    try:
        yield
    finally:
        _set_score(before)


def _score() -> int | None:
    if _score_file is None:
        return None
    try:
        return int(os.pread(_score_file, _SCORE_BYTES, 0))
    except (OSError, ValueError):
        return None


def _set_score(score: int) -> bool:
    try:
        return _score_file is not None and os.pwrite(_score_file, str(score).encode(), 0) > 0
    except OSError:
        return False


def sweep(name: str, mark: str) -> None:
    """Kill every process but this one that carries a mark in its environment."""
    needle = f"{name}={mark}".encode()

    def marked(pid: int) -> bool:
        return needle in (_PROC / str(pid) / "environ").read_bytes().split(b"\0")

    for entry in _PROC.glob("[0-9]*"):
        pid = int(entry.name)
        with suppress(OSError):
            if pid != os.getpid() and marked(pid):
                _kill(pid, marked)


def kill_group(group: int) -> None:
    """Kill a command's process group; what it made root's too, where sudo is there for that."""
    with suppress(OSError):
        platform.signal_group(group, platform.ENDING[-1])
    if _by_sudo and any(_is_anothers(int(entry.name), group) for entry in _PROC.glob("[0-9]*")):
        argv = ["sudo", "-n", "sh", "-c", f"kill -s KILL -- -{group}"]  # the shell's own: there may be no program for it
        none = subprocess.DEVNULL
        with suppress(OSError, subprocess.SubprocessError), trusted():
            subprocess.run(argv, stdin=none, stdout=none, stderr=none, timeout=_SUDO_SECONDS, check=False)


def _is_anothers(pid: int, group: int) -> bool:
    """Whether a process of the group lives and is not this user's."""
    try:
        place = _PROC / str(pid)
        state, _, found = (place / "stat").read_bytes().rpartition(b")")[2].split()[:3]
        return int(found) == group and state not in (b"Z", b"X") and place.stat().st_uid != os.getuid()
    except (OSError, ValueError):
        return False  # gone


def kill_descendants() -> None:
    """Kill all that this kernel started: by process group, by descent, and by mark."""
    for group in tuple(running):
        with suppress(OSError):
            platform.signal_group(group, platform.ENDING[-1])
    end_others()
    for name, mark in MARKED.items():
        sweep(name, mark)


def end_others(spared: Container[int] = ()) -> None:
    """Kill the descendants of this process, but for those that are spared."""
    for _ in range(_ROUNDS):
        if not _kill_below(os.getpid(), spared):
            break


def end_tree(pid: int) -> None:
    """Kill a child of this process that leads a session, and all that it started.

    It is stopped meanwhile, so that none gets another parent; what had got one before is known by the session.
    """
    with suppress(OSError):
        os.kill(pid, signal.SIGSTOP)
    for _ in range(_ROUNDS):
        if not _kill_below(pid, of_session=True):
            break
    with suppress(OSError):
        os.kill(pid, signal.SIGKILL)


def descendants(pid: int, *, of_session: bool = False) -> set[int]:
    """The living descendants of a process; with ``of_session`` also what is in the session that it leads."""
    table = {int(entry.name): _status(int(entry.name)) for entry in _PROC.glob("[0-9]*")}
    family = more = {pid} | {child for child, (_, session, _) in table.items() if of_session and session == pid}
    while more:
        more = {child for child, (parent, _, _) in table.items() if parent in more} - family
        family = family | more
    return {child for child in family - {pid} if child in table and not table[child][2]}


def _kill_below(pid: int, spared: Container[int] = (), *, of_session: bool = False) -> int:
    """Kill the living descendants that a process has now, but for some; how many were."""
    family = {pid, *(found := descendants(pid, of_session=of_session))}

    def belongs(child: int) -> bool:
        parent, session, _ = _status(child)
        return parent in family or (of_session and session == pid)

    return sum(_kill(child, belongs) for child in found if child not in spared)


def _status(pid: int) -> tuple[int, int, bool]:
    """A process's parent, its session, and whether it has ended."""
    try:
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        return int(fields[1]), int(fields[3]), fields[0] in (b"Z", b"X")
    except (OSError, ValueError, IndexError):
        return 0, 0, True  # gone


def _children() -> list[int]:
    """Of every thread; nothing where the system does not list them."""
    found: list[int] = []
    for listing in _PROC.glob("self/task/*/children"):
        with suppress(OSError):
            found += map(int, listing.read_text().split())
    return found


def _kill(pid: int, belongs: Callable[[int], bool]) -> bool:
    """Kill a process that still belongs to us once it is held by a descriptor: an id can be another's by now."""
    with suppress(OSError, AttributeError):  # not every system has descriptors of processes
        fd = os.pidfd_open(pid)
        try:
            if belongs(pid):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
                return True
        finally:
            os.close(fd)
    return False
