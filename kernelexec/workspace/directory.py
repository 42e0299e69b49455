"""The directory that a session works in, and which directories its commands may start in."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from pathlib import Path

from kernelexec.errors import InvalidRequest, InvalidWorkDir

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Workspace:
    """One session's directory; ``path`` is absolute with all links resolved, and so is what its kernels see ``beside``."""

    def __init__(self, path: Path, beside: Sequence[Path] = ()) -> None:
        self.path = path
        self.beside = tuple(beside)

    @classmethod
    def make(cls, parent: Path, session: str) -> Workspace:
        """The session's own directory under ``parent``, made where it is missing; ``~`` is the user's home.

        Raises:
            InvalidRequest: the name is no plain file name.
            InvalidWorkDir: the directory cannot be made.
        """
        check_name(session)
        path = _made(parent / session)
        if path.is_symlink():
            message = f"{path} is a symbolic link: a session's directory is its own."
            raise InvalidWorkDir(message)
        return cls(path.resolve())

    def moved(self, parent: Path, session: str) -> Workspace:
        """This directory, which was made before its session had a name, as that one's own under ``parent``.

        Raises:
            InvalidWorkDir: there is one of that name, or it cannot be moved.
        """
        check_name(session)
        path = _made(parent) / session
        try:
            if path.is_symlink() or path.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            self.path.rename(path)
        except OSError as exc:
            message = f"{path} cannot be made: {exc.strerror}."
            raise InvalidWorkDir(message) from exc
        return Workspace(path.resolve())

    @classmethod
    def made(cls, path: Path) -> Workspace:
        """A directory of the caller's choice, made where it is missing; ``~`` is the user's home.

        Raises:
            InvalidWorkDir: it cannot be made.
        """
        return cls(_made(path).resolve())

    @classmethod
    def at(cls, path: str | os.PathLike[str]) -> Workspace:
        """An existing directory of the caller's choice.

        Raises:
            InvalidWorkDir: missing, empty, or not a directory.
        """
        _check_path(path)
        if not str(path):
            raise InvalidWorkDir("work_dir is empty: name a directory, or leave it out for one of the session's own.")
        return cls(_existing(Path(path), str(path)))

    def directory(self, work_dir: str | os.PathLike[str]) -> str:
        """The directory that ``work_dir`` names for a command: relative to the workspace, in it or in what is beside.

        Raises:
            InvalidWorkDir: missing, not a directory, or outside once links are resolved; or the workspace itself is gone.
        """
        _check_path(work_dir)
        if not self.path.exists():
            raise InvalidWorkDir(gone(self.path))
        try:
            found = _existing(self.path / work_dir, str(work_dir))
        except InvalidWorkDir:
            found = Path(os.path.normpath(self.path / work_dir))  # it may be there where only kernels see it
            if self._holds(found):
                raise
        if not self._holds(found):
            also = f" and the context paths {', '.join(map(str, self.beside))}" if self.beside else ""
            message = (
                f"work_dir {str(work_dir)!r} is outside of the workspace {self.path}{also}: give a directory inside of"
                f" {'one of them' if also else 'it'}."
            )
            raise InvalidWorkDir(message)
        return str(found)

    def _holds(self, path: Path) -> bool:
        return any(path.is_relative_to(one) for one in (self.path, *self.beside))


def gone(path: str | os.PathLike[str]) -> str:
    """What to say of a workspace that somebody removed. It is not made again unasked: what was in it is lost."""
    return f"The workspace {path} is gone: make that directory again to go on."


def give_to_owner(fd: int, directory: os.stat_result) -> None:
    """Give what root has made in somebody else's directory to its owner, who would not be able to change it."""
    if os.geteuid() == 0 and directory.st_uid:
        os.fchown(fd, directory.st_uid, directory.st_gid)


def check_allowed(path: str | os.PathLike[str], allowed: Sequence[Path]) -> None:
    """Refuse a directory that sessions may not work in, wherever its links lead; where none is ``allowed``, all are.

    Raises:
        InvalidWorkDir: it is not within them; the message names them.
    """
    _check_path(path)
    try:
        found, *within = (Path(os.path.realpath(Path(one).expanduser())) for one in (path, *allowed))
    except (OSError, RuntimeError, ValueError) as exc:
        message = f"work_dir {str(path)!r} cannot be followed to where it leads: {exc}."
        raise InvalidWorkDir(message) from exc
    if within and not any(found.is_relative_to(one) for one in within):
        message = f"work_dir {str(path)!r} is not within the allowed paths: {', '.join(map(str, within))}."
        raise InvalidWorkDir(message)


def _check_path(path: object) -> None:
    if not isinstance(path, str | os.PathLike):
        message = f"work_dir={path!r} is no path."
        raise InvalidWorkDir(message)
    if "\0" in str(path):
        message = "work_dir holds a NUL character."
        raise InvalidWorkDir(message)


def check_name(session: str) -> None:
    """Refuse a session's name that is no plain file name.

    Raises:
        InvalidRequest: see there.
    """
    if not isinstance(session, str) or not _NAME.fullmatch(session):
        message = f"session name {session!r}: 1 to 64 letters, digits, dots, dashes and underscores, a letter or digit first."
        raise InvalidRequest(message)


def _made(path: Path) -> Path:
    try:
        path = path.expanduser().absolute()
        path.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        message = f"{path} cannot be made: {exc.strerror}."
        raise InvalidWorkDir(message) from exc
    return path


def _existing(path: Path, said: str) -> Path:
    try:
        found = path.resolve(strict=True)
    except PermissionError as exc:
        message = f"work_dir {said!r} cannot be reached: {exc.strerror}."
        raise InvalidWorkDir(message) from exc
    except (OSError, RuntimeError, ValueError) as exc:
        message = f"work_dir {said!r} does not exist: create it first."
        raise InvalidWorkDir(message) from exc
    if not found.is_dir():
        message = f"work_dir {said!r} is not a directory."
        raise InvalidWorkDir(message)
    return found
