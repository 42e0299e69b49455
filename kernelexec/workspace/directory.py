"""The directory of a session, the directories for the start of commands, and session names with owners.

In ``alice.0f3k1q8mr2tc5v7b-default`` the session ``default`` has the owner ``alice``. The MCP server makes such names, since
each agent has separate sessions.
"""

from __future__ import annotations

import base64
import errno
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from kernelexec.errors import InvalidRequest, InvalidWorkDir
from kernelexec.launcher import protocol

#: The workspace of an executor that removes the directory at its end.
TEMPORARY = "temporary"
#: Our directory in a workspace, with copies and the workspaces of branches. A link below is the work of a kernel.
OURS = protocol.OURS
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
#: The characters of an owner's label for people, and of the digest (80 bits).
_LABEL_CHARS, _DIGEST_CHARS = 8, 16
#: The most characters of the name behind them.
OWNED_NAME_CHARS = 38
_OWNED = re.compile(rf"([A-Za-z0-9-]{{1,{_LABEL_CHARS}}})\.[0-9a-v]{{{_DIGEST_CHARS}}}-(?=.)")
_NO_LABEL = re.compile(r"[^A-Za-z0-9]+")


def new_temporary_workspace() -> Path:
    """Return a new path in the directory for temporary files. Nothing is created."""
    return Path(tempfile.gettempdir(), f"kernelexec-workspace-{secrets.token_hex(8)}")


@dataclass(frozen=True, slots=True)
class Workspace:
    """A session's directory, and the ``context_directories`` that kernels see too. All are absolute, with links resolved.

    Raises, in each method:
        InvalidWorkDir: a directory is missing, is no directory, is outside of the allowed directories, or cannot be created.
        InvalidRequest: the session's name is no plain file name.
    """

    path: Path
    context_directories: tuple[Path, ...] = ()

    @classmethod
    def create_for_session(cls, parent: Path, session: str) -> Workspace:
        """Return the session's own directory under ``parent``, and create missing directories. ``~`` is the user's home."""
        check_name(session)
        path = _create(parent / session)
        # ``mkdir`` accepts a link to a directory: such a link would give the session the directory of another.
        if path.is_symlink():
            raise InvalidWorkDir(f"{path} is a symbolic link: a session's directory is its own.")
        return cls(path.resolve())

    def move(self, parent: Path, session: str) -> Workspace:
        """Rename a directory from before the session had a name, to the session's own directory under ``parent``."""
        check_name(session)
        path = _create(parent) / session
        try:
            if path.is_symlink() or path.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            self.path.rename(path)
        except OSError as exc:
            raise InvalidWorkDir(f"{path} cannot be made: {exc.strerror}.") from exc
        return Workspace(path.resolve())

    @classmethod
    def create(cls, path: Path) -> Workspace:
        """Return a directory of the caller's choice, and create missing directories. ``~`` is the user's home."""
        return cls(_create(path).resolve())

    @classmethod
    def at(cls, path: str | os.PathLike[str]) -> Workspace:
        """Return an existing directory of the caller's choice."""
        _check_path(path)
        if not str(path):
            raise InvalidWorkDir("work_dir is empty: name a directory, or leave it out for one of the session's own.")
        directory = _existing(Path(path), str(path))
        if directory != _unlinked(Path(path)):
            raise InvalidWorkDir(_moved_workspace_message(path))
        return cls(directory)

    def directory(self, work_dir: str | os.PathLike[str]) -> str:
        """Return the directory ``work_dir`` for a command: relative to the workspace, inside of it or of a context path."""
        _check_path(work_dir)
        if not self.path.exists():
            raise InvalidWorkDir(missing_workspace_message(self.path))
        try:
            directory = _existing(self.path / work_dir, str(work_dir))
        except InvalidWorkDir:
            directory = Path(os.path.normpath(self.path / work_dir))  # kernels may see a directory that this process does not
            if self._holds(directory):
                raise
        if not self._holds(directory):
            paths = ", ".join(map(str, self.context_directories))
            also = f" and the context paths {paths}" if paths else ""
            raise InvalidWorkDir(
                f"work_dir {str(work_dir)!r} is outside of the workspace {self.path}{also}: give a directory inside of"
                f" {'one of them' if also else 'it'}."
            )
        return str(directory)

    def _holds(self, path: Path) -> bool:
        return any(path.is_relative_to(root) for root in (self.path, *self.context_directories))


def missing_workspace_message(path: str | os.PathLike[str]) -> str:
    """Return the message for a removed workspace, which is not created again unasked, since its content is lost."""
    return f"The workspace {path} is gone: make that directory again to go on."


def split_at_ours(path: Path) -> tuple[Path, Path]:
    """Split a path before our directory in a workspace, where no link is followed. Other paths have an empty second part."""
    count_above = path.parts.index(OURS) if OURS in path.parts else len(path.parts)
    return Path(*path.parts[:count_above]), Path(*path.parts[count_above:])


