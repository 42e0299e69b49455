"""The results of file operations: lists, contents, written and deleted files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from kernelexec.results.json_values import JsonReadable
from kernelexec.results.one_line import count_things, format_bytes, join_parts, list_some, quote_head

#: ``other`` is a pipe, a socket or a device; no file operation opens one.
FileKind = Literal["file", "directory", "link", "other"]


@dataclass(frozen=True, slots=True)
class FileEntry(JsonReadable):
    """An entry of a directory. ``path`` is relative to the workspace; elsewhere absolute, as seen by kernels.

    Bytes of a name that are not UTF-8 are escaped. ``modified`` is in seconds since 1970.
    """

    path: str
    kind: FileKind
    size_bytes: int
    modified: float


@dataclass(frozen=True, slots=True)
class FileList(JsonReadable):
    """The entries of a directory, sorted by path. Not ``complete`` means a reached limit or an unreadable directory."""

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

    def __repr__(self) -> str:
        number = len(self.entries)
        count = f"{number} entr{'y' if number == 1 else 'ies'}{'' if self.complete else ' or more'}"
        return f"<FileList {join_parts(repr(self.path), list_some(count, self.paths))}>"


@dataclass(frozen=True, slots=True)
class FileText(JsonReadable):
    """A piece of a text file; offsets and sizes in bytes. ``next_offset`` is the offset of the next piece, None at the end.

    ``lossy`` means that invalid UTF-8 was replaced by U+FFFD.
    """

    path: str
    text: str
    offset: int
    next_offset: int | None
    total_bytes: int
    lossy: bool = False

    def __repr__(self) -> str:
        return f"<FileText {join_parts(repr(self.path), _describe_piece(self), quote_head(self.text))}>"


@dataclass(frozen=True, slots=True)
class FileBytes:
    """A piece of a file as bytes; offsets and sizes in bytes. ``next_offset`` is the next piece's, None at the end."""

    path: str
    content: bytes
    offset: int
    next_offset: int | None
    total_bytes: int

    def __repr__(self) -> str:
        return f"<FileBytes {join_parts(repr(self.path), _describe_piece(self))}>"


@dataclass(frozen=True, slots=True)
class FileWritten(JsonReadable):
    """A written file; ``created`` means that there was no such file before."""

    path: str
    size_bytes: int
    created: bool


@dataclass(frozen=True, slots=True)
class NotDeleted(JsonReadable):
    """A path left undeleted, with the reason."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class FilesDeleted(JsonReadable):
    """The deleted paths, and the refused paths. Not ``complete`` means that the call's limit of entries was reached."""

    deleted: tuple[str, ...] = ()
    refused: tuple[NotDeleted, ...] = ()
    complete: bool = True


@dataclass(frozen=True, slots=True)
class NotCopied(JsonReadable):
    """A path left out of a copy, with the reason."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class FilesCopied(JsonReadable):
    """A copy of a file or a directory at ``path``: copied files, their total size in bytes, and refused entries.

    Paths of a download are absolute paths on this machine. For a download into an open file, ``path`` is the file's name.
    """

    path: str
    files: tuple[str, ...]
    size_bytes: int
    refused: tuple[NotCopied, ...] = ()

    def __repr__(self) -> str:
        refused = list_some(f"{len(self.refused)} refused", [entry.path for entry in self.refused]) if self.refused else None
        count = count_things("file", len(self.files)) if len(self.files) != 1 else None
        return f"<FilesCopied {join_parts(repr(self.path), count, format_bytes(self.size_bytes), refused)}>"


def _describe_piece(piece: FileText | FileBytes) -> str:
    if piece.offset == 0 and piece.next_offset is None:
        return format_bytes(piece.total_bytes)
    end = piece.total_bytes if piece.next_offset is None else piece.next_offset
    return f"bytes {piece.offset} to {end} of {piece.total_bytes}"
