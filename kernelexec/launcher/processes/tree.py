"""The tree of processes below this process: adopted orphans, zombies, their end, and the mark of the kernel's processes."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .. import platform
from ..owner import exempt
from ..platform import prctl
from ..protocol import KERNEL_MARK_VARIABLE, SUDO_VARIABLE
from . import proc

#: The mark of the kernel's first environment; cells may change the present one.
MARK_ENVIRONMENT: dict[str, str] = {}

#: Whether the kernel may use sudo to kill processes of its commands that run as root.
_by_sudo = False

#: Whether orphans become children of this process, so that it has children as long as any descendant lives.
_adopts = False

#: Children that are not the user's: checkpoints. They outlive this process: what waits for children or ends them spares them.
own_children: set[int] = set()

#: Process groups of the commands that run now.
running_groups: set[int] = set()

_ADOPT = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)
_SUDO_SECONDS = 5.0
_NUMBER_BYTES = 32
#: Where proc_pid_stat(5) has ``env_start`` and ``env_end``, counted from the field after the command's name.
_ENV_START, _ENV_END = 47, 48


def initialize_tree() -> None:
    """Note this process's mark, and adopt orphans."""
    global _by_sudo  # noqa: PLW0603 - one tree a process
    proc.open_own_score()
    MARK_ENVIRONMENT.update({name: value for name, value in os.environ.items() if name == KERNEL_MARK_VARIABLE})
    _by_sudo = os.environ.get(SUDO_VARIABLE) == "1"
    adopt_orphans()


def adopt_orphans() -> None:
    """Become the parent of all orphaned descendants (Linux)."""
    global _adopts  # noqa: PLW0603 - one tree a process
    if platform.PLATFORM.adopts_orphans:
        with suppress(OSError, AttributeError):
            prctl(_ADOPT, 1)
            _adopts = True


@contextmanager
def leave_orphans() -> Iterator[None]:
    """Leave orphans to the next adopting process above, within the block; forks of this process adopt none."""
    # prctl(2): a fork does not inherit the setting, so only this process sets it again.
    own_pid = os.getpid()
    if _adopts:
        prctl(_ADOPT, 0)
    try:
        yield
    finally:
        if _adopts and os.getpid() == own_pid:
            prctl(_ADOPT, 1)


def fork_orphan() -> int:
    """Fork an orphan: a process whose parent has ended; return its id, and 0 in the orphan.

    Raises:
        OSError: the system can fork no process.
    """
    own_pid = os.getpid()
    out, into = os.pipe()
    try:
        if (middle := platform.fork()) == 0:
            if pid := platform.fork():
                os.write(into, str(pid).encode())
                os._exit(0)
            return 0
        with suppress(ChildProcessError):  # user code may have the system forget its children
            os.waitpid(middle, 0)
        # The middle process has ended, so its answer is there or never comes; the orphan holds the pipe open too.
        os.set_blocking(out, False)
        return int(os.read(out, _NUMBER_BYTES))
    except OSError:  # also where nothing can be read, since the second fork failed
        if os.getpid() != own_pid:
            os._exit(1)
        raise
    finally:
        os.close(out)
        os.close(into)


def has_descendants() -> bool:
    """Return whether this process has a living descendant; True where the system cannot tell quickly."""
    return not _adopts or has_children()


def has_children() -> bool:
    """Return whether user code has a child, zombies included: one system call, unless there are ``own_children``."""
    if own_children:
        return any(child not in own_children for child in list_children())
    try:
        # WNOWAIT leaves a zombie to user code, which may wait for it.
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    except AttributeError:  # missing on some systems
        pass
    return True


