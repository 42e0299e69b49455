"""Linux's reports of changes in directories (``inotify(7)``): the system calls, for which Python has no functions."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

MODIFY, ATTRIB, CLOSE_WRITE, MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x2, 0x4, 0x8, 0x40, 0x80, 0x100, 0x200
#: Events that come unasked: the queue was full, a watch has ended; and the mark of events about directories.
OVERFLOW, IGNORED, IS_DIRECTORY = 0x4000, 0x8000, 0x40000000
_ASKED = MODIFY | ATTRIB | CLOSE_WRITE | MOVED_FROM | MOVED_TO | CREATE | DELETE
_ONLY_DIRECTORIES, _ONLY_LINKED = 0x1000000, 0x4000000
_HEAD = struct.Struct("iIII")
_BUFFER_BYTES = 64 * 1024
#: The request of ``ioctl`` for the bytes that can be read (``inotify(7)``).
_FIONREAD = 0x541B


class FileEvent(NamedTuple):
    """A change of an entry in a watched directory; ``cookie`` connects the two events of a rename."""

    watch: int
    mask: int
    cookie: int
    name: str


class Inotify:
    """An instance, which reports the changes of its watched directories in order.

    Raises:
        OSError: the system has no instances, or none is left for this user or process.
    """

    def __init__(self) -> None:
        self._libc: Any = ctypes.CDLL(None, use_errno=True)
        if not hasattr(self._libc, "inotify_init1"):
            raise OSError("this system has no inotify")
        self.fd = self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))

    def add(self, directory: int) -> int:
        """Watch an open directory; return the number of the watch, which is the old one if the directory is watched already.

        Raises:
            OSError: the user has no watches left.
        """
        path = f"/proc/self/fd/{directory}".encode()
        return self._checked(
            self._libc.inotify_add_watch(self.fd, path, ctypes.c_uint32(_ASKED | _ONLY_DIRECTORIES | _ONLY_LINKED))
        )

    def remove(self, watch: int) -> None:
        """End a watch; one that has ended by itself is ignored."""
        self._libc.inotify_rm_watch(self.fd, watch)

    def queued_bytes(self) -> int:
        """Return the size of the events that wait to be read."""
        size = ctypes.c_int()
        self._checked(self._libc.ioctl(self.fd, ctypes.c_ulong(_FIONREAD), ctypes.byref(size)))
        return size.value

    def read(self) -> bytes:
        """Return the next events as the system writes them; nothing if there are none."""
        try:
            return os.read(self.fd, _BUFFER_BYTES)
        except BlockingIOError:
            return b""

    @staticmethod
    def parse(content: bytes) -> Iterator[FileEvent]:
        """Yield the events of a read."""
        position, end = 0, len(content)
        while position < end:
            watch, mask, cookie, size = _HEAD.unpack_from(content, position)
            position += _HEAD.size
            name = os.fsdecode(content[position : position + size].rstrip(b"\0")) if size else ""
            position += size
            yield FileEvent(watch, mask, cookie, name)

    def close(self) -> None:
        """End all watches."""
        os.close(self.fd)

    def _checked(self, result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result
