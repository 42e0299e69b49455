"""System calls for which Python has no function."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import Any


def syscall(number: int, *arguments: Any) -> int:
    """Make a system call by its number.

    Raises:
        OSError: the call failed.
    """
    return _check(_libc().syscall(ctypes.c_long(number), *arguments))


def prctl(option: int, *arguments: Any) -> None:
    """Change this process or thread: ``prctl(2)``.

    Raises:
        OSError: the system does not know the option, or refuses it.
    """
    _check(_libc().prctl(option, *arguments, *[0] * (4 - len(arguments))))


def capset(header: bytes, sets: bytes) -> None:
    """Change this thread's capabilities: ``capset(2)``.

    Raises:
        OSError: the thread has no such capability.
    """
    _check(_libc().capset(header, sets))


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


@cache
def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)
