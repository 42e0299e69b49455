"""The kernel's mark in the first environment of this process, where other processes read it (``/proc/PID/environ``)."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path

from ..protocol import KERNEL_MARK_VARIABLE

_PREFIX = f"{KERNEL_MARK_VARIABLE}=".encode()
#: Where proc_pid_stat(5) has ``env_start`` and ``env_end``, counted from the field after the command's name.
_ENV_START, _ENV_END = 47, 48


def replace_mark(mark: str) -> None:
    """Replace the mark by another one of the same length; nothing happens in a process that began without any.

    A fork has the first environment of its original until then.
    """
    with suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        start, end = int(fields[_ENV_START]), int(fields[_ENV_END])
        position, value = start, mark.encode("ascii")
        for entry in ctypes.string_at(start, end - start).split(b"\0"):
            if entry.startswith(_PREFIX) and len(entry) == len(_PREFIX) + len(value):
                ctypes.memmove(position + len(_PREFIX), value, len(value))
                return
            position += len(entry) + 1
