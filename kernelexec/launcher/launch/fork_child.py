"""Code that the fork server and the container's init share: imports before a fork, and a kernel in the forked child."""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..ipython.patches.debugger import leave_out_debugger
from . import kernel_app

#: Modules that ipykernel 7.4 and IPython 9 import while a kernel starts.
_LATE = (
    "tornado.platform.asyncio",
    "IPython.core.completerlib",
    "IPython.core.debugger",
    "IPython.core.oinspect",
    "IPython.extensions.storemagic",
)

_STDERR = 2


@dataclass(frozen=True)
class ForkRequest:
    """A request to fork a kernel."""

    arguments: list[str]
    environ: dict[str, str]
    cwd: str

    def run(self) -> None:
        """Run the kernel in this process until it ends."""
        set_process_title(sys.argv[0], *self.arguments)
        os.environ.clear()
        os.environ.update(self.environ)
        os.chdir(self.cwd)
        sys.argv[1:] = self.arguments
        kernel_app.main(self.arguments)


def import_startup_modules() -> None:
    """Import the modules that a kernel imports while it starts."""
    for name in _LATE:
        with suppress(ImportError):
            importlib.import_module(name)
    leave_out_debugger()


def set_process_title(*words: str) -> None:
    """Set the command line that ``ps`` shows, cut to the length of the present one."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        first, end = int(fields[45]), int(fields[46])
        title = b"\0".join(os.fsencode(word) for word in (sys.executable, *words))
        ctypes.memmove(first, title[: end - first - 1].ljust(end - first, b"\0"), end - first)


def count_threads() -> int:
    """Return the number of this process's threads; only one survives a fork."""
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208 - names only


def detach() -> None:
    """Detach a forked child: its own session, only the standard descriptors, other random numbers."""
    os.setsid()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names only
        if int(name) > _STDERR:
            with suppress(OSError):
                os.close(int(name))
    numpy_random: Any = sys.modules.get("numpy.random")
    if numpy_random is not None:  # Python's own module sees to that itself
        numpy_random.seed()
