"""The operating system in the kernel's process: differences between systems, and system calls missing in Python.

No other module of the launcher checks the system. Only Linux has all features. The driver has a module of its own, since the
launcher imports mounted modules only.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import signal
import struct
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

_NEW_PROCESS_GROUP = 0x200  # CREATE_NEW_PROCESS_GROUP, which subprocess knows on Windows only
_BREAK = 1  # CTRL_BREAK_EVENT, which signal knows there only
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, which mmap does not know
#: Limits by the owner's names, and their names in ``resource``.
_LIMITS = {
    "nofile": "RLIMIT_NOFILE",
    "core": "RLIMIT_CORE",
    "as_bytes": "RLIMIT_AS",
}


def _import_optional(name: str) -> Any:
    """Import a module; return None on systems without it."""
    try:
        return import_module(name)
    except ImportError:
        return None


#: None on Windows.
fcntl, pwd, resource, termios = map(_import_optional, ("fcntl", "pwd", "resource", "termios"))
fork: Any = getattr(os, "fork", None)
wait4: Any = getattr(os, "wait4", None)
waitid: Any = getattr(os, "waitid", None)


@dataclass(frozen=True)
class LauncherPlatform:
    """The features of an operating system."""

    name: str
    shells: tuple[tuple[str, ...], ...]
    """Shells with the option before a command: the first installed one runs commands, or else the last."""
    keeps_shell_state: bool
    """Whether the shells can save changes by ``cd`` and ``export``: those of Windows cannot."""
    new_group_options: Mapping[str, Any]
    """Arguments of ``subprocess.Popen`` for a program that leads a process group of its own."""
    has_group_signals: bool
    """Whether a group can be signalled; otherwise it gets CTRL_BREAK_EVENT, and only its leader is ended."""
    stacks_signal: int | None
    """The signal on which all threads' stacks are written. No program uses it; only Linux has a spare one."""
    adopts_orphans: bool
    """Whether this process can adopt orphans, and a child can be ended with its parent."""
    has_pidfd: bool
    """Whether processes have descriptors, which report their end."""
    confinement_layers: tuple[str, ...]
    """The layers of confinement that this system can have."""
    peak_unit_bytes: int
    """The unit of a process's peak memory."""
    programs_directory: str
    """The directory of programs in a virtual environment."""

    @classmethod
    def for_system(cls, platform: str) -> LauncherPlatform:
        """Return the features of a system by its ``sys.platform``; unknown systems count as macOS, the poorer Unix."""
        linux, windows = platform == "linux", platform == "win32"
        unix = (("bash", "-c"), ("sh", "-c"))
        return cls(
            name=platform,
            shells=(("powershell", "-NoProfile", "-Command"), ("cmd", "/c")) if windows else unix,
            keeps_shell_state=not windows,
            new_group_options={"creationflags": _NEW_PROCESS_GROUP} if windows else {"start_new_session": True},
            has_group_signals=not windows,
            stacks_signal=int(signal.SIGRTMIN) + 3 if linux else None,
            adopts_orphans=linux,
            has_pidfd=linux and hasattr(os, "pidfd_open"),
            confinement_layers=("no-new-privileges", "landlock", "capabilities", "no-network") if linux else (),
            peak_unit_bytes=1024 if linux else 1,
            programs_directory="Scripts" if windows else "bin",
        )


#: Signals that Python ignores in every program, for exceptions instead; ``subprocess`` restores them for its children.
_IGNORED_BY_PYTHON = {getattr(signal, name) for name in ("SIGPIPE", "SIGXFSZ", "SIGXFZ") if hasattr(signal, name)}
#: The features of this machine.
PLATFORM = LauncherPlatform.for_system(sys.platform)
#: Signals that end a program, the gentlest first. Windows has no SIGKILL, but its SIGTERM is as hard.
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM))


def default_shell() -> list[str]:
    """Return the shell for commands, with the option before the command."""
    return list(next((shell for shell in PLATFORM.shells if shutil.which(shell[0])), PLATFORM.shells[-1]))


def reset_signals() -> None:
    """Unblock all signals and restore the actions of a new Python program, since a parent may have changed both."""
    if not hasattr(signal, "pthread_sigmask"):
        return
    for signum in signal.valid_signals() - _IGNORED_BY_PYTHON:
        if signal.getsignal(signum) == signal.SIG_IGN:
            signal.signal(signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def signal_group(leader: int, signum: int) -> None:
    """Signal the group of a program started with ``new_group_options``; raise OSError if the group does not exist."""
    if PLATFORM.has_group_signals:
        os.killpg(leader, signum)
    else:
        os.kill(leader, _BREAK if signum == signal.SIGINT else signal.SIGTERM)


def leads_group() -> bool:
    """Return whether this process leads a process group, on a system with signals for groups."""
    return PLATFORM.has_group_signals and os.getpgrp() == os.getpid()


def lower_limit(name: str, value: int) -> None:
    """Lower a limit of this process and its children to ``value`` or to the hard limit; do nothing for unknown limits."""
    kind = getattr(resource, _LIMITS.get(name, ""), None)
    if kind is None:
        return
    _, hard = resource.getrlimit(kind)
    # Both limits are set, so that user code cannot raise the soft limit again.
    bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
    try:
        resource.setrlimit(kind, (bound, bound))
    except (ValueError, OSError):
        return


def cpu_seconds() -> float:
    """Return the processor time in seconds of this process and, if counted by the system, of its ended children."""
    if resource is None:
        return time.process_time()
    usage, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return float(usage.ru_utime + usage.ru_stime + children.ru_utime + children.ru_stime)


def peak_memory_bytes() -> int | None:
    """Return the peak memory of this process; None on systems without a count."""
    return None if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * PLATFORM.peak_unit_bytes


def unread_bytes(fd: int) -> int:
    """Return the number of unread bytes in a pipe; 0 on systems without a report."""
    if termios is None:
        return 0
    try:
        count: int = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0"))[0]
    except OSError:
        return 0
    return count


def can_allocate_pages(mapped: mmap.mmap) -> bool:
    """Return whether the system has ``allocate_pages``: Linux 5.14 or newer."""
    try:
        mapped.madvise(_POPULATE_WRITE, 0, 0)
    except (OSError, AttributeError):
        return False
    return True


def allocate_pages(mapped: mmap.mmap, start: int, size: int) -> None:
    """Allocate the blocks behind pages of a mapped file; raise OSError if the disk is full."""
    mapped.madvise(_POPULATE_WRITE, start, size)


def allocate_file(fd: int, size: int) -> None:
    """Allocate the blocks of an empty file; raise OSError if the disk is full."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
    else:
        os.pwrite(fd, bytes(size), 0)


def syscall(number: int, *arguments: Any) -> int:
    """Make a system call by number; raise OSError for a failed call."""
    return _check(_libc().syscall(ctypes.c_long(number), *arguments))


def prctl(option: int, *arguments: Any) -> None:
    """Change this process or thread by ``prctl(2)``; raise OSError for an unknown or refused option."""
    _check(_libc().prctl(option, *arguments, *[0] * (4 - len(arguments))))


def unshare(namespaces: int) -> None:
    """Move this thread to new namespaces by ``unshare(2)``; raise OSError if not permitted."""
    _check(_libc().unshare(namespaces))


def capset(header: bytes, sets: bytes) -> None:
    """Change this thread's capabilities by ``capset(2)``; raise OSError for capabilities beyond its own."""
    _check(_libc().capset(header, sets))


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


@cache
def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)
