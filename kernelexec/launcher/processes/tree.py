"""The tree of processes below this one: adopted orphans, zombies, and their end."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from .. import platform
from ..platform import prctl
from ..protocol import KERNEL_MARK_VARIABLE, SUDO_VARIABLE
from . import proc
from .exec_audit import exempt

#: The mark of the kernel's first environment; cells may change the present one.
MARK_ENVIRONMENT: dict[str, str] = {}

#: Whether the kernel may use sudo to kill processes of its commands that run as root.
_by_sudo = False

#: Process groups of the commands that run now.
running_groups: set[int] = set()

_ADOPT = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)
_SUDO_SECONDS = 5.0
_SCORE, _HIGHEST_SCORE, _SCORE_BYTES = proc.PROC / "self/oom_score_adj", 1000, 16
#: Opened at the start, while the process may still write it.
_score_file: int | None = None


def initialize_tree() -> None:
    """Note this process's mark, and adopt orphans."""
    global _by_sudo, _score_file  # noqa: PLW0603 - one tree a process
    with suppress(OSError):
        _score_file = os.open(_SCORE, os.O_RDWR | os.O_CLOEXEC)
    MARK_ENVIRONMENT.update({name: value for name, value in os.environ.items() if name == KERNEL_MARK_VARIABLE})
    _by_sudo = os.environ.get(SUDO_VARIABLE) == "1"
    adopt_orphans()


def adopt_orphans() -> None:
    """Become the parent of all descendants whose own parents end (Linux)."""
    if platform.PLATFORM.adopts_orphans:
        with suppress(OSError, AttributeError):
            prctl(_ADOPT, 1)


def has_children() -> bool:
    """Return whether there is any child, zombies included, by one system call."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    except AttributeError:  # missing on some systems
        pass
    return True


def reap_adopted() -> None:
    """Reap adopted children that have ended, unless they may be children of user code, which waits for them itself.

    Children of this process are in its session or lead their own. Adopted ones of that kind stay zombies until the kernel ends.
    """
    if not platform.PLATFORM.adopts_orphans:
        return
    with suppress(OSError, AttributeError):  # another thread may wait for it at the same moment
        if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return
    own_session = os.getsid(0)
    for pid in _children():
        status = proc.read_status(pid)
        if status is not None and status.has_ended and status.session not in (0, own_session, pid):
            with suppress(OSError):
                os.waitpid(pid, os.WNOHANG)


@contextmanager
def oom_before_us() -> Iterator[None]:
    """Mark processes that are started within the block to be killed before this one when memory is short.

    The score is inherited, since a shell may start others before it could be marked. It stays as it is on systems where a
    process that raised its own score cannot lower it again.
    """
    before = _read_score()
    if before is None or before >= _HIGHEST_SCORE or not (_set_score(before + 1) and _set_score(before)):
        yield
        return
    _set_score(_HIGHEST_SCORE)
    try:
        yield
    finally:
        _set_score(before)


def _read_score() -> int | None:
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


def kill_marked(name: str, mark: str) -> None:
    """Kill every process but this one that carries a mark in its environment."""
    entry = f"{name}={mark}".encode()
    proc.kill_rounds(lambda table: [pid for pid in table if proc.has_variable(pid, entry)])


def kill_group(group: int) -> None:
    """Kill a command's process group, and its root processes by sudo if the user has that."""
    with suppress(OSError):
        platform.signal_group(group, platform.ENDING_SIGNALS[-1])
    if _by_sudo and any(_is_another_users(pid) for pid, status in proc.read_processes().items() if status.group == group):
        argv = ["sudo", "-n", "sh", "-c", f"kill -s KILL -- -{group}"]  # the shell's own ``kill``: the program may be missing
        devnull = subprocess.DEVNULL
        with suppress(OSError, subprocess.SubprocessError), exempt():
            subprocess.run(argv, stdin=devnull, stdout=devnull, stderr=devnull, timeout=_SUDO_SECONDS, check=False)


def _is_another_users(pid: int) -> bool:
    """Return whether a living process is another user's."""
    try:
        status = proc.read_status(pid)
        return status is not None and not status.has_ended and (proc.PROC / str(pid)).stat().st_uid != os.getuid()
    except OSError:
        return False  # gone


def kill_descendants() -> None:
    """Kill all processes that this kernel started: by process group, descent and mark."""
    for group in tuple(running_groups):
        with suppress(OSError):
            platform.signal_group(group, platform.ENDING_SIGNALS[-1])
    proc.kill_rounds(lambda table: proc.find_descendants(os.getpid(), table))
    for name, mark in MARK_ENVIRONMENT.items():
        kill_marked(name, mark)


def kill_tree(pid: int) -> None:
    """Kill a child of this process that leads a session, and all processes that it started.

    The child is stopped meanwhile, so that no process gets another parent; orphans are found by the session.
    """
    with suppress(OSError):
        os.kill(pid, signal.SIGSTOP)
    proc.kill_rounds(lambda table: proc.find_descendants(pid, table, session=pid))
    with suppress(OSError):
        os.kill(pid, signal.SIGKILL)


def _children() -> list[int]:
    """Return the children of all threads; nothing where the system does not list them."""
    pids: list[int] = []
    for listing in proc.PROC.glob("self/task/*/children"):
        with suppress(OSError):
            pids += map(int, listing.read_text().split())
    return pids
