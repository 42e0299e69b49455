"""What is common to those that fork kernels: what they have ready, and how a forked process comes to be a kernel."""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..ipython.patches import take_shortcuts
from . import app

#: What ipykernel 7.4 and IPython 9 import while a kernel starts.
_LATE = (
    "tornado.platform.asyncio",
    "IPython.core.completerlib",
    "IPython.core.debugger",
    "IPython.core.oinspect",
    "IPython.extensions.storemagic",
)

_STDERR = 2
#: Python's small objects lie in pools, one for each size (obmalloc.c of Python 3.10 to 3.14). In bytes: a row of them that only
#: a new pool has; an empty ``bytes``; the step from size to size, the smallest and the largest one. How many fillers at most.
_ROW_BYTES, _EMPTY_BYTES, _STEP, _SMALLEST, _LARGEST, _FILLERS_MAX = 15_000, 33, 16, 48, 512, 5000
_gaps: list[list[bytes]] = []


@dataclass(frozen=True)
class Birth:
    """What a forked process is to become."""

    arguments: list[str]
    environ: dict[str, str]
    cwd: str

    def become(self) -> None:
        """Be a kernel in this process until it ends."""
        be_called(sys.argv[0], *self.arguments)
        os.environ.clear()
        os.environ.update(self.environ)
        os.chdir(self.cwd)
        sys.argv[1:] = self.arguments
        app.main(self.arguments)


def import_late() -> None:
    """Import what a kernel would while it starts, and have it leave out what it can."""
    for name in _LATE:
        with suppress(ImportError):
            importlib.import_module(name)
    take_shortcuts()


def fill_gaps() -> None:
    """Leave no room between small objects: new ones of a forked process come to lie together, which copies fewer pages."""
    for size in range(_SMALLEST, _LARGEST + _STEP, _STEP):
        fillers: list[bytes] = []
        row = before = 0
        while row < _ROW_BYTES and len(fillers) < _FILLERS_MAX:
            fillers.append(bytes(size - _EMPTY_BYTES))
            row = row + size if id(fillers[-1]) - before == size else 0
            before = id(fillers[-1])
        _gaps.append(fillers)


def be_called(*words: str) -> None:
    """Have lists of processes show what this one is, as far as there is room for it."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        first, end = int(fields[45]), int(fields[46])
        said = b"\0".join(os.fsencode(word) for word in (sys.executable, *words))
        ctypes.memmove(first, said[: end - first - 1].ljust(end - first, b"\0"), end - first)


def threads() -> int:
    """How many threads this process has: more than one do not survive a fork."""
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208 - names only


def part() -> None:
    """In the child: have a session of its own, no descriptor of the parent's but the first three, and other random numbers."""
    os.setsid()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names only
        if int(name) > _STDERR:
            with suppress(OSError):
                os.close(int(name))
    numpy_random: Any = sys.modules.get("numpy.random")
    if numpy_random is not None:  # Python's own module sees to that itself
        numpy_random.seed()
