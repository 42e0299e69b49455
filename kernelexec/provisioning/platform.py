"""What differs between systems, decided in one place: nothing else on this side asks which one it runs on.

Only Linux has all of it. What another lacks is a value here, so that both ways can be taken, and tested, on any machine;
who mends a system finds its row in ``System.of``. The launcher has a module of its own for that, ``launcher/platform``.
"""

from __future__ import annotations

import importlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal, Self

_NEW_PROCESS_GROUP = 0x200  # CREATE_NEW_PROCESS_GROUP, which subprocess knows on Windows only
#: Which byte of a file is locked where bytes are: beyond what anybody writes, since it cannot be read by others meanwhile.
_LOCKED_BYTE = 2**31 - 2
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class System:
    """One system, as far as this side of kernels can tell it from others."""

    name: str
    transport: Literal["ipc", "curve"]
    """How kernels on this machine are reached: by unix sockets that descriptors pin, or by encrypted ones on loopback ports."""
    loopbacks: bool
    """Whether all of 127.0.0.0/8 is the machine's own, not one address alone."""
    fork_server: bool
    """Whether kernels can be forked: that takes files in memory, and descriptors of processes."""
    process_handles: bool
    """Whether processes have descriptors, and ``/proc`` tells of them: by these a kernel's descendants are found and ended."""
    peers: bool
    """Whether a unix socket tells which process is at its other end."""
    apart: Mapping[str, Any]
    """How a program is started that leads a process group of its own, as arguments of ``subprocess.Popen``."""
    signals: bool
    """Whether such a group can be signalled. Windows has an event for an interrupt, which jupyter_client knows, and no more."""
    programs: str
    """Which directory of a virtual environment holds its programs."""
    interpreter: str
    """What the interpreter there is called."""
    confinement: tuple[str, ...]
    """Which layers there can be of what confines a kernel on this machine."""
    own_containers: bool
    """Whether containers may run on this machine's own kernel, so that unix sockets cross."""
    locks: Literal["fcntl", "msvcrt"]
    """The module that locks files."""
    users: bool
    """Whether files and processes belong to users that have numbers."""

    @classmethod
    def of(cls, platform: str) -> Self:
        """The system that Python calls by that name; one that nobody has looked at is taken for the poorer Unix, macOS."""
        linux, windows = platform == "linux", platform == "win32"
        return cls(
            name=platform,
            transport="ipc" if linux else "curve",
            loopbacks=linux,
            fork_server=linux,
            process_handles=linux and hasattr(os, "pidfd_open"),
            peers=linux and hasattr(socket, "SO_PEERCRED"),
            apart={"creationflags": _NEW_PROCESS_GROUP} if windows else {"start_new_session": True},
            signals=not windows,
            programs="Scripts" if windows else "bin",
            interpreter="python.exe" if windows else "python",
            confinement=("no-new-privileges", "landlock", "capabilities", "no-network") if linux else (),
            own_containers=linux,
            locks="msvcrt" if windows else "fcntl",
            users=not windows,
        )


#: This machine's.
HERE = System.of(sys.platform)
#: The launcher writes every thread's stack on this signal, also while a C loop holds the interpreter's lock: on Linux, which
#: containers run whatever this machine does. It is SIGRTMIN + 3, which signal(7) has as 34 + 3 for programs of the C library.
STACKS_SIGNAL = int(getattr(signal, "SIGRTMIN", 34)) + 3


def user() -> int:
    """The number of the user that this process runs as, as files have it."""
    return os.getuid() if HERE.users else 0


def is_root() -> bool:
    """Whether this process may do all on the machine."""
    return HERE.users and os.geteuid() == 0


def lock(fd: int, *, shared: bool = False) -> None:
    """Lock an open file, without waiting, until it is closed or this process ends. Windows knows no shared locks.

    Raises:
        BlockingIOError: somebody else holds it.
        OSError: files cannot be locked there.
    """
    if HERE.locks == "fcntl":
        import fcntl  # noqa: PLC0415 - not on Windows

        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        return
    msvcrt = importlib.import_module("msvcrt")
    before = os.lseek(fd, 0, os.SEEK_CUR)
    os.lseek(fd, _LOCKED_BYTE, os.SEEK_SET)  # it locks from where the file is read
    try:
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
    except PermissionError as exc:
        raise BlockingIOError(exc.errno, exc.strerror) from exc
    finally:
        os.lseek(fd, before, os.SEEK_SET)


def kill_group(leader: int) -> None:
    """Kill a program that was started ``apart`` with its process group; where groups cannot be killed, that program alone.

    Raises:
        OSError: there is none, or it is somebody else's.
    """
    if HERE.signals:
        os.killpg(leader, signal.SIGKILL)
    else:
        os.kill(leader, signal.SIGTERM)  # Windows ends a process at once by it


def loopback() -> str | None:
    """The one loopback address there is; None where any of 127.0.0.0/8 will do."""
    return None if HERE.loopbacks else _LOOPBACK


def in_forked_children(call: Callable[[], None]) -> None:
    """Have it called in each child that this process forks, where processes fork."""
    if (register := getattr(os, "register_at_fork", None)) is not None:
        register(after_in_child=call)


def read_only(fd: int) -> bool:
    """Whether an open file cannot be written; where the system does not tell, the first write will."""
    try:
        import fcntl  # noqa: PLC0415 - not on Windows
    except ImportError:
        return False
    return fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY


def open_files() -> int | None:
    """How many files this process may have open; None where nothing bounds them."""
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return None
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def homes(*, of_all: bool = False) -> set[str]:
    """The home directories of this user, as the system has it, or of all; empty where there is no such list."""
    try:
        import pwd  # noqa: PLC0415 - not on Windows
    except ImportError:
        return set()
    with suppress(KeyError):
        return {each.pw_dir for each in (pwd.getpwall() if of_all else [pwd.getpwuid(user())])}
    return set()


def widen(pipe: int, size: int) -> None:
    """Have a pipe hold so many bytes, where it can be told how many."""
    with suppress(ImportError, AttributeError):
        import fcntl  # noqa: PLC0415 - not on Windows, and pipes have sizes on Linux only

        if size > fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, size)


@contextmanager
def unseen(terminal: int) -> Iterator[None]:
    """Show nothing of what is typed at a terminal meanwhile, where that can be told it."""
    try:
        import termios  # noqa: PLC0415 - not on Windows
    except ImportError:
        yield
        return
    before = termios.tcgetattr(terminal)
    hidden = [*before]
    hidden[3] &= ~termios.ECHO
    termios.tcsetattr(terminal, termios.TCSANOW, hidden)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSANOW, before)
