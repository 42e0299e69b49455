"""What a path says: of which root it is, as far as its text tells, and what to say of one that cannot be had."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kernelexec.errors import FileRefused, InvalidPath
from kernelexec.text import clean_text

#: The longest path that the system takes, in bytes.
PATH_BYTES = 4095
_SHOWN_CHARS = 200
_WHY = {
    errno.ELOOP: "a symbolic link is there or on the way, and none is followed: name the file itself",
    errno.EXDEV: "another file system is mounted there, which no file operation goes into",
    errno.ENXIO: "it is no plain file",
}


@dataclass(frozen=True, slots=True)
class Root:
    """A directory, or one file, beneath which files may be named.

    ``path`` is absolute with all links resolved; ``inside`` is where kernels see it.
    """

    path: Path
    inside: str
    writable: bool = True
    protected: tuple[Path, ...] = ()
    """What is in it, and can only be read all the same."""
    single: bool = False
    """Whether it is one file."""
    hidden: tuple[Path, ...] = ()
    """What is in it, and is not touched at all: what its kernels cannot read either."""

    def has(self, path: Path) -> bool:
        """Whether a path is of it, by its text."""
        return path == self.path or (not self.single and path.is_relative_to(self.path))


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a path leads, as far as its text says: the parts beneath its root; nothing is opened yet."""

    root: Root
    parts: tuple[str, ...]
    shown: str
    """The path in answers and messages: relative to the workspace, or else absolute as kernels see it."""

    @property
    def path(self) -> Path:
        """Where it is on this machine."""
        return self.root.path.joinpath(*self.parts)

    @property
    def name(self) -> str:
        """Its last part."""
        return self.parts[-1] if self.parts else self.root.path.name

    def __truediv__(self, part: str) -> Spot:
        """What has this name in it."""
        told = clean_text(part)
        return Spot(self.root, (*self.parts, part), told if self.shown == "." else f"{self.shown}/{told}")


def path_text(path: object) -> str:
    """A path as text that the system could take for one.

    Raises:
        InvalidPath: it could not.
    """
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        message = f"path={path!r:.100}: it is text, not empty, without NUL characters."
        raise InvalidPath(message)
    try:
        size = len(os.fsencode(text))
    except UnicodeEncodeError as exc:
        message = f"path={short(text)} holds half a character, which no name has."
        raise InvalidPath(message) from exc
    if size > PATH_BYTES:
        message = f"path={short(text)} has {size} bytes; {PATH_BYTES} is the most that a path has."
        raise InvalidPath(message)
    if text.startswith("~"):
        message = f"path={short(text)}: '~' is no home here. Name a path in the workspace; ./~ is a file of that name."
        raise InvalidPath(message)
    if ".." in text.split("/"):
        message = f"path={short(text)}: name it without '..'."
        raise InvalidPath(message)
    return text


def short(text: str) -> str:
    """A path as it was given, short enough for a message."""
    return repr(clean_text(text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."))


@contextmanager
def explained(spot: Spot) -> Iterator[None]:
    """What the system says of a path, as our own errors.

    Raises:
        InvalidPath: nothing is there, or could be.
        FileRefused: all else.
    """
    try:
        yield
    except OSError as exc:
        match exc.errno:
            case errno.ENOENT:
                raise InvalidPath(f"{spot.shown} does not exist: list the directory to see what does.") from exc
            case errno.ENOTDIR:
                raise InvalidPath(f"{spot.shown}: it, or what it is in, is no directory.") from exc
            case errno.EISDIR:
                raise InvalidPath(f"{spot.shown} is a directory, and no file.") from exc
            case errno.ENAMETOOLONG:
                raise InvalidPath(f"{short(spot.shown)} has a name that is too long for the file system.") from exc
            case _:
                why = _WHY.get(exc.errno or 0, exc.strerror or str(exc))
                raise FileRefused(f"{spot.shown} is left alone: {why}.") from exc


def system_error(number: int) -> OSError:
    """What the system would say by that number, as an exception."""
    return OSError(number, os.strerror(number))
