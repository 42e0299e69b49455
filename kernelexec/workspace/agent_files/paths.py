"""Paths of agents as text, messages about them, and errors of the system as ours."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kernelexec.errors import FileRefused, InvalidPath
from kernelexec.text import clean_text

#: The longest path that the system accepts, in bytes.
PATH_BYTES = 4095
_SHOWN_CHARS = 200
_INVALID = {
    errno.ENOENT: " does not exist: list the directory.",
    errno.ENOTDIR: ": it, or its parent, is not a directory.",
    errno.EISDIR: " is a directory, and no file.",
}
_REFUSED = {
    errno.ELOOP: "a symbolic link is there or on the way, and none is followed: name the file itself",
    errno.EXDEV: "another file system is mounted there, which no file operation goes into",
    errno.ENXIO: "it is not a regular file",
    errno.EAGAIN: "a program holds a lease on it, and an open file would have to wait: try again after that program",
}


@dataclass(frozen=True, slots=True)
class FileRoot:
    """A directory, or a single file, whose files an agent may name.

    ``path`` is absolute with all links resolved; ``inside`` is the path that kernels see.
    """

    path: Path
    inside: str
    writable: bool = True
    protected: tuple[Path, ...] = ()
    """Paths in it that can only be read."""
    single: bool = False
    """Whether it is a file."""
    hidden: tuple[Path, ...] = ()
    """Paths in it that are refused: kernels cannot read them either."""

    def has(self, path: Path) -> bool:
        """Return whether a path is beneath it, by its text."""
        return path == self.path or (not self.single and path.is_relative_to(self.path))


@dataclass(frozen=True, slots=True)
class WorkspacePath:
    """A path as its parts beneath a root, by its text; nothing is opened yet."""

    root: FileRoot
    parts: tuple[str, ...]
    shown: str
    """Return the path for answers and messages: relative to the workspace, or absolute as kernels see it."""

    @property
    def path(self) -> Path:
        """Return the path on this machine."""
        return self.root.path.joinpath(*self.parts)

    @property
    def name(self) -> str:
        """Return the last part."""
        return self.parts[-1] if self.parts else self.root.path.name

    def __truediv__(self, part: str) -> WorkspacePath:
        """Return the path of this name in it."""
        text = clean_text(part)
        return WorkspacePath(self.root, (*self.parts, part), text if self.shown == "." else f"{self.shown}/{text}")


def path_text(path: object) -> str:
    """Return a path as text that the system accepts.

    Raises:
        InvalidPath: the system would not accept it.
    """
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        raise InvalidPath(f"path={path!r:.100}: must be text, not empty, without NUL characters.")
    try:
        size = len(os.fsencode(text))
    except UnicodeEncodeError as exc:
        raise InvalidPath(f"path={short(text)} holds half a character, which no name has.") from exc
    if size > PATH_BYTES:
        raise InvalidPath(f"path={short(text)} has {size} bytes; {PATH_BYTES} is the most that a path has.")
    if text.startswith("~"):
        raise InvalidPath(f"path={short(text)}: '~' is no home here. Name a path in the workspace; ./~ is a file of that name.")
    if ".." in text.split("/"):
        raise InvalidPath(f"path={short(text)}: name it without '..'.")
    return text


def short(text: str) -> str:
    """Return a path as the caller wrote it, short enough for a message."""
    return repr(clean_text(text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."))


@contextmanager
def os_errors_as_ours(spot: WorkspacePath) -> Iterator[None]:
    """Translate errors of the system about a path into ours.

    Raises:
        InvalidPath: the path is missing or impossible.
        FileRefused: any other error.
    """
    try:
        yield
    except OSError as exc:
        number = exc.errno or 0
        if number == errno.ENAMETOOLONG:
            raise InvalidPath(f"{short(spot.shown)} has a name that is too long for the file system.") from exc
        if number in _INVALID:
            raise InvalidPath(f"{spot.shown}{_INVALID[number]}") from exc
        raise FileRefused(f"{spot.shown} is left alone: {_REFUSED.get(number, exc.strerror or str(exc))}.") from exc


def system_error(number: int) -> OSError:
    """Return the exception of the system for an error number."""
    return OSError(number, os.strerror(number))
