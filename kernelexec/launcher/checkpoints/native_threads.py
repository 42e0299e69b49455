"""Threads of C code: which library each belongs to, and which of them a fork does not harm.

The system gives no thread a reference to its library. A waiting thread has return addresses on its stack, and the libraries
that those lie in are the ones that it runs.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
import time
from bisect import bisect_right
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_TASKS = Path("/proc/self/task")
_STACK_BYTES = 256 * 1024
_WORD = struct.Struct("N")
#: The beginnings of the names of threads that are renewed: those of libzmq, which a restored kernel starts anew, and the one of
#: jemalloc, which gives unused memory back: jemalloc prepares itself for forks, and a copy does without it.
_HARMLESS_NAMES = ("ZMQbg/", "jemalloc_bg_thd")
#: Libraries that start their threads anew in a fork's child: Arrow since 12.0, and numexpr (``pthread_atfork`` in both). A new
#: thread of libzmq has no name yet.
_HARMLESS_LIBRARIES = ("/libarrow", "/libparquet", "/numexpr/", "/libzmq")
#: Libraries in which any thread begins, waits or computes, and which start none themselves.
_OF_ANY_THREAD = (
    *("libc.", "libc-", "libpthread", "ld-", "libstdc++", "libgcc_s", "libm.", "[vdso]"),
    *("libpython", "python", "_multiarray_umath"),
)
#: GNU's OpenMP, which ends its waiting threads on request: ``omp_pause_hard`` is 2 in OpenMP 5.0, section 3.2.45.
_OPENMP, _PAUSE_HARD = "libgomp", 2
#: How long such threads may take to end, and the time between two looks, in seconds.
_END_SECONDS, _LOOK_SECONDS = 0.2, 0.001
#: How long a thread that runs is looked at, in seconds: one that ends has to get a processor first.
_RUN_SECONDS = 0.25


class NativeThread(NamedTuple):
    """A thread of C code that a copy would miss, with the path of its library, or an empty text."""

    number: int
    name: str
    library: str

    def __str__(self) -> str:
        library = Path(self.library).name
        own_name = "" if self.name == _read_name(_TASKS / str(os.getpid())) else self.name
        return f"{own_name or 'one'} of {library}" if library else self.name


def find_native_threads() -> list[NativeThread]:
    """Return the threads of C code that a copy would miss.

    Must be called after a fork, before which libraries may have ended theirs.
    """
    known = {os.getpid(), *(thread.native_id for thread in threading.enumerate())}  # Python forgets a forked main thread's
    threads: list[NativeThread] = []
    mappings: list[tuple[int, int, str]] | None = None
    for task in _TASKS.iterdir():
        with suppress(OSError):
            name = _read_name(task)
            if int(task.name) in known or name.startswith(_HARMLESS_NAMES):
                continue
            mappings = _read_mappings() if mappings is None else mappings
            libraries = _find_libraries(task, mappings)
            if not task.exists():  # it has ended meanwhile
                continue
            unfit = [library for library in libraries if not any(part in library for part in _HARMLESS_LIBRARIES)]
            if unfit or not libraries:
                threads.append(NativeThread(int(task.name), name, min(unfit, default="")))
    return threads


def end_pools(threads: Iterable[NativeThread]) -> bool:
    """End threads of pools that end on request and start again when they are needed; return whether there were any.

    Must be called in the thread of cells, which owns the pools.
    """
    own = [thread for thread in threads if Path(thread.library).name.startswith(_OPENMP)]
    with suppress(OSError, AttributeError):  # before GCC 9 there is no such function
        for path in {thread.library for thread in own}:
            ctypes.CDLL(path).omp_pause_resource_all(_PAUSE_HARD)
        deadline = time.monotonic() + _END_SECONDS
        while any((_TASKS / str(thread.number)).exists() for thread in own) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)  # they leave their barrier and end, which no call waits for
        return bool(own)
    return False


def _read_name(task: Path) -> str:
    return (task / "comm").read_text().strip()


def _find_libraries(task: Path, mappings: list[tuple[int, int, str]]) -> set[str]:
    """Return the libraries with return addresses on the stack of a waiting thread; nothing of one that runs on."""
    with suppress(OSError, ValueError):
        deadline = time.monotonic() + _RUN_SECONDS
        while (state := (task / "syscall").read_text()).startswith("running") and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)  # a new thread, or one that ends, waits in a moment
        *_, stack, _ = (int(word, 0) for word in state.split())
        number = bisect_right(mappings, (stack, 1 << 64, "")) - 1
        size = min(mappings[number][1] - stack, _STACK_BYTES)
        with Path("/proc/self/mem").open("rb", buffering=0) as memory:  # unlike a pointer it bears a thread that ends
            memory.seek(stack)
            content = memory.read(size)
        named = set()
        for (address,) in _WORD.iter_unpack(content[: len(content) // _WORD.size * _WORD.size]):
            start, end, library = mappings[max(bisect_right(mappings, (address, 1 << 64, "")) - 1, 0)]
            if library and start <= address < end and not Path(library).name.startswith(_OF_ANY_THREAD):
                named.add(library)
        return named
    return set()


def _read_mappings() -> list[tuple[int, int, str]]:
    """Return the ranges of this process's memory, in order, with the file of those that hold code, else an empty text."""
    mappings = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, rights, _, _, _, *path = line.split(maxsplit=5)
        start, _, end = span.partition("-")
        mappings.append((int(start, 16), int(end, 16), path[0] if path and "x" in rights else ""))
    return mappings
