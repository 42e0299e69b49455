"""Open paths beneath an open directory without following links, safely against names that are swapped meanwhile.

Linux resolves the whole path in one call (``openat2(2)``, 5.6 or newer). Elsewhere each part is opened from the one before.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from functools import cache
from typing import Any

from kernelexec.workspace.safe_files import NAMED

#: The call has one number on every architecture that Python runs on; the C library has no function for it.
_OPENAT2 = 437
_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 1, 2, 4, 8
#: Flags for a directory on the way, which need not be readable where the system has `O_PATH`.
WAY = NAMED | os.O_DIRECTORY


class _How(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


def open_beneath(directory: int, path: str, flags: int, *, across: bool = False) -> int:
    """Open an existing path, relative and without ``..``, beneath an open directory. No link is followed in any part of it.

    With ``across`` other file systems may be mounted on the way; else that is refused too.

    Raises:
        OSError: ELOOP for a link, EXDEV for another file system, or an error of ``open(2)``. With ``O_NONBLOCK`` EAGAIN
            means that a program holds a lease on the file: a second attempt would fail too, for 45 seconds by default.
        ValueError: the path is absolute, or contains ``..``.
    """
    parts = path.split("/")
    if path.startswith("/") or ".." in parts or "\0" in path:
        raise ValueError(f"{path!r} is no path beneath a directory")
    flags |= os.O_CLOEXEC
    if has_openat2():
        return _open_resolved(directory, path, flags, 0 if across else _NO_XDEV)
    return _open_by_walk(directory, [part for part in parts if part not in ("", ".")], flags, across=across)


@cache
def has_openat2() -> bool:
    """Return whether the system has ``openat2(2)``: old kernels do not, and filters of system calls may refuse it."""
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
    """Open the next part and close the one before; if that fails, the one before stays open."""
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
