"""Walk through directories that a kernel may change meanwhile: no link is followed, the number of entries is bounded."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from kernelexec.results import FileKind
from kernelexec.workspace.agent_files.access import LISTED
from kernelexec.workspace.openat2 import open_beneath
from kernelexec.workspace.safe_files import closing_fd

#: Directories are nested at most so deep: each entry holds its whole path, so that deeper ones would cost much memory and time.
DEPTH_MAX = 200


@dataclass(frozen=True, slots=True)
class WalkEntry:
    """An entry: its parts beneath the top directory, and its state when it was listed."""

    parts: tuple[str, ...]
    seen: os.stat_result

    @property
    def kind(self) -> FileKind:
        """Return its kind; links are not followed."""
        return kind_of(self.seen)


@dataclass(slots=True)
class WalkResult:
    """The entries, sorted by path."""

    entries: list[WalkEntry] = field(default_factory=list)
    unreadable: list[tuple[tuple[str, ...], OSError]] = field(default_factory=list)
    """Directories that could not be listed, or are nested too deep."""
    complete: bool = True
    """Whether all other entries are listed."""


def walk(top: int, limit: int, *, enters: Callable[[WalkEntry], bool], across: bool = False) -> WalkResult:
    """List an open directory, and each directory in it for which ``enters`` is true, at most ``limit`` entries.

    Directories that are nested deeper than ``DEPTH_MAX`` are not listed. With ``across`` directories of other file systems
    are listed too.

    Raises:
        OSError: the directory cannot be listed.
    """
    done, left = WalkResult(), limit
    pending: list[tuple[str, ...]] = [()]
    while pending:
        parts = pending.pop()
        try:
            if len(parts) > DEPTH_MAX:
                raise OSError(errno.ENAMETOOLONG, f"it is nested in more than {DEPTH_MAX} directories")  # noqa: TRY301
            entries = _entries(top, parts, left + 1, across=across)
        except OSError as exc:
            if not parts:
                raise
            done.unreadable.append((parts, exc))
            continue
        if len(entries) > left:
            done.complete = False
            entries, pending = entries[:left], []
        left -= len(entries)
        done.entries.extend(entries)
        pending.extend(entry.parts for entry in entries if entry.kind == "directory" and done.complete and enters(entry))
    done.entries.sort(key=lambda entry: entry.parts)
    done.unreadable.sort(key=lambda entry: entry[0])
    return done


def _entries(top: int, parts: tuple[str, ...], limit: int, *, across: bool) -> list[WalkEntry]:
    """List the first entries of a directory, which is opened again beneath the top: it may have been replaced."""
    entries: list[WalkEntry] = []
    with closing_fd(open_beneath(top, "/".join(parts) or ".", LISTED, across=across)) as fd, os.scandir(fd) as listing:
        for entry in listing:
            if len(entries) == limit:
                break
            with suppress(FileNotFoundError):
                entries.append(WalkEntry((*parts, entry.name), entry.stat(follow_symlinks=False)))
    return entries


def kind_of(seen: os.stat_result) -> FileKind:
    """Return the kind of a file from its state."""
    if stat.S_ISDIR(seen.st_mode):
        return "directory"
    return "file" if stat.S_ISREG(seen.st_mode) else "link" if stat.S_ISLNK(seen.st_mode) else "other"
