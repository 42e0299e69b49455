"""Paths of agents, and files and directories opened by descriptors beneath a root, so no link leads out of the root.

A kernel may change directories during a walk: no link is followed, and the number of entries is bounded. Errors of the system
become ours.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kernelexec.errors import FileRefused, InvalidPath, InvalidWorkDir
from kernelexec.text import clean_text
from kernelexec.workspace.directory import give_to_owner, missing_workspace_message
from kernelexec.workspace.safe_files import closing_fd
from kernelexec.workspace.system_calls import WAY, open_beneath

if TYPE_CHECKING:
    from kernelexec.results import FileKind

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
#: Flags for a directory that is listed.
LISTED = os.O_RDONLY | os.O_DIRECTORY
#: The most entries of directories that a call examines.
ENTRIES_MAX = 10_000
#: The greatest depth of directories. Each entry holds the whole path, so deeper entries would cost much memory and time.
DEPTH_MAX = 200


@dataclass(frozen=True, slots=True)
class FileRoot:
    """A directory or a single file in reach of an agent.

    ``path`` is absolute with all links resolved. ``inside`` is the path in kernels.
    """

    path: Path
    inside: str
    writable: bool = True
    protected: tuple[Path, ...] = ()
    """Read-only paths inside."""
    single: bool = False
    """Whether the root is a file."""
    hidden: tuple[Path, ...] = ()
    """Refused paths inside, which kernels cannot read either."""

    def has(self, path: Path) -> bool:
        """Return whether a path is beneath the root, by text alone."""
        return path == self.path or (not self.single and path.is_relative_to(self.path))


@dataclass(frozen=True, slots=True)
class WorkspacePath:
    """A path as parts beneath a root, by text alone. Nothing is opened yet."""

    root: FileRoot
    parts: tuple[str, ...]
    shown: str
    """The path for answers and messages: relative to the workspace, or absolute as in kernels."""

    @property
    def path(self) -> Path:
        """The path on this machine."""
        return self.root.path.joinpath(*self.parts)

    @property
    def name(self) -> str:
        """The last part."""
        return self.parts[-1] if self.parts else self.root.path.name

    def __truediv__(self, part: str) -> WorkspacePath:
        """Return the path of the entry ``part`` in this directory."""
        text = clean_text(part)
        return WorkspacePath(self.root, (*self.parts, part), text if self.shown == "." else f"{self.shown}/{text}")


def path_text(path: object) -> str:
    """Return a path as text, in a form that the system accepts.

    Raises:
        InvalidPath: the system would refuse the path, or the path contains ``..`` or begins with ``~``.
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
    """Return the caller's text of a path, cut for a message."""
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


@dataclass(frozen=True, slots=True)
class Target:
    """A file before a change: the name in an open directory, and the present state, None if the file is missing."""

    directory: int
    name: str
    seen: os.stat_result | None


