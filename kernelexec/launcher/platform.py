"""What differs between systems in the kernel's process, decided in one place: nothing else in here asks which one it is.

Only Linux has all of it. The owner's side has a module of its own for that: nothing in here imports what is not mounted.
"""

from __future__ import annotations

import os
import shutil
import signal
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
    """A module that not every system has; None where this one has not."""
    try:
        return import_module(name)
    except ImportError:
        return None


#: None on Windows, all of them.
fcntl, resource, termios = _there("fcntl"), _there("resource"), _there("termios")


@dataclass(frozen=True)
class System:
    """One system, as far as a kernel can tell it from others."""

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
    def of(cls, platform: str) -> System:
        """The system that Python calls by that name; one that nobody has looked at is taken for the poorer Unix, macOS."""
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
HERE = System.of(sys.platform)
#: What ends a program, gentlest first. Windows has no SIGKILL: there SIGTERM is as hard.
ENDING = (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM))


def a_shell() -> list[str]:
    """The shell that runs commands, with the option that a command comes behind."""
    return list(next((shell for shell in HERE.shells if shutil.which(shell[0])), HERE.shells[-1]))


def signal_group(leader: int, signum: int) -> None:
    """Signal the process group of a program that was started ``apart``.

    Raises:
        OSError: there is none, or it is somebody else's.
    """
    if HERE.signals:
        os.killpg(leader, signum)
    else:
        os.kill(leader, _BREAK if signum == signal.SIGINT else signal.SIGTERM)


def leads_group() -> bool:
    """Whether this process leads a process group that can be signalled."""
    return HERE.signals and os.getpgrp() == os.getpid()


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
    """The processor time of this process and of its children that have ended; of this process alone where none is told."""
    if resource is None:
        return time.process_time()
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return float(own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime)


def peak_memory_bytes() -> int | None:
    """The most memory that this process had; None where nobody counts."""
    return None if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * HERE.peak_unit_bytes
