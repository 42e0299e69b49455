"""What an agent has read or made of its files, so that it deletes nothing that it never looked at."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from kernelexec.errors import InvalidPath
from kernelexec.workspace.agent_files.access import Access
from kernelexec.workspace.agent_files.paths import Spot
from kernelexec.workspace.agent_files.walk import Found, kind_of, walk
from kernelexec.workspace.generated import is_generated

_SHOWN = 3
#: So many paths are remembered of each kind; the oldest are forgotten first.
_TRACKED_MAX = 100_000


class ReadTracker:
    """The files that were read and made by one session's file operations, by path. Any thread may ask.

    It lasts as long as the session; whoever wants it to count for one turn of a conversation clears it at each.

    Args:
        access: finds what a path leads to.
        enforced: whether a file must have been read, or made, before it is deleted.
        entries: how many entries of a directory are looked at.
    """

    def __init__(self, access: Access, *, enforced: bool, entries: int) -> None:
        self.enforced = enforced
        self._access = access
        self._entries = entries
        self._read: dict[Path, None] = {}
        self._created: dict[Path, None] = {}
        self._changing = threading.Lock()

    def mark_as_read(self, path: str | os.PathLike[str]) -> None:
        """Take note that a file was read."""
        self.note([self._access.spot(path)])

    def mark_as_created(self, path: str | os.PathLike[str]) -> None:
        """Take note that a file was made."""
        self.note([self._access.spot(path)], created=True)

    def was_read(self, path: str | os.PathLike[str]) -> bool:
        """Whether its content is known: it was read, or made."""
        return self.knows(self._access.spot(path))

    def can_delete(self, path: str | os.PathLike[str]) -> tuple[bool, str | None]:
        """Whether a file can be deleted as far as reading goes, or why not. One that is missing can.

        Raises:
            InvalidPath, FileRefused: it is nowhere that may be named, or behind a link.
        """
        spot = self._access.spot(path)
        seen = self._access.look(spot) if self.enforced else None
        if seen is not None and kind_of(seen) == "directory":
            return self.can_delete_directory(path)
        why = self.unread(spot, seen)
        return why is None, why

    def can_delete_directory(self, path: str | os.PathLike[str]) -> tuple[bool, str | None]:
        """Whether all files in a directory can be, or which cannot: the first three, and how many. One that is missing can.

        Raises:
            InvalidPath, FileRefused: it is nowhere that may be named, or behind a link.
        """
        spot = self._access.spot(path)
        if not self.enforced:
            return True, None
        try:
            with self._access.directory(spot) as fd:
                seen = walk(fd, self._entries, enters=lambda _: True)
        except InvalidPath:
            return True, None
        why = self.unread_among(spot, seen.found)
        if why is None and not seen.complete:
            why = f"{spot.shown} holds more than {self._entries} entries: delete parts of it first."
        return why is None, why

    def clear(self) -> None:
        """Forget all."""
        with self._changing:
            self._read.clear()
            self._created.clear()

    def get_stats(self) -> dict[str, int]:
        """How many files were read, how many made, and how many that are together."""
        with self._changing:
            read, created = set(self._read), set(self._created)
        return {"read_files": len(read), "created_files": len(created), "total_tracked": len(read | created)}

    def note(self, spots: Iterable[Spot], *, created: bool = False) -> None:
        """Take note of files that were read, or made."""
        kind = self._created if created else self._read
        with self._changing:
            for spot in spots:
                kind[spot.path] = None
                if len(kind) > _TRACKED_MAX:
                    del kind[next(iter(kind))]

    def forget(self, spot: Spot) -> None:
        """What was there is gone: what comes to have that name is another file."""
        with self._changing:
            self._read.pop(spot.path, None)
            self._created.pop(spot.path, None)

    def knows(self, spot: Spot) -> bool:
        """Whether the content of what is there is known."""
        return spot.path in self._read or spot.path in self._created

    def unread(self, spot: Spot, seen: os.stat_result | None) -> str | None:
        """Why what is there cannot be deleted; None where it can, as anything that has no content of its own."""
        if not self.enforced or seen is None or not _has_content(seen):
            return None
        if self.knows(spot) or is_generated("/".join(spot.parts)):
            return None
        return f"{spot.shown} has not been read: read it first, so that nothing is deleted unseen."

    def unread_among(self, spot: Spot, found: Sequence[Found]) -> str | None:
        """The same of all that was found in a directory."""
        inner = ((spot / "/".join(entry.parts), entry.seen) for entry in found)
        unread = [file.shown for file, seen in inner if self.unread(file, seen) is not None]
        if not unread:
            return None
        listed = ", ".join(unread[:_SHOWN]) + (f" and {len(unread) - _SHOWN} more" if len(unread) > _SHOWN else "")
        files = "1 file that has" if len(unread) == 1 else f"{len(unread)} files that have"
        return f"{spot.shown} holds {files} not been read: {listed}. Read before deleting."


def _has_content(seen: os.stat_result) -> bool:
    """Whether something is lost with a name: a link has nothing, and a file with a second name is still there."""
    return kind_of(seen) == "file" and seen.st_nlink == 1