class Access:
    """The access of a session to files. The first root is the workspace. Of nested roots the deeper counts.

    Names are exact: no other case, no other form of a character, no ``~`` and no variables.

    Raises, in each call:
        InvalidPath: the path is malformed, missing, or outside of all roots.
        InvalidWorkDir: the root is missing.
        FileRefused: the path is hidden, is or leads over a link, is not regular, has a second name, or can only be read.
    """

    def __init__(self, roots: Sequence[FileRoot]) -> None:
        self.roots = tuple(roots)
        self._writable = {root.path: root.writable for root in roots}
        self._writable |= {path: False for root in roots for path in (*root.protected, *root.hidden)}
        # Kept for the whole session: a path with rights of its own that a kernel moves away keeps them.
        self._rights: dict[tuple[int, int], bool] = {}
        self._rights = self.rights()

    def spot(self, path: object) -> WorkspacePath:
        """Resolve a path: relative to the workspace, or absolute in any root, as in kernels or as on this machine."""
        text = path_text(path)
        absolute = self.roots[0].path / text
        if text.startswith("/") and (seen := [root for root in self.roots if absolute.is_relative_to(root.inside)]):
            root = max(seen, key=lambda root: len(root.inside))
            absolute = root.path / absolute.relative_to(root.inside)
        if not any(root.has(absolute) for root in self.roots):
            raise InvalidPath(f"{short(text)} is outside of the allowed paths: {', '.join(self.describe_roots())}.")
        return self.spot_at(absolute)

    def spot_at(self, path: Path) -> WorkspacePath:
        """Resolve a path of this machine inside of a root."""
        root = max((root for root in self.roots if root.has(path)), key=lambda root: len(root.path.parts))
        spot = WorkspacePath(root, path.relative_to(root.path).parts, self._display_path(path, root))
        if any(path.is_relative_to(hidden) for hidden in root.hidden):
            raise FileRefused(f"{spot.shown} is hidden: people and programs keep secrets there, or it is another session's.")
        return spot

    def describe_roots(self) -> Iterator[str]:
        """Yield the roots as text for a message."""
        for root in self.roots:
            rights = "to read and write" if root.writable else "to read"
            yield f"{clean_text(root.inside)} ({'the workspace' if root is self.roots[0] else rights})"

    def contains_root(self, path: Path) -> bool:
        """Return whether a directory is or contains a root, a read-only path or a hidden path."""
        return any(fixed.is_relative_to(path) for fixed in self._writable)

    def rights(self) -> dict[tuple[int, int], bool]:
        """Return whether the paths with separate rights are writable, by device and inode, since a kernel can rename them."""
        rights = dict(self._rights)
        for path, writable in self._writable.items():
            with suppress(OSError):
                seen = path.lstat()
                rights[seen.st_dev, seen.st_ino] = writable
        return rights

    @contextmanager
    def file(self, spot: WorkspacePath) -> Iterator[tuple[int, os.stat_result]]:
        """Open a regular file with a single name for reading."""
        # O_NONBLOCK: a FIFO in the place of the file must not hold this thread.
        with self._open(spot, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY) as fd:
            seen = os.fstat(fd)
            check_plain(seen, spot)
            yield fd, seen

    def directory(self, spot: WorkspacePath) -> AbstractContextManager[int]:
        """Open a directory for listing."""
        return self._open(spot, LISTED)

    def look(self, spot: WorkspacePath) -> os.stat_result | None:
        """Return the state of a file without following links, or None if the file is missing."""
        with self._root(spot) as top, os_errors_as_ours(spot):
            if not spot.parts and not spot.root.single:
                return os.fstat(top)
            with closing_fd(open_beneath(top, "/".join(spot.parts[:-1]) or ".", WAY)) as fd:
                return _lstat(spot.name, fd)

    @contextmanager
    def changing(self, spot: WorkspacePath, *, make: bool = False) -> Iterator[Target]:
        """Open the directory of a file before a change. With ``make`` missing directories are created."""
        self._check_writable(spot)
        with self._root(spot) as top, os_errors_as_ours(spot):
            if not spot.parts and not spot.root.single:
                raise system_error(errno.EISDIR)
            fd = os.dup(top)
            try:
                rights = self.rights() if len(self._writable) > 1 else {}
                # Rights are checked before a directory is created, and again at the end: a kernel may move directories.
                for part in spot.parts[:-1]:
                    if make and _lstat(part, fd) is None:
                        _check_rights(fd, rights, spot)
                    fd = _enter(fd, part, make=make)
                _check_rights(fd, rights, spot)
                seen = _lstat(spot.name, fd)
                if seen is not None and rights.get((seen.st_dev, seen.st_ino)) is False:
                    raise _only_read(spot)
                yield Target(fd, spot.name, seen)
            finally:
                os.close(fd)

    @contextmanager
    def _open(self, spot: WorkspacePath, flags: int) -> Iterator[int]:
        below = spot.name if spot.root.single else "/".join(spot.parts) or "."
        with self._root(spot) as top, os_errors_as_ours(spot), closing_fd(open_beneath(top, below, flags)) as fd:
            yield fd

    def _root(self, spot: WorkspacePath) -> AbstractContextManager[int]:
        """Open a root across file systems but without links. For a single file, open the directory above."""
        path = spot.root.path.parent if spot.root.single else spot.root.path
        with closing_fd(os.open("/", WAY | os.O_CLOEXEC)) as top:
            try:
                return closing_fd(open_beneath(top, str(path).strip("/") or ".", WAY, across=True))
            except OSError as exc:
                raise InvalidWorkDir(missing_workspace_message(path)) from exc

    def _check_writable(self, spot: WorkspacePath) -> None:
        above = [path for path in self._writable if spot.path.is_relative_to(path)]
        if not self._writable[max(above, key=lambda path: len(path.parts))]:
            raise _only_read(spot)

    def _display_path(self, path: Path, root: FileRoot) -> str:
        workspace = self.roots[0].path
        if path.is_relative_to(workspace):
            return clean_text(str(path.relative_to(workspace)))
        return clean_text(str(Path(root.inside) / path.relative_to(root.path)))


def check_plain(seen: os.stat_result, spot: WorkspacePath) -> None:
    """Refuse a file that is not regular or has a second name.

    Raises:
        OSError: the file is not regular; see ``os_errors_as_ours``.
        FileRefused: the file has a second name, which may be anywhere.
    """
    if not stat.S_ISREG(seen.st_mode):
        raise system_error({stat.S_IFDIR: errno.EISDIR, stat.S_IFLNK: errno.ELOOP}.get(stat.S_IFMT(seen.st_mode), errno.ENXIO))
    if seen.st_nlink > 1:
        message = f"{spot.shown} is left alone: it is a hard link, whose other name may be anywhere. Copy it in a cell first."
        raise FileRefused(message)


