"""The files read or created by an agent, so no file is deleted unread. Generated files are exempt."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from kernelexec.errors import InvalidPath
from kernelexec.results.one_line import join_names
from kernelexec.workspace.agent_files.access import Access, WalkEntry, WorkspacePath, kind_of, walk

#: Parts of generated paths. Any part of a path may match, exactly and in the same case.
_PARTS = frozenset(
    {
        *("__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".coverage", ".tox", ".nox"),
        *("node_modules", ".next", ".nuxt", "dist", "build", ".DS_Store", "Thumbs.db"),
    }
)
#: Suffixes of the file's own name.
_SUFFIXES = (".pyc", ".pyo")
#: Globs for any part. The content of such a directory is generated too.
_PART_GLOBS = ("*.egg-info",)
#: Globs for the file's own name only. A directory with such a name may contain files written by people.
_NAME_GLOBS = ("*.log", "*.swp", "*.swo", "*~")
#: All patterns.
PATTERNS = (*sorted(_PARTS), *_SUFFIXES, *_PART_GLOBS, *_NAME_GLOBS)


def is_generated_file(path: str | PurePosixPath) -> bool:
    """Return whether a tool can generate a file again, by the path relative to the workspace or another root."""
    parts = PurePosixPath(path).parts
    if not parts:
        return False
    name = parts[-1]
    return (
        not _PARTS.isdisjoint(parts)
        or name.endswith(_SUFFIXES)
        or any(fnmatchcase(part, glob) for part in parts for glob in _PART_GLOBS)
        or any(fnmatchcase(name, glob) for glob in _NAME_GLOBS)
    )


_SHOWN = 3
#: The bound of paths of each kind. The oldest are forgotten first.
_TRACKED_MAX = 100_000


class ReadTracker:
    """The files read and created by a session's file operations, by path. For any thread.

    The tracker lasts as long as the session. For a tracker of a single turn of a conversation, call ``clear`` at each turn.
    Methods raise the errors of ``access``.

    Args:
        access: resolves paths.
        enforced: whether a file must have been read or created before it is deleted.
    """

    def __init__(self, access: Access, *, enforced: bool) -> None:
        self.enforced = enforced
        self._access = access
        self._read: dict[Path, None] = {}
        self._created: dict[Path, None] = {}
        self._changing = threading.Lock()

    def mark_as_read(self, path: str | os.PathLike[str]) -> None:
        """Record a file as read."""
        self.note([self._access.spot(path)])

    def note_creation(self, path: str | os.PathLike[str]) -> None:
        """Record a file as created."""
        self.note([self._access.spot(path)], created=True)

    def was_read(self, path: str | os.PathLike[str]) -> bool:
        """Return whether a file was read or created."""
        return self.knows(self._access.spot(path))

    def can_delete(self, path: str | os.PathLike[str]) -> tuple[bool, str | None]:
        """Return whether a file may be deleted since it was read or created, or else the reason. A missing file may."""
        spot = self._access.spot(path)
        seen = self._access.look(spot) if self.enforced else None
        if seen is not None and kind_of(seen) == "directory":
            return self.can_delete_directory(path)
        reason = self.reason_unread(spot, seen)
        return reason is None, reason

    def can_delete_directory(self, path: str | os.PathLike[str]) -> tuple[bool, str | None]:
        """Return whether all files in a directory may be deleted, or else a reason that names the first three others.

        Names that are never deleted, such as ``.git``, are not considered.
        """
        spot = self._access.spot(path)
        if not self.enforced:
            return True, None
        try:
            with self._access.directory(spot) as fd:
                seen = walk(fd, enters=lambda _: True)
        except InvalidPath:
            return True, None
        reason = self.unread_among(spot, seen.entries)
        if reason is None and not seen.complete:
            reason = f"{spot.shown} holds more than {len(seen.entries)} entries: delete parts of it first."
        elif reason is None and seen.unreadable:
            parts, exc = seen.unreadable[0]
            reason = f"{(spot / '/'.join(parts)).shown} cannot be looked into: {exc.strerror}."
        return reason is None, reason

    def clear(self) -> None:
        """Forget all files."""
        with self._changing:
            self._read.clear()
            self._created.clear()

    def get_stats(self) -> dict[str, int]:
        """Return the numbers of read files, created files, and both together."""
        with self._changing:
            read, created = set(self._read), set(self._created)
        return {"read_files": len(read), "created_files": len(created), "total_tracked": len(read | created)}

    def note(self, spots: Iterable[WorkspacePath], *, created: bool = False) -> None:
        """Record files as read, or with ``created`` as created."""
        kind = self._created if created else self._read
        with self._changing:
            for spot in spots:
                kind[spot.path] = None
                if len(kind) > _TRACKED_MAX:
                    del kind[next(iter(kind))]

    def forget(self, spot: WorkspacePath) -> None:
        """Forget a deleted file: a later file with this name is a different file."""
        with self._changing:
            self._read.pop(spot.path, None)
            self._created.pop(spot.path, None)

    def knows(self, spot: WorkspacePath) -> bool:
        """Return whether the content of an entry is known."""
        return spot.path in self._read or spot.path in self._created

    def reason_unread(self, spot: WorkspacePath, state: os.stat_result | None) -> str | None:
        """Return the reason against deleting an entry, or None. There is none for an entry without content."""
        if not self.enforced or state is None or not _has_content(state):
            return None
        if self.knows(spot) or is_generated_file("/".join(spot.parts)):
            return None
        return f"{spot.shown} has not been read: read it first, so that nothing is deleted unseen."

    def unread_among(self, spot: WorkspacePath, entries: Sequence[WalkEntry]) -> str | None:
        """Return the reason against deleting the entries of a directory, or None."""
        inner = ((spot / "/".join(entry.parts), entry.seen) for entry in entries)
        unread = [file.shown for file, seen in inner if self.reason_unread(file, seen) is not None]
        if not unread:
            return None
        files = "1 file that has" if len(unread) == 1 else f"{len(unread)} files that have"
        return f"{spot.shown} holds {files} not been read: {join_names(unread, _SHOWN)}. Read before deleting."


def _has_content(seen: os.stat_result) -> bool:
    """Return whether content is lost with a name. A link has no content, and a file with a second name keeps its content."""
    return kind_of(seen) == "file" and seen.st_nlink == 1