def reap_adopted() -> None:
    """Reap ended adopted children, except possible children of user code, which waits for them itself.

    Children of this process are in its session or lead their own. Adopted ones of this kind stay zombies until the kernel ends.
    """
    if not platform.PLATFORM.adopts_orphans:
        return
    with suppress(OSError, AttributeError):  # another thread may wait for it at the same moment
        if not own_children and os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return
    own_session = os.getsid(0)
    for pid in list_children():
        status = proc.read_status(pid)
        if status is not None and status.has_ended and status.session not in (0, own_session, pid):
            with suppress(OSError):
                os.waitpid(pid, os.WNOHANG)


def kill_marked(name: str, mark: str) -> None:
    """Kill every process with a mark in its environment, except this process and ``own_children``."""
    entry = f"{name}={mark}".encode()
    proc.kill_rounds(lambda table: [pid for pid in table if proc.has_variable(pid, entry)], spared=own_children)


def kill_group(group: int) -> None:
    """Kill a command's process group, and its root processes by sudo if the user may use sudo."""
    with suppress(OSError):
        platform.signal_group(group, platform.ENDING_SIGNALS[-1])
    if _by_sudo and any(_is_another_users(pid) for pid, status in proc.read_processes().items() if status.group == group):
        argv = ["sudo", "-n", "sh", "-c", f"kill -s KILL -- -{group}"]  # the shell's own ``kill``: the program may be missing
        devnull = subprocess.DEVNULL
        with suppress(OSError, subprocess.SubprocessError), exempt():
            subprocess.run(argv, stdin=devnull, stdout=devnull, stderr=devnull, timeout=_SUDO_SECONDS, check=False)


def _is_another_users(pid: int) -> bool:
    """Return whether a process lives and belongs to another user."""
    try:
        status = proc.read_status(pid)
        return status is not None and not status.has_ended and (proc.PROC / str(pid)).stat().st_uid != os.getuid()
    except OSError:
        return False  # gone


def kill_descendants() -> None:
    """Kill all processes of this kernel: by process group, descent and mark."""
    if not has_descendants():
        return
    for group in tuple(running_groups):
        with suppress(OSError):
            platform.signal_group(group, platform.ENDING_SIGNALS[-1])
    proc.kill_rounds(lambda table: proc.find_descendants(os.getpid(), table), spared=own_children)
    for name, mark in MARK_ENVIRONMENT.items():
        kill_marked(name, mark)


def kill_tree(pid: int) -> None:
    """Kill a child of this process, the leader of a session, and all its descendants.

    The child is stopped meanwhile, so its children keep their parent. Orphans are found by the session.
    """
    with suppress(OSError):
        os.kill(pid, signal.SIGSTOP)
    proc.kill_rounds(lambda table: proc.find_descendants(pid, table, session=pid))
    with suppress(OSError):
        os.kill(pid, signal.SIGKILL)


def list_children(pid: int | None = None) -> list[int]:
    """Return the children of all threads of a process, by default this process; nothing where the system does not list them."""
    pids: list[int] = []
    for listing in proc.PROC.glob(f"{pid or 'self'}/task/*/children"):
        with suppress(OSError):
            pids += map(int, listing.read_text().split())
    return pids


def replace_mark(mark: str) -> None:
    """Replace the mark in this process's first environment, read by other processes, by a mark of the same length.

    A fork has the first environment of its original until then. Nothing happens in a process that began without a mark.
    """
    replace_first_value(KERNEL_MARK_VARIABLE, mark)


def replace_first_value(name: str, text: str) -> None:
    """Replace a variable of the first environment by ASCII text of the same length; do nothing without such a variable."""
    # ``/proc/PID/environ`` shows the memory from exec(2), which ``os.environ`` never changes: so that memory is written.
    prefix = f"{name}=".encode()
    with suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        start, end = int(fields[_ENV_START]), int(fields[_ENV_END])
        position, value = start, text.encode("ascii")
        for entry in ctypes.string_at(start, end - start).split(b"\0"):
            if entry.startswith(prefix) and len(entry) == len(prefix) + len(value):
                ctypes.memmove(position + len(prefix), value, len(value))
                return
            position += len(entry) + 1
