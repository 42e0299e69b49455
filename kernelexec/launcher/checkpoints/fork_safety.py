"""Obstacles to a copy of a kernel by a fork: state missing in the copy, or shared to the damage of both.

A fork copies memory and the forking thread. Other threads are missing in the copy, and Linux keeps connections, devices and
locks for both processes together.

Linux does not report the library of a thread of C code. The stack of a waiting thread has return addresses, and they lie in
the libraries that the thread runs.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import socket
import struct
import sys
import threading
import time
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ..protocol import Obstacle
from .shared_state import OpenFiles, list_open

NAMES_MAX = 8
#: Modules whose threads do without a successor: tqdm's monitor only refreshes bars that stand still.
_HARMLESS_MODULES = ("tqdm.",)
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


def find_obstacles(
    own_threads: Iterable[threading.Thread], own_tasks: Iterable[Any], own_sockets: Iterable[int], files: OpenFiles
) -> list[Obstacle]:
    """Return the obstacles to a copy of this process; ``own_*`` are the launcher's, which a restored kernel makes anew.

    Must be called in the forking thread, while its event loop runs.
    """
    links = list_open()
    return [
        {"kind": kind, "names": sorted(set(names))[:NAMES_MAX]}  # type: ignore[typeddict-item]  # the kinds below are its literals
        for kind, names in (
            ("threads", _threads(own_threads)),
            ("tasks", _tasks(own_tasks)),
            ("connections", [*_connections(links, own_sockets), *files.list_unread_pipes()]),
            ("transactions", _transactions(links)),
            ("devices", _devices(links)),
            ("loop", _loop()),
        )
        if names
    ]


def _threads(own: Iterable[threading.Thread]) -> list[str]:
    spared = {threading.main_thread(), *own}
    return [
        thread.name
        for thread in threading.enumerate()
        if thread not in spared and not type(thread).__module__.startswith(_HARMLESS_MODULES) and not _is_ours(thread)
    ]


def _is_ours(thread: threading.Thread) -> bool:
    """Return whether a thread runs a function of the launcher."""
    target = getattr(thread, "_target", None)
    return str(getattr(target, "__module__", "")).startswith(f"{__name__.partition('.')[0]}.")


def _tasks(own: Iterable[Any]) -> list[str]:
    spared = set(own)
    return [task.get_name() for task in asyncio.all_tasks() if task not in spared]


def _connections(links: Mapping[int, str], own: Iterable[int]) -> list[str]:
    """Return the sockets of user code: a copy would share them with this process."""
    spared, names = set(own), []
    for fd, link in links.items():
        if fd in spared or not link.startswith("socket:"):
            continue
        # A duplicate, since leaving the block closes it: the user's descriptor must stay open.
        with suppress(OSError), socket.socket(fileno=os.dup(fd)) as copy:
            names.append(_describe_socket(copy))
    return names


def _describe_socket(sock: socket.socket) -> str:
    with suppress(OSError):
        return f"{_address(sock.getsockname())} to {_address(sock.getpeername())}"
    return f"{_address(sock.getsockname())}"


def _address(name: Any) -> str:
    if isinstance(name, tuple):
        return f"{name[0]}:{name[1]}"
    return os.fsdecode(name) if name else "a socket pair"


def _transactions(links: Mapping[int, str]) -> list[str]:
    """Return the database files with an open transaction, found by a rollback journal or by a connection.

    Connections are searched among the user's variables. A write-ahead log does not show a transaction, so with an open log all
    objects are searched, which takes time.
    """
    opened, sqlite3 = set(links.values()), sys.modules.get("sqlite3")
    files = [file for link in opened if (file := link.removesuffix("-journal")) != link and file in opened]
    if sqlite3 is None:
        return files
    in_log = any(link.endswith("-wal") for link in opened)
    values = gc.get_objects() if in_log else list(vars(sys.modules["__main__"]).values())
    # By the type: ``isinstance`` reads ``__class__`` of other objects, which may be a property of a user's class.
    for connection in [value for value in values if issubclass(type(value), sqlite3.Connection)]:
        with suppress(Exception):  # a closed connection, or another thread's
            if connection.in_transaction:
                files += [file for _, _, file in connection.execute("PRAGMA database_list") if file]
    return files


def _devices(links: Mapping[int, str]) -> list[str]:
    """Return the accelerators opened by this process."""
    names = [link for link in links.values() if link.startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri/"))]
    torch: Any = sys.modules.get("torch")
    with suppress(Exception):
        if torch is not None and torch.cuda.is_initialized():
            names.append("CUDA of torch")
    return names


def _loop() -> list[str]:
    """Return the class of the event loop; nothing for asyncio's selector loop, which a restored kernel can renew."""
    loop = asyncio.get_running_loop()
    return [] if isinstance(loop, asyncio.SelectorEventLoop) else [type(loop).__qualname__]


class NativeThread(NamedTuple):
    """A thread of C code missing in a copy, with the path of its library, or an empty text."""

    number: int
    name: str
    library: str

    def __str__(self) -> str:
        library = Path(self.library).name
        own_name = "" if self.name == _read_name(_TASKS / str(os.getpid())) else self.name
        return f"{own_name or 'one'} of {library}" if library else self.name


def find_native_threads() -> list[NativeThread]:
    """Return the threads of C code missing in a copy.

    Must be called after the fork: libraries may end their threads in handlers that run just before.
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
    """End the waiting threads of GNU's OpenMP, which start again when needed; return whether there were any.

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
    """Return the libraries with return addresses on the stack of a waiting thread; nothing for a thread that keeps running."""
    with suppress(OSError, ValueError):
        deadline = time.monotonic() + _RUN_SECONDS
        while (state := (task / "syscall").read_text()).startswith("running") and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)  # a new thread, or one that ends, waits in a moment
        # proc_pid_syscall(5): the last two words of a waiting thread are its stack pointer and its program counter.
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
    """Return the ranges of this process's memory in order, each with its file if it holds code, else with an empty text."""
    mappings = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, rights, _, _, _, *path = line.split(maxsplit=5)
        start, _, end = span.partition("-")
        mappings.append((int(start, 16), int(end, 16), path[0] if path and "x" in rights else ""))
    return mappings