def _only_read(spot: WorkspacePath) -> FileRefused:
    return FileRefused(f"{spot.shown} can only be read: it is protected, or a read-only context path.")


def _lstat(name: str, directory: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _enter(above: int, part: str, *, make: bool) -> int:
    """Open a directory in the open directory ``above``, and close ``above``, which stays open after an error."""
    is_new = False
    if make:
        with suppress(FileExistsError):
            os.mkdir(part, dir_fd=above)
            is_new = True
    fd = open_beneath(above, part, LISTED if is_new else WAY)
    if is_new:
        try:
            give_to_owner(fd, os.fstat(above))
        except BaseException:
            os.close(fd)
            raise
    os.close(above)
    return fd


def _check_rights(directory: int, rights: dict[tuple[int, int], bool], spot: WorkspacePath) -> None:
    """Refuse files in a read-only directory, whatever the present name. The nearest directory with rights counts.

    Raises:
        FileRefused: the directory is read-only.
        InvalidPath: the directory is no longer beneath a path with rights.
    """
    if not rights or spot.root.single:
        return
    end, here = Path("/").stat(), os.dup(directory)
    try:
        while (seen := os.fstat(here)) and not os.path.samestat(seen, end):
            writable = rights.get((seen.st_dev, seen.st_ino))
            if writable is False:
                raise _only_read(spot)
            if writable:
                return
            # From the open directory upward: a path could be another directory's by now.
            above = os.open("..", WAY | os.O_CLOEXEC, dir_fd=here)
            os.close(here)
            here = above
    finally:
        os.close(here)
    raise InvalidPath(f"{spot.shown} has been moved away: nothing was changed.")


@dataclass(frozen=True, slots=True)
class WalkEntry:
    """An entry: the parts beneath the top directory, and the state at the time of the listing."""

    parts: tuple[str, ...]
    seen: os.stat_result

    @property
    def kind(self) -> FileKind:
        """The kind of the entry. Links are not followed."""
        return kind_of(self.seen)


@dataclass(slots=True)
class WalkResult:
    """The entries, sorted by path."""

    entries: list[WalkEntry] = field(default_factory=list)
    unreadable: list[tuple[tuple[str, ...], OSError]] = field(default_factory=list)
    """Directories that cannot be listed or are nested too deep."""
    complete: bool = True
    """Whether all other entries are in the list."""


def walk(top: int, limit: int | None = None, *, enters: Callable[[WalkEntry], bool], across: bool = False) -> WalkResult:
    """List an open directory, and inner directories for which ``enters`` is true.

    The list ends after ``limit`` entries, ``ENTRIES_MAX`` by default. Directories deeper than ``DEPTH_MAX`` are not listed.
    With ``across`` directories of other file systems are listed too.

    Raises:
        OSError: the directory cannot be listed.
    """
    done, left = WalkResult(), ENTRIES_MAX if limit is None else limit
    pending: list[tuple[str, ...]] = [()]
    while pending:
        parts = pending.pop()
        try:
            if len(parts) > DEPTH_MAX:
                raise OSError(errno.ENAMETOOLONG, f"it is nested in more than {DEPTH_MAX} directories")  # noqa: TRY301
            entries = _entries(top, parts, left + 1, across=across)
        except OSError as exc:
            if not parts:
                raise
            done.unreadable.append((parts, exc))
            continue
        if len(entries) > left:
            done.complete = False
            entries, pending = entries[:left], []
        left -= len(entries)
        done.entries.extend(entries)
        pending.extend(entry.parts for entry in entries if entry.kind == "directory" and done.complete and enters(entry))
    done.entries.sort(key=lambda entry: entry.parts)
    done.unreadable.sort(key=lambda entry: entry[0])
    return done


def _entries(top: int, parts: tuple[str, ...], limit: int, *, across: bool) -> list[WalkEntry]:
    """List the first entries of a directory, opened again beneath the top, since a kernel may have replaced the directory."""
    entries: list[WalkEntry] = []
    with closing_fd(open_beneath(top, "/".join(parts) or ".", LISTED, across=across)) as fd, os.scandir(fd) as listing:
        for entry in listing:
            if len(entries) == limit:
                break
            with suppress(FileNotFoundError):
                entries.append(WalkEntry((*parts, entry.name), entry.stat(follow_symlinks=False)))
    return entries


def kind_of(seen: os.stat_result) -> FileKind:
    """Return the kind of a file from the state."""
    if stat.S_ISDIR(seen.st_mode):
        return "directory"
    return "file" if stat.S_ISREG(seen.st_mode) else "link" if stat.S_ISLNK(seen.st_mode) else "other"
