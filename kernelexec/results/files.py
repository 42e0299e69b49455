"""The words of file operations: what a directory holds, what a file says, what was written, and what was deleted or not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Self

from kernelexec.results.result import plain_json

#: ``other`` is what no file operation opens: a pipe, a socket, a device.
FileKind = Literal["file", "directory", "link", "other"]


class _Plain:
    """What goes to JSON types and back."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """As JSON types only."""
        plain: dict[str, Any] = plain_json(self)
        return plain

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> Self:
        """Read what ``to_dict`` gave.

        Raises:
            ValueError: it is not of that form.
        """
        from pydantic import TypeAdapter  # noqa: PLC0415 - imported where it is needed only

        return TypeAdapter(cls).validate_python(given)


@dataclass(frozen=True, slots=True)
class FileEntry(_Plain):
    """One entry of a directory. ``path`` is relative to the workspace, or absolute as kernels see it elsewhere.

    A name that is no UTF-8 is shown with its odd bytes escaped; ``modified`` is seconds since 1970.
    """

    path: str
    kind: FileKind
    size_bytes: int
    modified: float


@dataclass(frozen=True, slots=True)
class FileList(_Plain):
    """What a directory holds, by path. Where not ``complete``, there is more than one call looks at, or may look at."""

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
class FileText(_Plain):
    """A piece of a file; offsets and sizes in bytes. ``next_offset`` is where to read on, None at the file's end.

    Where it is ``lossy``, bytes that are no UTF-8 stand as U+FFFD.
    """

    path: str
    text: str
    offset: int
    next_offset: int | None
    total_bytes: int
    lossy: bool = False


@dataclass(frozen=True, slots=True)
class FileBytes:
    """A piece of a file as it is; offsets and sizes in bytes. ``next_offset`` is where to read on, None at the file's end."""

    path: str
    content: bytes
    offset: int
    next_offset: int | None
    total_bytes: int


@dataclass(frozen=True, slots=True)
class FileWritten(_Plain):
    """A file as it is after writing; ``created`` says that there was none before."""

    path: str
    size_bytes: int
    created: bool


@dataclass(frozen=True, slots=True)
class NotDeleted(_Plain):
    """What was to be deleted and is still there, and why."""

    path: str
    why: str


@dataclass(frozen=True, slots=True)
class FilesDeleted(_Plain):
    """What was deleted, and what was not and why. Where not ``complete``, there is more than one call looks at."""

    deleted: tuple[str, ...] = ()
    refused: tuple[NotDeleted, ...] = ()
    complete: bool = True
