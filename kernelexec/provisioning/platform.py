"""Differences between operating systems, as values: no other module of the driver checks the system's name.

Only Linux has all features. Tests of both branches run on any machine, because each missing feature is a value.
``Platform.of`` lists the values of all systems. The launcher has a module of the same purpose, ``launcher/platform``.
"""

from __future__ import annotations

import importlib
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal, Self, TextIO

_NEW_PROCESS_GROUP = 0x200  # CREATE_NEW_PROCESS_GROUP, which subprocess knows on Windows only
#: Offset of the locked byte on Windows: beyond all content, since others cannot read a locked byte.
_LOCKED_BYTE = 2**31 - 2


@dataclass(frozen=True, slots=True)
class Platform:
    """The features of one operating system."""

    name: str
    has_unix_sockets: bool
    """Whether kernels can be reached by unix sockets."""
    has_loopback_range: bool
    """Whether all addresses of 127.0.0.0/8 belong to the machine, not one alone."""
    has_fork_server: bool
    """Whether kernels can be forked, which needs memfd and pidfd."""
    has_pidfd: bool
    """Whether the system has pidfd and ``/proc``, by which a kernel's descendants are listed and ended."""
    has_peer_credentials: bool
    """Whether a unix socket reports the process at its other end."""
    process_group_options: Mapping[str, Any]
    """Arguments of ``subprocess.Popen`` for a program that leads its own process group."""
    has_group_signals: bool
    """Whether such a group can be signalled. Windows only has an event for interrupts, which jupyter_client uses."""
    venv_directory: str
    """Name of the directory with the programs of a virtual environment."""
    venv_interpreter: str
    """Name of the interpreter in that directory."""
    confinement: tuple[str, ...]
    """The layers of confinement that the system may have."""
    has_local_containers: bool
    """Whether containers may share this machine's kernel, so that their unix sockets can be reached."""
    lock_module: Literal["fcntl", "msvcrt"]
    """The module that locks files."""
    has_user_ids: bool
    """Whether files and processes have numeric user ids."""

    @classmethod
    def of(cls, platform: str) -> Self:
        """Return the features of a system by the name in ``sys.platform``; an unknown system is treated as macOS."""
        linux, windows = platform == "linux", platform == "win32"
        return cls(
            name=platform,
            has_unix_sockets=not windows,
            has_loopback_range=linux,
            has_fork_server=linux,
            has_pidfd=linux and hasattr(os, "pidfd_open"),
            has_peer_credentials=linux and hasattr(socket, "SO_PEERCRED"),
            process_group_options={"creationflags": _NEW_PROCESS_GROUP} if windows else {"start_new_session": True},
            has_group_signals=not windows,
            venv_directory="Scripts" if windows else "bin",
            venv_interpreter="python.exe" if windows else "python",
            confinement=("no-new-privileges", "landlock", "capabilities", "no-network") if linux else (),
            has_local_containers=linux,
            lock_module="msvcrt" if windows else "fcntl",
            has_user_ids=not windows,
        )


#: The features of this machine.
PLATFORM = Platform.of(sys.platform)
#: The launcher writes every thread's stack on this signal, also while a C loop holds the interpreter's lock. It works on
#: Linux, and so in all containers. It is SIGRTMIN + 3, which is 34 + 3 for programs of the C library (signal(7)).
STACKS_SIGNAL = int(getattr(signal, "SIGRTMIN", 34)) + 3


def user_id() -> int:
    """Return the user id of this process; 0 without user ids."""
    return os.getuid() if PLATFORM.has_user_ids else 0


def is_root() -> bool:
    """Return whether this process has the rights of root."""
    return PLATFORM.has_user_ids and os.geteuid() == 0


def find_uid(user: str) -> int | None:
    """Return the user id of an account by name or number; None if this machine does not know the name."""
    if user.isdecimal():
        return int(user)
    if not PLATFORM.has_user_ids:
        return None
    import pwd  # noqa: PLC0415 - not on Windows

    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        return None


