"""Removing directories that a kernel could write in: however deep they are, whatever their modes, and following no link."""

from __future__ import annotations

import os
import secrets
import stat
import threading
from collections import deque
from contextlib import ExitStack, suppress
from pathlib import Path

#: How a directory is opened: it, and nothing that a link in its place points to.
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PASSES = 5


def remove_tree(path: Path) -> None:
    """Remove a directory with all that is in it, as far as that is possible."""
    with suppress(OSError):
        fd = os.open(path, DIRECTORY)
        try:
            clear(fd)
        finally:
            os.close(fd)
        path.rmdir()


def remove_within(top: Path, relative: Path) -> None:
    """The same for a directory somewhere below one that a kernel can write in: no link is followed on the way there either."""
    with suppress(OSError), ExitStack() as opened:
        fd = os.open(top, DIRECTORY)
        opened.callback(os.close, fd)
        for part in relative.parts:
            above, fd = fd, os.open(part, DIRECTORY, dir_fd=fd)
            opened.callback(os.close, fd)
        clear(fd)
        os.rmdir(relative.name, dir_fd=above)


def clear(top: int, *, keep: str = "", stop: threading.Event | None = None) -> bool:
    """Remove all that is in an open directory but ``keep``; whether nothing else is left. It ends soon after ``stop``.

    What is deep is moved up before it is opened: the depth, which a kernel can make what it likes, costs neither
    recursion nor descriptors.
    """
    for _ in range(_PASSES):
        names = deque(name for name in names_in(top) if name != keep)
        if not names:
            return True
        while names:
            if stop is not None and stop.is_set():
                return False
            with suppress(OSError):
                names.extend(_remove(names.popleft(), top))
    return False


def names_in(directory: int) -> list[str]:
    """The names in an open directory."""
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries]


def _remove(name: str, top: int) -> list[str]:
    """Remove a file, or a directory whose directories have moved up before; the names of those."""
    if _unlinked(name, top):
        return []
    moved = []
    fd = _open_ours(name, top)
    try:
        for inner in names_in(fd):
            if not _unlinked(inner, fd):
                os.close(_open_ours(inner, fd))
                moved.append(secrets.token_hex(8))
                os.rename(inner, moved[-1], src_dir_fd=fd, dst_dir_fd=top)
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=top)
    return moved


def _unlinked(name: str, parent: int) -> bool:
    """Remove what is no directory; whether it was none."""
    try:
        os.unlink(name, dir_fd=parent)
    except (IsADirectoryError, PermissionError):
        return False
    return True


def _open_ours(name: str, parent: int) -> int:
    """Open a directory, with its owner's full rights to it."""
    fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        if os.fstat(fd).st_mode & stat.S_IRWXU != stat.S_IRWXU:
            Path(f"/proc/self/fd/{fd}").chmod(stat.S_IRWXU)  # of what is open, not of what is named
        return os.open(name, DIRECTORY, dir_fd=parent)
    finally:
        os.close(fd)
