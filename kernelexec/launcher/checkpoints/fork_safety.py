"""Why a kernel cannot be copied by a fork: what it has that a copy would not have, or would share to its damage.

A fork copies memory and the thread that forks. Other threads are missing in the copy, and the kernel of the system keeps
connections, devices and locks for both processes together.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import sys
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from ..protocol import Obstacle
from .descriptors import list_open
from .open_files import OpenFiles

_NAMES = 8
#: Modules whose threads do without a successor: tqdm's monitor only refreshes bars that stand still.
_HARMLESS_MODULES = ("tqdm.",)


def find_obstacles(
    own_threads: Iterable[threading.Thread], own_tasks: Iterable[Any], own_sockets: Iterable[int], files: OpenFiles
) -> list[Obstacle]:
    """Return what prevents a copy of this process; ``own_*`` are the launcher's, which a restored kernel has anew.

    Must be called in the thread that forks, while its event loop runs.
    """
    links = list_open()
    return [
        {"kind": kind, "names": sorted(set(names))[:_NAMES]}  # type: ignore[typeddict-item]  # the kinds below are its literals
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
    """Return the files of databases with an open transaction: with a journal, or of a connection.

    Connections are looked for among all objects, which takes time, only where a write-ahead log is open, which shows nothing.
    """
    opened, sqlite3 = set(links.values()), sys.modules.get("sqlite3")
    files = [file for link in opened if (file := link.removesuffix("-journal")) != link and file in opened]
    if sqlite3 is None:
        return files
    in_log = any(link.endswith("-wal") for link in opened)
    values = gc.get_objects() if in_log else list(vars(sys.modules["__main__"]).values())
    for connection in [value for value in values if issubclass(type(value), sqlite3.Connection)]:
        with suppress(Exception):  # a closed connection, or another thread's
            if connection.in_transaction:
                files += [file for _, _, file in connection.execute("PRAGMA database_list") if file]
    return files


def _devices(links: Mapping[int, str]) -> list[str]:
    """Return the accelerators that this process has opened."""
    names = [link for link in links.values() if link.startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri/"))]
    torch: Any = sys.modules.get("torch")
    with suppress(Exception):
        if torch is not None and torch.cuda.is_initialized():
            names.append("CUDA of torch")
    return names


def _loop() -> list[str]:
    """Return the class of the event loop if it is not asyncio's own, whose descriptors a restored kernel can renew."""
    loop = asyncio.get_running_loop()
    return [] if isinstance(loop, asyncio.SelectorEventLoop) else [type(loop).__qualname__]
