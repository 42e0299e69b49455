"""Calls of Linux without Python functions: ``openat2(2)`` and ``inotify(7)``.

Paths are opened beneath an open directory without following links, safe from names swapped meanwhile. Linux 5.6 or newer
resolves the whole path in a single call. Elsewhere each part is opened from the part before.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from kernelexec.workspace.safe_files import NAMED, closing_fd, open_regular

#: The call has the same number on every architecture of Python, and no function in the C library.
_OPENAT2 = 437
_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 1, 2, 4, 8
#: Flags for a directory on the way. With `O_PATH` the directory need not be readable.
WAY = NAMED | os.O_DIRECTORY
#: Events of ``inotify(7)``.
MODIFY, ATTRIB, CLOSE_WRITE, MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x2, 0x4, 0x8, 0x40, 0x80, 0x100, 0x200
#: Events without a request: the queue was full, a watch has ended. The last is the mark of events about directories.
OVERFLOW, IGNORED, IS_DIRECTORY = 0x4000, 0x8000, 0x40000000
_ONLY_DIRECTORIES, _ONLY_LINKED = 0x1000000, 0x4000000
#: The requested events of a directory.
OF_DIRECTORY = MODIFY | ATTRIB | CLOSE_WRITE | MOVED_FROM | MOVED_TO | CREATE | DELETE | _ONLY_DIRECTORIES | _ONLY_LINKED
#: ``struct inotify_event``: watch, mask, cookie of a move, size of the name that follows, padded with NUL.
_HEAD = struct.Struct("iIII")
_BUFFER_BYTES = 64 * 1024
#: The request of ``ioctl`` for the bytes that can be read (``inotify(7)``).
_FIONREAD = 0x541B


class _How(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


def open_beneath(directory: int, path: str, flags: int, *, across: bool = False) -> int:
    """Open an existing path, relative and without ``..``, beneath an open directory. No part of the path may be a link.

    With ``across`` the path may lead into other file systems, which are otherwise refused.

    Raises:
        OSError: ELOOP for a link, EXDEV for another file system, or an error of ``open(2)``. With ``O_NONBLOCK`` EAGAIN
            means a program's lease on the file: a second attempt would fail too, for 45 seconds by default.
        ValueError: the path is absolute, or contains ``..``.
    """
    parts = path.split("/")
    if path.startswith("/") or ".." in parts or "\0" in path:
        raise ValueError(f"{path!r} is no path beneath a directory")
    flags |= os.O_CLOEXEC
    if has_openat2():
        return _open_resolved(directory, path, flags, 0 if across else _NO_XDEV)
    return _open_by_walk(directory, [part for part in parts if part not in ("", ".")], flags, across=across)


def open_unlinked(path: Path) -> int:
    """Open a regular file for reading, by an absolute path without ``..``; the caller closes it.

    Raises:
        OSError: a part of the path is a link, which a cell may have created; or an error of ``open_regular``.
    """
    try:
        with closing_fd(os.open("/", WAY | os.O_CLOEXEC)) as top:
            directory = open_beneath(top, str(path.parent).lstrip("/") or ".", WAY, across=True)
        with closing_fd(directory):
            return open_regular(path.name, dir_fd=directory)
    except OSError as exc:
        if exc.errno == errno.ELOOP:
            raise OSError(exc.errno, "a link is there or on the way, and none is followed", str(path)) from exc
        raise


@cache
def has_openat2() -> bool:
    """Return whether the system has ``openat2(2)``. Old kernels lack the call, and filters of system calls may refuse it."""
    try:
        os.close(_open_resolved(-100, ".", WAY | os.O_CLOEXEC, 0))  # AT_FDCWD
    except (OSError, AttributeError):
        return False
    return True


def _open_resolved(directory: int, path: str, flags: int, more: int) -> int:
    how = _How(flags, 0, _BENEATH | _NO_SYMLINKS | _NO_MAGICLINKS | more)
    name, size = os.fsencode(path), ctypes.c_size_t(ctypes.sizeof(how))
    while True:
        fd = _libc().syscall(ctypes.c_long(_OPENAT2), directory, name, ctypes.byref(how), size)
        if fd >= 0:
            return int(fd)
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number), path)


def _open_by_walk(directory: int, parts: list[str], flags: int, *, across: bool) -> int:
    fd, device = os.dup(directory), os.fstat(directory).st_dev
    try:
        for part in parts[:-1]:
            fd = _open_next(fd, part, WAY | os.O_CLOEXEC)
            _check_device(fd, None if across else device)
        fd = _open_next(fd, parts[-1] if parts else ".", flags)
        _check_device(fd, None if across else device)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _open_next(above: int, part: str, flags: int) -> int:
    """Open the next part and close ``above``, which stays open after an error."""
    # O_DIRECTORY on a link is ENOTDIR, while ``openat2`` reports ELOOP: callers have different messages for the two.
    try:
        fd = os.open(part, flags | os.O_NOFOLLOW, dir_fd=above)
    except NotADirectoryError as exc:
        if stat.S_ISLNK(os.stat(part, dir_fd=above, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), part) from exc
        raise
    os.close(above)
    return fd


def _check_device(fd: int, device: int | None) -> None:
    if device is not None and os.fstat(fd).st_dev != device:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))


@cache
def _libc() -> Any:  # noqa: ANN401 - ctypes' own type
    return ctypes.CDLL(None, use_errno=True)


class FileEvent(NamedTuple):
    """A change of an entry in a watched directory."""

    watch: int
    mask: int
    name: str


class Inotify:
    """An inotify instance, which reports changes of watched files and directories in order.

    Raises:
        OSError: the system has no instances, or none is left for this user or process.
    """

    def __init__(self) -> None:
        self._libc = _libc()
        if not hasattr(self._libc, "inotify_init1"):
            raise OSError("this system has no inotify")
        self.fd = self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))

    def add(self, fd: int, events: int = OF_DIRECTORY) -> int:
        """Watch an open file or directory. Return the number of the watch, the old number of a watched file or directory.

        Raises:
            OSError: the user has no watches left.
        """
        # By the descriptor's link in ``/proc``: a path could be another directory's by now.
        path = f"/proc/self/fd/{fd}".encode()
        return self._checked(self._libc.inotify_add_watch(self.fd, path, ctypes.c_uint32(events)))

    def remove(self, watch: int) -> None:
        """End a watch. A watch that has ended already is ignored."""
        self._libc.inotify_rm_watch(self.fd, watch)

    def queued_bytes(self) -> int:
        """Return the size of the events that wait to be read."""
        size = ctypes.c_int()
        self._checked(self._libc.ioctl(self.fd, ctypes.c_ulong(_FIONREAD), ctypes.byref(size)))
        return size.value

    def read(self) -> bytes:
        """Return the next events as written by the system, or nothing without events."""
        try:
            return os.read(self.fd, _BUFFER_BYTES)
        except BlockingIOError:
            return b""

    @staticmethod
    def parse(content: bytes) -> Iterator[FileEvent]:
        """Yield the events of a read."""
        position, end = 0, len(content)
        while position < end:
            watch, mask, _, size = _HEAD.unpack_from(content, position)
            position += _HEAD.size
            name = os.fsdecode(content[position : position + size].rstrip(b"\0")) if size else ""
            position += size
            yield FileEvent(watch, mask, name)

    def close(self) -> None:
        """End all watches."""
        os.close(self.fd)

    def _checked(self, result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result
