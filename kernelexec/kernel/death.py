"""How a kernel's process ended, in the terms of results."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from kernelexec.results import Cause

_CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSYS, signal.SIGTRAP}


@dataclass(frozen=True, slots=True)
class Death:
    """The cause of a process's end, and its exit code as a shell reports it (128 + n for signal n)."""

    cause: Cause
    exit_code: int

    @classmethod
    def of(cls, status: int | None, *, out_of_memory: bool = False) -> Death:
        """Read a wait status of ``subprocess``."""
        if out_of_memory:
            return cls("oom", 137)
        if status is None or status >= 0:
            return cls("exited", status or 0)
        return cls("crashed" if -status in _CRASHES else "killed", 128 - status)
