"""The limit of open files, which an executor and its kernels need some of before anything runs."""

from __future__ import annotations

import os
from contextlib import suppress

from kernelexec.errors import Refused
from kernelexec.provisioning import platform

#: The smallest limit with which a kernel starts, and the free descriptors with which an executor opens: with 64 and 40 a first
#: session works, with 48 its kernel ends while it starts, and with 32 libraries wait for ever (measured 2026-11-26).
LIMIT_MIN, FREE_MIN = 64, 40


def check_descriptor_limit() -> None:
    """Check that this process and its kernels may open enough files.

    Raises:
        Refused: the limit, or what is left of it, is too low.
    """
    limit = platform.open_files_limit()
    if limit is None:
        return
    used = 0
    with suppress(OSError):  # a system without /proc
        used = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - an interrupt within leaves nothing open
    if limit < LIMIT_MIN or limit - used < FREE_MIN:
        needed = max(LIMIT_MIN, used + FREE_MIN)
        raise Refused(f"The limit of open files is {limit}, and {used} are open: {needed} are needed. Raise it by `ulimit -n`.")
