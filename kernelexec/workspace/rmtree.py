"""Removing directories that a kernel could write in: however deep they are, whatever their modes, and following no link."""

from __future__ import annotations

import os
import secrets
import stat
import threading
from collections import deque
from contextlib import ExitStack, suppress
from pathlib import Path

from kernelexec.workspace.directory import give_to_owner

#: How a directory is opened: it, and nothing that a link in its place points to.
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: How a file is held that need not be read, where the system knows such. It is asked here, below what knows of systems.
NAMED = getattr(os, "O_PATH", os.O_RDONLY)
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
        above = descend(os.open(top, DIRECTORY), relative.parent, opened)
        clear(descend(os.open(relative.name, DIRECTORY, dir_fd=above), Path(), opened))
        os.rmdir(relative.name, dir_fd=above)


def descend(top: int, relative: Path, opened: ExitStack, *, owner: os.stat_result | None = None) -> int:
    """The directory below an open one, opened step by step; ``opened`` closes them all, the first one too.

    With an ``owner``, those that are missing on the way are made, and given to them.

    Raises:
        OSError: something on the way is missing, a link, or no directory.
    """
    opened.callback(os.close, top)
    for part in relative.parts:
        made = False
        if owner is not None:
            with suppress(FileExistsError):
                os.mkdir(part, dir_fd=top)
                made = True
        top = os.open(part, DIRECTORY, dir_fd=top)
        opened.callback(os.close, top)
        if owner is not None and made:
            give_to_owner(top, owner)
    return top


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


def _make_ours(fd: int) -> None:
    """Give the owner of what is open, not of what is named, its full rights."""
    if NAMED == os.O_RDONLY:
        os.fchmod(fd, stat.S_IRWXU)
    else:
        Path(f"/proc/self/fd/{fd}").chmod(stat.S_IRWXU)


def _open_ours(name: str, parent: int) -> int:
    """Open a directory, with its owner's full rights to it."""
    fd = os.open(name, NAMED | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        if os.fstat(fd).st_mode & stat.S_IRWXU != stat.S_IRWXU:
            _make_ours(fd)
        return os.open(name, DIRECTORY, dir_fd=parent)
    finally:
        os.close(fd)
