"""Remove directories that a kernel can write in: at any depth, with any modes, and without following links."""

from __future__ import annotations

import os
import secrets
import stat
import threading
from collections import deque
from contextlib import ExitStack, suppress
from pathlib import Path

from kernelexec.workspace.safe_files import DIRECTORY, NAMED, closing_fd, open_directory_chain, short_temporary_name

_PASSES = 5


def remove_tree(path: Path) -> None:
    """Remove a directory with all that is in it, as far as that is possible."""
    with suppress(OSError):
        with closing_fd(os.open(path, DIRECTORY)) as fd:
            clear(fd)
        path.rmdir()


def remove_within(top: Path, relative: Path) -> None:
    """Remove a directory below ``top``, which a kernel can write in; no link is followed on the way either.

    It gets another name first, so that nothing new is written there by its path.
    """
    name = short_temporary_name()
    with suppress(OSError), ExitStack() as opened:
        above = open_directory_chain(os.open(top, DIRECTORY), relative.parent, opened)
        directory = open_directory_chain(os.open(relative.name, DIRECTORY, dir_fd=above), Path(), opened)
        os.rename(relative.name, name, src_dir_fd=above, dst_dir_fd=above)
        clear(directory)
        os.rmdir(name, dir_fd=above)


def clear(top: int, *, keep: str = "", stop: threading.Event | None = None) -> bool:
    """Remove the content of an open directory but ``keep``; return whether nothing else is left. Ends soon after ``stop``.

    Deep directories are moved up before they are opened: the depth, which a kernel chooses, costs neither
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
    """Return the names in an open directory."""
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries]


def _remove(name: str, top: int) -> list[str]:
    """Remove a file, or a directory after moving its directories up; return the names of those."""
    if _unlink(name, top):
        return []
    moved = []
    with closing_fd(_open_ours(name, top)) as fd:
        for inner in names_in(fd):
            if not _unlink(inner, fd):
                os.close(_open_ours(inner, fd))
                moved.append(secrets.token_hex(8))
                os.rename(inner, moved[-1], src_dir_fd=fd, dst_dir_fd=top)
    os.rmdir(name, dir_fd=top)
    return moved


def _unlink(name: str, parent: int) -> bool:
    """Remove a name that is not a directory; return whether it was removed."""
    try:
        os.unlink(name, dir_fd=parent)
    except (IsADirectoryError, PermissionError):
        return False
    return True


def _make_ours(fd: int) -> None:
    """Give the owner of an open file full rights to it, not to a file of the same name."""
    if NAMED == os.O_RDONLY:
        os.fchmod(fd, stat.S_IRWXU)
    else:
        Path(f"/proc/self/fd/{fd}").chmod(stat.S_IRWXU)


def _open_ours(name: str, parent: int) -> int:
    """Open a directory after giving its owner full rights to it."""
    with closing_fd(os.open(name, NAMED | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)) as fd:
        if os.fstat(fd).st_mode & stat.S_IRWXU != stat.S_IRWXU:
            _make_ours(fd)
        return os.open(name, DIRECTORY, dir_fd=parent)
