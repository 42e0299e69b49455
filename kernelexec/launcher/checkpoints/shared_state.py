"""State shared by a fork instead of copied: files, pipes, memory, and the descriptors of the event loop.

A waiting copy would hold a lock released by the kernel, and keep a pipe open while a program waits for the end. A
kernel forked from the copy would share positions in files with this kernel. So each copy closes the kernel's own descriptors,
and opens the files and pipes of user code anew.
"""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import os
import re
import selectors
import signal
import socket
import stat
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..platform import fcntl, unread_bytes

_STDERR = 2
#: The flags that an open file keeps; others only matter when it is opened.
_FLAGS = os.O_ACCMODE | os.O_APPEND | os.O_NONBLOCK | os.O_SYNC | os.O_DIRECT | os.O_NOATIME
#: The most bytes of memory that are kept with a checkpoint.
_MOST_BYTES = 64 * 1024 * 1024
#: Shared mappings of files without a name, in /proc/self/maps; those of System V outlive their processes.
_MAPPING = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) r([w-])([x-])s \S+ \S+ \d+ +(?!/SYSV)[^\n]* \(deleted\)$", re.MULTILINE)
#: Pages of such mappings in this process, in /proc/self/status, which is read in a fiftieth of the time.
_NO_PAGES = b"\nRssShmem:\t       0 kB\n"
_MAP_FIXED = 0x10
_FAILED = ctypes.c_void_p(-1).value


class OwnDescriptors:
    """The kernel's own descriptors: those opened within ``count_opened``, and both ends of connections to its sockets."""

    def __init__(self) -> None:
        self._own: dict[int, str] = {}
        self._prefix = ""

    @contextmanager
    def count_opened(self) -> Iterator[None]:
        """Count the descriptors opened within the block as the kernel's own."""
        before = list_open()
        yield
        self._own |= {fd: link for fd, link in list_open().items() if fd > _STDERR and before.get(fd) != link}

    def keep(self, fd: int) -> None:
        """Leave a descriptor open in copies."""
        self._own.pop(fd, None)

    def serve_at(self, prefix: str) -> None:
        """Count connections to sockets with paths of this prefix as the kernel's own."""
        self._prefix = prefix

    def list(self) -> list[int]:
        """Return the kernel's own open descriptors."""
        present = list_open()
        # The link too: user code may have closed a descriptor of the kernel and got its number for a file.
        return [fd for fd, link in present.items() if fd > _STDERR and (self._own.get(fd) == link or self._is_connection(fd))]

    def close(self) -> None:
        """Close all own descriptors and forget them, in a copy of the kernel."""
        for fd in self.list():
            with suppress(OSError):
                os.close(fd)
        self._own = {}

    def _is_connection(self, fd: int) -> bool:
        with suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(fd).st_mode):
                return False
            with socket.socket(fileno=os.dup(fd)) as copy:
                return any(self._is_ours(get) for get in (copy.getsockname, copy.getpeername))
        return False

    def _is_ours(self, get_name: Callable[[], object]) -> bool:
        """Return whether this end of a connection is a socket of the kernel."""
        with suppress(OSError):
            name = get_name()
            return bool(self._prefix) and isinstance(name, str) and name.startswith(self._prefix)
        return False


def list_open() -> dict[int, str]:
    """Return the target of each open descriptor; nothing on systems without ``/proc``."""
    links = {}
    try:
        names = os.listdir("/proc/self/fd")  # noqa: PTH208 - names only
    except OSError:
        return {}
    for name in names:
        with suppress(OSError):
            links[int(name)] = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115 - text
    return links


class OpenFiles:
    """The present files and pipes of user code, with positions; ``own`` are descriptors of the launcher."""

    def __init__(self, own: Iterable[int]) -> None:
        spared = set(own)
        self._files: dict[int, tuple[int, int]] = {}
        """The flags and the position of each file."""
        self._pipes: dict[int, tuple[str, int]] = {}
        """The name of each pipe, which both ends have, and the flags of this end."""
        self._identities: dict[int, tuple[int, int]] = {}
        """Device and inode of each, by which a descriptor that was closed and opened again is known."""
        for fd, link in list_open().items():
            if fd <= _STDERR or fd in spared:
                continue
            with suppress(OSError):
                status, flags = os.fstat(fd), fcntl.fcntl(fd, fcntl.F_GETFL) & _FLAGS
                if stat.S_ISREG(status.st_mode):
                    self._files[fd] = flags, os.lseek(fd, 0, os.SEEK_CUR)
                elif stat.S_ISFIFO(status.st_mode):
                    self._pipes[fd] = link, flags
                self._identities[fd] = status.st_dev, status.st_ino

    def separate(self, translate: Callable[[str], str] = str) -> None:
        """Open the files and pipes anew, in a copy. A pipe to another process becomes a pipe with its other end closed.

        A file stays shared if its rights have changed and forbid opening. Descriptors closed since then are left alone.

        Args:
            translate: returns the present path for an earlier path; a branch has files of its own.
        """
        present = {fd for fd, identity in self._identities.items() if _identify(fd) == identity}
        for fd in present & self._files.keys():
            flags, position = self._files[fd]
            with suppress(OSError):
                # A new open file description: a duplicate would share its position and its locks with the kernel.
                opened = _reopen(fd, flags | os.O_CLOEXEC, translate)
                try:
                    os.lseek(opened, position, os.SEEK_SET)
                    _replace(fd, opened)
                    self._identities[fd] = _identify(fd)
                finally:
                    os.close(opened)
        for ends in _group({fd: self._pipes[fd] for fd in present & self._pipes.keys()}).values():
            reader, writer = os.pipe2(os.O_CLOEXEC)
            for fd, flags in ends.items():
                end = writer if flags & os.O_ACCMODE else reader
                os.set_blocking(end, not flags & os.O_NONBLOCK)
                _replace(fd, end)
                self._identities[fd] = _identify(end)
            os.close(reader)
            os.close(writer)

    def list_unread_pipes(self) -> list[str]:
        """Return the pipes with unread bytes and both ends here: a copy would lack the bytes, or share them."""
        unread_pipes = []
        for link, ends in _group(self._pipes).items():
            kinds = {flags & os.O_ACCMODE for flags in ends.values()}
            if link.startswith("pipe:") and len(kinds) > 1 and (unread := unread_bytes(min(ends))):
                unread_pipes.append(f"a pipe with {unread} unread bytes")
        return unread_pipes


