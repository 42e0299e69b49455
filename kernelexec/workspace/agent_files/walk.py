"""Looking through directories that a kernel changes meanwhile: no link is followed, and the number of entries is bounded."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field

from kernelexec.results import FileKind
from kernelexec.workspace.agent_files.access import LISTED
from kernelexec.workspace.openat2 import open_beneath


@dataclass(frozen=True, slots=True)
class Found:
    """An entry: its parts beneath the directory that is looked through, and what it was when it was seen."""

    parts: tuple[str, ...]
    seen: os.stat_result

    @property
    def kind(self) -> FileKind:
        """What it is; a link is a link, wherever it leads."""
        return kind_of(self.seen)


@dataclass(slots=True)
class Walk:
    """What was found, sorted by path."""

    found: list[Found] = field(default_factory=list)
    closed: list[tuple[tuple[str, ...], OSError]] = field(default_factory=list)
    """Directories that could not be looked into."""
    complete: bool = True
    """Whether all of it was seen, but for these."""


def walk(top: int, limit: int, *, enters: Callable[[Found], bool]) -> Walk:
    """Look through an open directory, and through each directory in it for which ``enters`` is true, ``limit`` entries at most.

    Raises:
        OSError: it cannot be listed.
    """
    done, left = Walk(), limit
    pending: list[tuple[str, ...]] = [()]
    while pending:
        parts = pending.pop()
        try:
            found = _entries(top, parts, left + 1)
        except OSError as exc:
            if not parts:
                raise
            done.closed.append((parts, exc))
            continue
        if len(found) > left:
            done.complete = False
            found, pending = found[:left], []
        left -= len(found)
        done.found.extend(found)
        pending.extend(entry.parts for entry in found if entry.kind == "directory" and done.complete and enters(entry))
    done.found.sort(key=lambda entry: entry.parts)
    done.closed.sort(key=lambda entry: entry[0])
    return done


def _entries(top: int, parts: tuple[str, ...], limit: int) -> list[Found]:
    """The first entries of a directory, which is opened anew beneath the top: it may be another one by now."""
    found: list[Found] = []
    fd = open_beneath(top, "/".join(parts) or ".", LISTED)
    try:
        with os.scandir(fd) as listing:
            for entry in listing:
                if len(found) == limit:
                    break
                seen = _seen(entry)
                if seen is not None:
                    found.append(Found((*parts, entry.name), seen))
    finally:
        os.close(fd)
    return found


def _seen(entry: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None


def kind_of(seen: os.stat_result) -> FileKind:
    """What something is, which was looked at without following links."""
    if stat.S_ISDIR(seen.st_mode):
        return "directory"
    return "file" if stat.S_ISREG(seen.st_mode) else "link" if stat.S_ISLNK(seen.st_mode) else "other"
