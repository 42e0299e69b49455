"""The kernel's mark in the first environment of this process, where other processes read it (``/proc/PID/environ``)."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path

from ..protocol import KERNEL_MARK_VARIABLE

#: Where proc_pid_stat(5) has ``env_start`` and ``env_end``, counted from the field after the command's name.
_ENV_START, _ENV_END = 47, 48


def replace_mark(mark: str) -> None:
    """Replace the mark by another one of the same length; nothing happens in a process that began without any.

    A fork has the first environment of its original until then.
    """
    replace_first_value(KERNEL_MARK_VARIABLE, mark)


def replace_first_value(name: str, text: str) -> None:
    """Replace a variable of the first environment by ASCII text of the same length; nothing happens without such a variable."""
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
