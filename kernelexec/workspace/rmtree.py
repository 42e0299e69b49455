"""Remove directories that a kernel can write in: at any depth, with any modes, and without following links.

A running cell may go on making directories in a tree, as fast as they are removed: a removal that it can hold is bounded.
"""

from __future__ import annotations

import math
import os
import secrets
import stat
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from kernelexec.workspace.safe_files import DIRECTORY, NAMED, closing_fd, open_directory_chain, open_top, short_temporary_name

#: How many entries of a directory of ours are removed at most, which is twice what a copy of a workspace holds; and how many
#: seconds the removal of a directory of one call takes at most, which holds few.
ENTRIES_MAX, CALL_SECONDS = 200_000, 2.0
_PASSES = 5


class _BoundReached(Exception):
    """A removal has looked at as many entries, or taken as long, as it may."""


@dataclass(slots=True)
class _Bound:
    """The rest of the bounds of a removal: entries, and the time at which it ends."""

    left: int | None
    until: float

    @property
    def is_late(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() > self.until

    def names_in(self, directory: int) -> Iterator[str]:
        """Yield the names in an open directory; raise ``_BoundReached`` instead of the first one beyond a bound."""
        for name in names_in(directory, None if self.left is None else self.left + 1):
            if self.left is not None:
                self.left -= 1
            if (self.left is not None and self.left < 0) or self.is_late:
                raise _BoundReached
            yield name


def remove_tree(path: Path) -> None:
    """Remove a directory with all that is in it, as far as that is possible."""
    with suppress(OSError):
        with closing_fd(os.open(path, DIRECTORY)) as fd:
            clear(fd)
        path.rmdir()


def remove_within(top: Path, relative: Path, *, seconds: float = math.inf) -> None:
    """Remove a directory below ``top``, which a kernel can write in; no link is followed on the way either.

    It gets another name first, so that nothing new is written there by its path. What is beyond ``ENTRIES_MAX``, or left
    after ``seconds``, stays under that name until the workspace is removed.
    """
    name = short_temporary_name()
    with suppress(OSError), ExitStack() as opened:
        above = open_directory_chain(open_top(top), relative.parent, opened)
        directory = open_directory_chain(os.open(relative.name, DIRECTORY, dir_fd=above), Path(), opened)
        os.rename(relative.name, name, src_dir_fd=above, dst_dir_fd=above)
        clear(directory, most=ENTRIES_MAX, seconds=seconds)
        os.rmdir(name, dir_fd=above)


def clear(
    top: int, *, keep: str = "", stop: threading.Event | None = None, most: int | None = None, seconds: float = math.inf
) -> bool:
    """Remove the content of an open directory but ``keep``; return whether nothing else is left. Ends soon after ``stop``.

    Deep directories are moved up before they are opened: the depth, which a kernel chooses, costs neither
        recursion nor descriptors.

    Without a bound (``most`` entries, or ``seconds``), a cell that makes directories in the tree as fast as they are
    removed holds the removal for as long as it likes.
    """
    bound = _Bound(most, time.monotonic() + seconds)
    with suppress(_BoundReached):
        for _ in range(_PASSES):
            names = deque(name for name in bound.names_in(top) if name != keep)
            if not names:
                return True
            while names:
                if (stop is not None and stop.is_set()) or bound.is_late:
                    return False
                with suppress(OSError):
                    names.extend(_remove(names.popleft(), top, bound))
    return False


def names_in(directory: int, most: int | None = None) -> list[str]:
    """Return the names in an open directory, or the first ones."""
    with os.scandir(directory) as entries:
        return [entry.name for entry in islice(entries, most)]


def _remove(name: str, top: int, bound: _Bound) -> list[str]:
    """Remove a file, or a directory after moving its directories up; return the names of those."""
    if _unlink(name, top):
        return []
    moved = []
    with closing_fd(_open_ours(name, top)) as fd:
        for inner in bound.names_in(fd):
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
