"""Differences between operating systems in the kernel's process. No other module of the launcher asks for the system.

Only Linux has all features. The driver has a module of its own, since the launcher imports nothing that is not mounted.
"""

from __future__ import annotations

import os
import shutil
import signal
import struct
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

_NEW_PROCESS_GROUP = 0x200  # CREATE_NEW_PROCESS_GROUP, which subprocess knows on Windows only
_BREAK = 1  # CTRL_BREAK_EVENT, which signal knows there only
#: The names that an owner gives to limits, and what the system calls them.
_LIMITS = {
    "nofile": "RLIMIT_NOFILE",
    "core": "RLIMIT_CORE",
    "fsize_bytes": "RLIMIT_FSIZE",
    "nproc": "RLIMIT_NPROC",
    "as_bytes": "RLIMIT_AS",
}


def _there(name: str) -> Any:
    """Import a module; return None where this system has none of that name."""
    try:
        return import_module(name)
    except ImportError:
        return None


#: None on Windows, all of them.
fcntl, resource, termios = _there("fcntl"), _there("resource"), _there("termios")


@dataclass(frozen=True)
class LauncherPlatform:
    """Features of one operating system."""

    name: str
    shells: tuple[tuple[str, ...], ...]
    """What runs commands, with the option that a command comes behind: the first one that is there, or else the last."""
    lasting: bool
    """Whether these can save what a command changed by ``cd`` and ``export``: nothing does on Windows."""
    apart: Mapping[str, Any]
    """How a program is started that leads a process group of its own, as arguments of ``subprocess.Popen``."""
    signals: bool
    """Whether such a group can be signalled; else it gets CTRL_BREAK_EVENT, and its leader is ended alone."""
    stacks: int | None
    """The signal on which every thread's stack is written: one that no program uses, which only Linux has to spare."""
    adopts: bool
    """Whether this process can become the parent of orphans, and a child can be ended with its parent."""
    process_handles: bool
    """Whether processes have descriptors, which tell of their end."""
    confinement: tuple[str, ...]
    """The layers that there can be of what confines this process."""
    peak_unit_bytes: int
    """What the system counts a process's peak of memory in."""
    programs: str
    """Which directory of a virtual environment holds its programs."""

    @classmethod
    def of(cls, platform: str) -> LauncherPlatform:
        """Return the features of a system by Python's name of it; an unknown one is treated as macOS, the poorer Unix."""
        linux, windows = platform == "linux", platform == "win32"
        unix = (("bash", "-c"), ("sh", "-c"))
        return cls(
            name=platform,
            shells=(("powershell", "-NoProfile", "-Command"), ("cmd", "/c")) if windows else unix,
            lasting=not windows,
            apart={"creationflags": _NEW_PROCESS_GROUP} if windows else {"start_new_session": True},
            signals=not windows,
            stacks=int(signal.SIGRTMIN) + 3 if linux else None,
            adopts=linux,
            process_handles=linux and hasattr(os, "pidfd_open"),
            confinement=("no-new-privileges", "landlock", "capabilities", "no-network") if linux else (),
            peak_unit_bytes=1024 if linux else 1,
            programs="Scripts" if windows else "bin",
        )


#: This machine's.
PLATFORM = LauncherPlatform.of(sys.platform)
#: What ends a program, gentlest first. Windows has no SIGKILL: there SIGTERM is as hard.
ENDING = (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM))


def default_shell() -> list[str]:
    """Return the shell that runs commands, with the option before the command."""
    return list(next((shell for shell in PLATFORM.shells if shutil.which(shell[0])), PLATFORM.shells[-1]))


def signal_group(leader: int, signum: int) -> None:
    """Signal the process group of a program that was started with ``apart``.

    Raises:
        OSError: there is no such group, or it is another user's.
    """
    if PLATFORM.signals:
        os.killpg(leader, signum)
    else:
        os.kill(leader, _BREAK if signum == signal.SIGINT else signal.SIGTERM)


def leads_group() -> bool:
    """Return whether this process leads a process group that can be signalled."""
    return PLATFORM.signals and os.getpgrp() == os.getpid()


def lower_limit(name: str, value: int) -> None:
    """Lower a limit of this process and its children, where the system has it, to ``value``, or to what it may be at most."""
    kind = getattr(resource, _LIMITS.get(name, ""), None)
    if kind is None:
        return
    _, hard = resource.getrlimit(kind)
    bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
    try:
        resource.setrlimit(kind, (bound, bound))
    except (ValueError, OSError):
        return


def cpu_seconds() -> float:
    """Return the processor time of this process and, where the system counts it, of its children that have ended."""
    if resource is None:
        return time.process_time()
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return float(own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime)


def peak_memory_bytes() -> int | None:
    """Return the peak memory of this process; None where the system does not count it."""
    return None if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * PLATFORM.peak_unit_bytes


def unread_bytes(fd: int) -> int:
    """Return how many bytes wait in a pipe; 0 where the system does not say."""
    if termios is None:
        return 0
    try:
        count: int = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0"))[0]
    except OSError:
        return 0
    return count