def _unlinked(path: Path) -> Path:
    """Return the target of a path on the condition that there is no link below our directory in a workspace."""
    above, below = split_at_ours(path)
    return Path(os.path.normpath(Path(os.path.realpath(above), below)))


def _moved_workspace_message(path: str | os.PathLike[str]) -> str:
    return f"The workspace {path} was moved away, and a link below {OURS} is in its place: move it back to go on."


def explain_unusable_workspace(path: Path, uid: int | None) -> str | None:
    """Return the reason against starting a kernel in a workspace, or None. ``uid`` is a kernel's user other than the caller."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return missing_workspace_message(path)
    except OSError as exc:
        return f"No kernel can start in the workspace {path}: {exc.strerror}."
    if Path(os.path.realpath(path)) != _unlinked(path):
        return _moved_workspace_message(path)
    if not stat.S_ISDIR(status.st_mode):
        return f"No kernel can start in the workspace {path}: {os.strerror(errno.ENOTDIR)}."
    is_owners = uid is not None and status.st_uid == uid
    if (is_owners and not status.st_mode & stat.S_IXUSR) or (uid is None and not os.access(path, os.X_OK)):
        return f"No kernel can start in the workspace {path}: {os.strerror(errno.EACCES)}."
    return None


def give_to_owner(fd: int, directory: os.stat_result) -> None:
    """Give a file created by root in another user's directory to the owner of the directory."""
    if os.geteuid() == 0 and directory.st_uid:
        os.fchown(fd, directory.st_uid, directory.st_gid)


def check_allowed_path(path: str | os.PathLike[str], allowed: Sequence[Path]) -> None:
    """Refuse a directory outside of ``allowed`` directories, after resolving links. An empty ``allowed`` allows all.

    Raises:
        InvalidWorkDir: the directory is outside. The message names the allowed directories.
    """
    _check_path(path)
    try:
        resolved, *within = (Path(os.path.realpath(Path(each).expanduser())) for each in (path, *allowed))
    except (OSError, RuntimeError, ValueError) as exc:
        raise InvalidWorkDir(f"work_dir {str(path)!r} cannot be followed to where it leads: {exc}.") from exc
    if within and not any(resolved.is_relative_to(each) for each in within):
        raise InvalidWorkDir(f"work_dir {str(path)!r} is not within the allowed paths: {', '.join(map(str, within))}.")


def _check_path(path: object) -> None:
    if not isinstance(path, str | os.PathLike):
        raise InvalidWorkDir(f"work_dir={path!r} is no path.")
    if "\0" in str(path):
        raise InvalidWorkDir("work_dir holds a NUL character.")


def check_name(session: str) -> None:
    """Check that a session's name is a plain file name.

    Raises:
        InvalidRequest: the name is not allowed.
    """
    if not isinstance(session, str) or not _NAME.fullmatch(session):
        message = f"session name {session!r}: 1 to 64 letters, digits, dots, dashes and underscores, a letter or digit first."
        raise InvalidRequest(message)


def _create(path: Path) -> Path:
    try:
        path = path.expanduser().absolute()
        path.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise InvalidWorkDir(f"{path} cannot be made: {exc.strerror}.") from exc
    return path


def _existing(path: Path, text: str) -> Path:
    try:
        resolved = path.resolve(strict=True)
    except PermissionError as exc:
        raise InvalidWorkDir(f"work_dir {text!r} cannot be reached: {exc.strerror}.") from exc
    except (OSError, RuntimeError, ValueError) as exc:
        raise InvalidWorkDir(f"work_dir {text!r} does not exist: create it first.") from exc
    if not resolved.is_dir():
        raise InvalidWorkDir(f"work_dir {text!r} is not a directory.")
    return resolved


def numbered_paths(path: Path) -> Iterator[Path]:
    """Yield a path, then without end the same path with numbers from 2 on after the name."""
    yield path
    yield from (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in count(2))


def make_owner_prefix(title: str, digest: bytes) -> str:
    """Return the prefix of the names of an owner's sessions. The digest distinguishes owners with the same title."""
    label = _NO_LABEL.sub("-", title).strip("-")[:_LABEL_CHARS].strip("-")
    return f"{label or 'client'}.{base64.b32hexencode(digest).decode().lower()[:_DIGEST_CHARS]}-"


def has_owner(session: str) -> bool:
    """Return whether a name has an owner."""
    return _OWNED.match(session) is not None


def read_owner(session: str) -> str:
    """Return a session's name for people, such as ``alice/default``. A name without an owner is unchanged."""
    return _OWNED.sub(r"\1/", session, count=1) if has_owner(session) else session


def find_names(name: str, known: Iterable[str]) -> list[str]:
    """Return the sessions with a name: in full, as from ``read_owner``, or without the owner."""
    names = list(known)
    if name in names:
        return [name]
    return [each for each in names if has_owner(each) and name in (read_owner(each), read_owner(each).partition("/")[2])]
