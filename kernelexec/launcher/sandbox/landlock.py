"""Landlock of Linux (``landlock(7)``): this process and its later children have rights to named files only.

The system calls have one number on every architecture; the C library has no functions for them.
"""

from __future__ import annotations

import ctypes
import os
import stat
from contextlib import suppress

from ..platform import prctl, syscall

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION, _BENEATH = 1, 1
_NO_NEW_PRIVILEGES = 38  # PR_SET_NO_NEW_PRIVS of prctl(2)

WRITE_FILE, READ_FILE = 1 << 1, 1 << 2
_REMOVE = 1 << 4 | 1 << 5
_MAKE_DEVICES = 1 << 6 | 1 << 11
_MAKE = 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 12
REFER, TRUNCATE, IOCTL = 1 << 13, 1 << 14, 1 << 15
#: Rights to write in a workspace: all except creating devices.
WRITE = WRITE_FILE | _REMOVE | _MAKE | REFER | TRUNCATE
#: Rights that apply to files which are no directories.
_OF_FILES = WRITE_FILE | READ_FILE | TRUNCATE | IOCTL
#: The ABI version that introduced a right; the others are from the first.
_SINCE = {REFER: 2, TRUNCATE: 3, IOCTL: 5}
_NETWORK_SINCE, _SCOPES_SINCE = 4, 6
_TCP = 1 << 0 | 1 << 1
_SCOPES = 1 << 0 | 1 << 1  # abstract unix sockets, and signals
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class _Attributes(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64)]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = [("allowed", ctypes.c_uint64), ("directory", ctypes.c_int32)]


def read_abi_version() -> int:
    """Return the version of Landlock's ABI; 0 if the system lacks it or has it off."""
    try:
        return max(0, syscall(_CREATE, None, 0, _VERSION))
    except (OSError, AttributeError):
        return 0


class Ruleset:
    """A set of allowed rights. All others of the handled kinds are refused: files, TCP if ``offline``, signals."""

    def __init__(self, *, offline: bool) -> None:
        """Create an empty ruleset; raise OSError if the system has no Landlock."""
        self.version = read_abi_version()
        self.handled = sum(
            right
            for right in (READ_FILE, WRITE_FILE, _REMOVE, _MAKE, _MAKE_DEVICES, REFER, TRUNCATE, IOCTL)
            if _SINCE.get(right, 1) <= self.version
        )
        network = _TCP if offline and self.version >= _NETWORK_SINCE else 0
        result = _Attributes(self.handled, network, _SCOPES if self.has_scopes else 0)
        size = 8 if self.version < _NETWORK_SINCE else 16 if not self.has_scopes else ctypes.sizeof(result)
        self._fd = syscall(_CREATE, ctypes.byref(result), ctypes.c_size_t(size), 0)

    @property
    def has_scopes(self) -> bool:
        """Return whether signals to outside processes and connections to their abstract unix sockets are refused."""
        return self.version >= _SCOPES_SINCE

    def allow(self, path: str | os.PathLike[str], rights: int, *, follow: bool = True) -> None:
        """Allow a path and all beneath it; a missing path, or a link without ``follow``, is skipped."""
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
        except OSError:
            return
        try:
            self.allow_open(fd, rights)
        finally:
            os.close(fd)

    def allow_open(self, fd: int, rights: int) -> None:
        """Allow an open file or directory and all beneath it; a link is skipped."""
        kind = os.fstat(fd).st_mode
        rights &= self.handled if stat.S_ISDIR(kind) else self.handled & _OF_FILES
        if rights and not stat.S_ISLNK(kind):
            with suppress(OSError):  # not a file of a file system
                syscall(_ADD, self._fd, _BENEATH, ctypes.byref(_Beneath(rights, fd)), 0)

    def enforce(self) -> None:
        """Apply the ruleset to this thread and its later children, for good."""
        try:
            syscall(_RESTRICT, self._fd, 0)
        finally:
            os.close(self._fd)


def set_no_new_privileges() -> None:
    """Keep later programs from more privileges than this process has, whatever bits their files have."""
    prctl(_NO_NEW_PRIVILEGES, 1)


def allow_except(ruleset: Ruleset, top: str, rights: int, excluded: list[str]) -> None:
    """Allow a tree, by an absolute path without links, except ``excluded`` paths; allow nothing if it is gone.

    Landlock knows no exceptions. So excluded paths get no right, nor do the directories above them, but their other entries do.
    """
    above = {path[:at] for path in excluded for at, char in enumerate(path) if char == "/"}

    def allow(path: str, fd: int) -> None:
        if path in excluded:
            return
        if path not in above:
            ruleset.allow_open(fd, rights)
            return
        directory = os.open(".", _DIRECTORY, dir_fd=fd)
        try:
            for name in os.listdir(directory):  # noqa: PTH208 - of an open directory
                with suppress(OSError):  # it was removed meanwhile
                    inner = os.open(name, _build_open_flags(), dir_fd=directory)
                    try:
                        allow(f"{path}/{name}", inner)
                    finally:
                        os.close(inner)
        finally:
            os.close(directory)

    with suppress(OSError):
        fd = _open_path(top)
        try:
            allow(top.rstrip("/"), fd)
        finally:
            os.close(fd)


def _open_path(path: str) -> int:
    """Open a path without following links."""
    fd = os.open("/", _build_open_flags())
    for name in filter(None, path.split("/")):
        above = fd
        try:
            fd = os.open(name, _build_open_flags(), dir_fd=above)
        finally:
            os.close(above)
    return fd


def _build_open_flags() -> int:
    """Return the flags that open an entry; a function, since only Linux has all of them."""
    return os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
