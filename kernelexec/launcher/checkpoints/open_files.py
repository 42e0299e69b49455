"""The files and pipes that user code has open: a copy of the kernel has its own of them.

A fork shares what is open with this process: positions, locks, ends of pipes. So a copy that only waits would hold a lock
that the kernel has released, and keep a pipe open at whose end a program waits; and a kernel that goes on from it would read
where this one has stopped.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress

from ..platform import fcntl, unread_bytes
from .descriptors import list_open

_STDERR = 2
#: The flags that an open file keeps; others only matter when it is opened.
_FLAGS = os.O_ACCMODE | os.O_APPEND | os.O_NONBLOCK | os.O_SYNC | os.O_DIRECT | os.O_NOATIME


class OpenFiles:
    """The files and pipes with their positions, as they are now; ``own`` are descriptors of the launcher."""

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

    def separate(self) -> None:
        """Open them once more, in a copy. A pipe whose other end another process has is closed at that end.

        A file that cannot be opened again, since its rights have changed, stays shared. Descriptors that have been closed since
        are left alone.
        """
        present = {fd for fd, identity in self._identities.items() if _identify(fd) == identity}
        for fd in present & self._files.keys():
            flags, position = self._files[fd]
            with suppress(OSError):
                opened = os.open(f"/proc/self/fd/{fd}", flags | os.O_CLOEXEC)
                try:
                    os.lseek(opened, position, os.SEEK_SET)
                    _replace(fd, opened)
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
        """Return the pipes that hold bytes and have both ends here: a copy would lack the bytes, or share them."""
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


def _replace(fd: int, opened: int) -> None:
    os.dup2(opened, fd, inheritable=os.get_inheritable(fd))