def lock(fd: int, *, shared: bool = False) -> None:
    """Lock an open file, without waiting, until the file is closed or this process ends. Windows has no shared locks.

    Raises:
        BlockingIOError: another process holds the lock.
        OSError: the file system has no locks.
    """
    if PLATFORM.lock_module == "fcntl":
        import fcntl  # noqa: PLC0415 - not on Windows

        # flock, not fcntl(F_SETLK): a POSIX lock is lost when this process closes any other descriptor of the file.
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        return
    msvcrt = importlib.import_module("msvcrt")
    before = os.lseek(fd, 0, os.SEEK_CUR)
    os.lseek(fd, _LOCKED_BYTE, os.SEEK_SET)  # the lock starts at the file position
    try:
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
    except PermissionError as exc:
        raise BlockingIOError(exc.errno, exc.strerror) from exc
    finally:
        os.lseek(fd, before, os.SEEK_SET)


def empty_unused(fd: int) -> bool:
    """Empty a file unless a process has the file open other than with ``O_PATH``; return whether the file is empty now."""
    import fcntl  # noqa: PLC0415 - not on Windows

    try:
        # An O_PATH descriptor can neither be truncated nor leased, and a deleted file has no path but this one.
        writable = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.fcntl(writable, fcntl.F_SETLEASE, fcntl.F_WRLCK)  # refused while others have it open, or in memory
            os.ftruncate(writable, 0)
        finally:
            os.close(writable)
    except OSError:
        return False
    return True


def kill_group(leader: int) -> None:
    """Kill the process group of a program started with ``process_group_options``; without groups, the program alone."""
    if PLATFORM.has_group_signals:
        os.killpg(leader, signal.SIGKILL)
    else:
        os.kill(leader, signal.SIGTERM)  # Windows ends a process at once


def call_in_forked_children(call: Callable[[], None]) -> None:
    """Register a function for each forked child of this process; no effect on a system without fork."""
    if (register := getattr(os, "register_at_fork", None)) is not None:
        register(after_in_child=call)


def is_read_only(fd: int) -> bool:
    """Return whether an open file is read-only; False if unknown."""
    try:
        import fcntl  # noqa: PLC0415 - not on Windows
    except ImportError:
        return False
    return fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY


def open_files_limit() -> int | None:
    """Return this process's soft limit of open files; None without a limit."""
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return None
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def home_directories(*, of_all: bool = False) -> set[str]:
    """Return the home directories of this user or of all users from the user database; empty without one."""
    try:
        import pwd  # noqa: PLC0415 - not on Windows
    except ImportError:
        return set()
    with suppress(KeyError):
        return {each.pw_dir for each in (pwd.getpwall() if of_all else [pwd.getpwuid(user_id())])}
    return set()


def grow_pipe(pipe: int, size: int) -> None:
    """Enlarge a pipe to ``size`` bytes, if the system can."""
    with suppress(ImportError, AttributeError):
        import fcntl  # noqa: PLC0415 - not on Windows, and pipes have sizes on Linux only

        if size > fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, size)


@contextmanager
def hide_input(terminal: int) -> Iterator[None]:
    """Turn off the echo of a terminal within the block, if the system can."""
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


@contextmanager
def read_keys(terminal: int) -> Iterator[bool]:
    """Let a terminal deliver each key at once and without echo within the block; yield True.

    Yields False and changes nothing if the terminal does so already or is going away, or if the system has no such modes.
    """
    try:
        import termios  # noqa: PLC0415 - not on Windows

        before = termios.tcgetattr(terminal)
    except (ImportError, OSError, ValueError):
        yield False
        return
    except termios.error:  # no OSError
        yield False
        return
    if not before[3] & termios.ICANON:
        yield False
        return
    silent = [*before]
    silent[3] &= ~(termios.ICANON | termios.ECHO)
    with suppress(termios.error):
        termios.tcsetattr(terminal, termios.TCSANOW, silent)
    try:
        yield True
    finally:
        with suppress(termios.error):
            termios.tcsetattr(terminal, termios.TCSANOW, before)


def read_terminal_size(stream: TextIO) -> tuple[int, int, int, int]:
    """Return a terminal's rows, columns, and width and height in pixels; unknown values are 0."""
    with suppress(ImportError, OSError, ValueError):
        import fcntl  # noqa: PLC0415 - not on Windows
        import termios  # noqa: PLC0415 - as above

        rows, columns, width, height = struct.unpack("4H", fcntl.ioctl(stream.fileno(), termios.TIOCGWINSZ, bytes(8)))
        return rows, columns, width, height
    return 0, 0, 0, 0


def control_fd(fd: int, request: int, content: bytes) -> bytes:
    """Return the answer of ``ioctl``; only for systems with ``fcntl``."""
    import fcntl  # noqa: PLC0415 - not on Windows

    return fcntl.ioctl(fd, request, content)