def _group(pipes: Mapping[int, tuple[str, int]]) -> dict[str, dict[int, int]]:
    """Return the descriptors and their flags by pipe."""
    grouped: dict[str, dict[int, int]] = {}
    for fd, (link, flags) in pipes.items():
        grouped.setdefault(link, {})[fd] = flags
    return grouped


def _identify(fd: int) -> tuple[int, int]:
    try:
        status = os.fstat(fd)
    except OSError:
        return -1, -1
    return status.st_dev, status.st_ino


def _reopen(fd: int, flags: int, translate: Callable[[str], str]) -> int:
    """Open the file of a descriptor at its present path, or itself if no file is there."""
    path = os.readlink(f"/proc/self/fd/{fd}").removesuffix(" (deleted)")  # noqa: PTH115 - text
    if (present := translate(path)) != path:
        with suppress(OSError):
            if stat.S_ISREG(os.lstat(present).st_mode):
                return os.open(present, flags | os.O_NOFOLLOW)
    return os.open(f"/proc/self/fd/{fd}", flags)


def _replace(fd: int, opened: int) -> None:
    os.dup2(opened, fd, inheritable=os.get_inheritable(fd))


class SharedMemory:
    """The present shared memory without a name: of ``mmap.mmap(-1, ...)``, and of multiprocessing's locks and values.

    The content is kept with a checkpoint, and each kernel forked from the checkpoint gets a copy.
    """

    def __init__(self) -> None:
        parts = []
        maps = b"" if _NO_PAGES in Path("/proc/self/status").read_bytes() else Path("/proc/self/maps").read_bytes()
        for mapping in _MAPPING.finditer(maps):
            start, end = int(mapping[1], 16), int(mapping[2], 16)
            protection = mmap.PROT_READ | (mapping[3] == b"w") * mmap.PROT_WRITE | (mapping[4] == b"x") * mmap.PROT_EXEC
            parts.append((start, end - start, protection))
        size = sum(length for _, length, _ in parts)
        self.excess_bytes = size if size > _MOST_BYTES else 0
        """Its size if it is more than is kept, which is nothing then; else 0."""
        kept = () if self.excess_bytes else parts
        self._parts = [(start, protection, ctypes.string_at(start, length)) for start, length, protection in kept]
        """Address, protection and content of each part."""

    def separate(self) -> None:
        """Map the kept content anew at the same addresses, shared with no other process.

        Raises:
            OSError: the system has too little memory.
        """
        if not self._parts:
            return
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
        # Fixed: objects hold these addresses. Shared: processes that user code forks later share it, as before the copy.
        flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _MAP_FIXED
        for start, protection, content in self._parts:
            if libc.mmap(start, len(content), protection | mmap.PROT_WRITE, flags, -1, 0) == _FAILED:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code))
            ctypes.memmove(start, content, len(content))
            if not protection & mmap.PROT_WRITE:
                libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(len(content)), protection)


@dataclass(frozen=True)
class SharedState:
    """The files and the memory shared by a fork instead of copied."""

    files: OpenFiles
    memory: SharedMemory


def list_watched(loop: Any, own: Container[int]) -> list[selectors.SelectorKey]:
    """Return the descriptors with callbacks in asyncio's loop, without the launcher's ``own``."""
    return [key for key in loop._selector.get_map().values() if key.fd not in own]  # noqa: SLF001 - asyncio has no other way


def close_loop(loop: Any) -> None:
    """Close the descriptors of asyncio's loop (CPython 3.11 to 3.14) in a copy, without an effect on the kernel's loop."""
    # Nothing is unregistered: a fork shares the epoll instance, so the kernel's loop would lose its descriptors.
    loop._selector.close()  # noqa: SLF001 - asyncio has no other way
    for sock in (loop._ssock, loop._csock):  # noqa: SLF001 - as above
        sock.close()


def renew_loop(loop: Any, task: asyncio.Task[Any] | None, watched: Iterable[selectors.SelectorKey]) -> None:
    """Continue asyncio's loop in this copy, within a task, with new descriptors: asyncio forgets the running loop in a fork."""
    asyncio._set_running_loop(loop)  # noqa: SLF001 - as above
    if task is not None and asyncio.current_task(loop) is not task:
        asyncio.tasks._enter_task(loop, task)  # noqa: SLF001 - as above
    wakeup = signal.set_wakeup_fd(-1)
    loop._selector = selectors.DefaultSelector()  # noqa: SLF001 - as above
    for key in watched:
        with suppress(OSError):  # it was closed
            loop._selector.register(key.fd, key.events, key.data)  # noqa: SLF001 - as above
    # The new pipe counts itself again. The old one, closed in `close_loop`, was also where signals woke the loop.
    loop._internal_fds = 0  # noqa: SLF001 - as above
    loop._make_self_pipe()  # noqa: SLF001 - as above
    if wakeup != -1:
        signal.set_wakeup_fd(loop._csock.fileno())  # noqa: SLF001 - as above
