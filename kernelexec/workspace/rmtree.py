"""Remove directories writable by a kernel: at any depth, with any modes, and without following links.

A running cell may create directories in a tree as fast as they are removed, so a removal in reach of a cell is bounded.
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

#: The most removed entries of a directory of ours, twice as many as in a copy of a workspace; and the time limit, in seconds,
#: for the directory of a single call, which has few entries.
ENTRIES_MAX, CALL_SECONDS = 200_000, 2.0
#: A running cell may put new entries into the emptied directory: they are removed too, but not for ever.
_PASSES = 5


class _BoundReached(Exception):
    """The bound of entries or of time of a removal."""


@dataclass(slots=True)
class _Bound:
    """The rest of the bounds of a removal: entries, and the time of the end."""

    left: int | None
    until: float

    @property
    def is_late(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() > self.until

    def names_in(self, directory: int) -> Iterator[str]:
        """Yield the names in an open directory. Raise ``_BoundReached`` in the place of the first name beyond a bound."""
        for name in names_in(directory, None if self.left is None else self.left + 1):
            if self.left is not None:
                self.left -= 1
            if (self.left is not None and self.left < 0) or self.is_late:
                raise _BoundReached
            yield name


def remove_tree(path: Path) -> None:
    """Remove a directory and its content, as far as possible."""
    with suppress(OSError):
        with closing_fd(os.open(path, DIRECTORY)) as fd:
            clear(fd)
        path.rmdir()


def remove_within(top: Path, relative: Path, *, seconds: float = math.inf) -> None:
    """Remove a directory below ``top``, where a kernel can write, without following links on the way.

    The directory gets another name first, so nothing new is written by the old path. Entries beyond ``ENTRIES_MAX``, or left
    after ``seconds``, stay under the new name until the workspace is removed.
    """
    name = short_temporary_name()
    with suppress(OSError), ExitStack() as opened:
        above = open_directory_chain(open_top(top), relative.parent, opened)
        directory = open_directory_chain(os.open(relative.name, DIRECTORY, dir_fd=above), Path(), opened)
        os.rename(relative.name, name, src_dir_fd=above, dst_dir_fd=above)
        # By the descriptor: the name may be another directory's by now, and ``rmdir`` removes an empty directory only.
        clear(directory, most=ENTRIES_MAX, seconds=seconds)
        os.rmdir(name, dir_fd=above)


def clear(
    top: int, *, keep: str = "", stop: threading.Event | None = None, most: int | None = None, seconds: float = math.inf
) -> bool:
    """Remove the content of an open directory except ``keep``. Return whether nothing else is left. ``stop`` ends the removal.

    Deep directories are moved up before they are opened, so the depth, chosen by a kernel, costs neither recursion nor
    descriptors.

    Without a bound (``most`` entries, or ``seconds``), a cell can hold the removal for ever by creating directories in the
    tree as fast as they are removed.
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
    """Return the names in an open directory, at most the first ``most``."""
    with os.scandir(directory) as entries:
        return [entry.name for entry in islice(entries, most)]


def _remove(name: str, top: int, bound: _Bound) -> list[str]:
    """Remove a file, or a directory after moving its directories up. Return the new names of the moved directories.

    An entry that cannot be removed stays with the directory, and the others are removed.
    """
    if _unlink(name, top):
        return []
    moved = []
    with closing_fd(_open_ours(name, top)) as fd:
        for inner in bound.names_in(fd):
            with suppress(OSError):
                if not _unlink(inner, fd):
                    os.close(_open_ours(inner, fd))  # a move changes its "..", so it must be writable itself
                    os.rename(inner, new := secrets.token_hex(8), src_dir_fd=fd, dst_dir_fd=top)
                    moved.append(new)
    with suppress(OSError):
        os.rmdir(name, dir_fd=top)
    return moved


def _unlink(name: str, parent: int) -> bool:
    """Remove a name that is not a directory; return whether it was removed."""
    try:
        os.unlink(name, dir_fd=parent)
    # PermissionError is the answer of POSIX for a directory: EISDIR is Linux's own.
    except (IsADirectoryError, PermissionError):
        return False
    return True


def _make_ours(fd: int) -> None:
    """Give the owner full rights to an open file, and not to a later file of the same name."""
    # ``fchmod`` refuses descriptors of O_PATH.
    if NAMED == os.O_RDONLY:
        os.fchmod(fd, stat.S_IRWXU)
    else:
        Path(f"/proc/self/fd/{fd}").chmod(stat.S_IRWXU)


def _open_ours(name: str, parent: int) -> int:
    """Open a directory after giving full rights to the owner."""
    with closing_fd(os.open(name, NAMED | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)) as fd:
        if os.fstat(fd).st_mode & stat.S_IRWXU != stat.S_IRWXU:
            _make_ours(fd)
        return os.open(name, DIRECTORY, dir_fd=parent)
