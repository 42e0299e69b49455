"""The results of file operations: lists, contents, written and deleted files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from kernelexec.results.json_values import JsonReadable

#: ``other`` is a pipe, a socket or a device; no file operation opens one.
FileKind = Literal["file", "directory", "link", "other"]


@dataclass(frozen=True, slots=True)
class FileEntry(JsonReadable):
    """One entry of a directory. ``path`` is relative to the workspace, or absolute as kernels see it elsewhere.

    In a name that is not UTF-8 the invalid bytes are escaped; ``modified`` is in seconds since 1970.
    """

    path: str
    kind: FileKind
    size_bytes: int
    modified: float


@dataclass(frozen=True, slots=True)
class FileList(JsonReadable):
    """The entries of a directory, sorted by path. If not ``complete``, a limit was reached or a directory was unreadable."""

    path: str
    entries: tuple[FileEntry, ...] = ()
    complete: bool = True

    def __iter__(self) -> Iterator[FileEntry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the entries."""
        return tuple(entry.path for entry in self.entries)


@dataclass(frozen=True, slots=True)
class FileText(JsonReadable):
    """A piece of a text file; offsets and sizes in bytes. ``next_offset`` is the offset of the next piece, None at the end.

    ``lossy`` says that invalid UTF-8 was replaced by U+FFFD.
    """

    path: str
    text: str
    offset: int
    next_offset: int | None
    total_bytes: int
    lossy: bool = False


@dataclass(frozen=True, slots=True)
class FileBytes:
    """A piece of a file as bytes; offsets and sizes in bytes. ``next_offset`` is the next piece's, None at the end."""

    path: str
    content: bytes
    offset: int
    next_offset: int | None
    total_bytes: int


@dataclass(frozen=True, slots=True)
class FileWritten(JsonReadable):
    """A written file; ``created`` says that it did not exist before."""

    path: str
    size_bytes: int
    created: bool


@dataclass(frozen=True, slots=True)
class NotDeleted(JsonReadable):
    """A path that was not deleted, and the reason."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class FilesDeleted(JsonReadable):
    """The deleted paths, and those that were not. If not ``complete``, the call's limit of entries was reached."""

    deleted: tuple[str, ...] = ()
    refused: tuple[NotDeleted, ...] = ()
    complete: bool = True
