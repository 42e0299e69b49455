"""Files that are opened when they are used, by descriptors beneath a root, so that no link leads out of it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from kernelexec.errors import FileRefused, InvalidPath, InvalidWorkDir
from kernelexec.text import clean_text
from kernelexec.workspace.agent_files.paths import FileRoot, WorkspacePath, os_errors_as_ours, path_text, short, system_error
from kernelexec.workspace.directory import give_to_owner, missing_workspace_message
from kernelexec.workspace.openat2 import WAY, open_beneath
from kernelexec.workspace.safe_files import closing_fd

#: Flags for a directory that is listed.
LISTED = os.O_RDONLY | os.O_DIRECTORY


@dataclass(frozen=True, slots=True)
class Target:
    """A file that is about to be changed: its name in an open directory, and its current state."""

    directory: int
    name: str
    seen: os.stat_result | None


class Access:
    """The access of one session to files. The first root is its workspace; of nested roots the deeper one counts.

    Names are used as they are: no other case, no other form of a character, no ``~`` and no variables.

    Raises, in each call:
        InvalidPath: the path is malformed, missing, or outside of all roots.
        InvalidWorkDir: the root is missing.
        FileRefused: the path is hidden, is or leads over a link, is not regular, has a second name, or can only be read.
    """

    def __init__(self, roots: Sequence[FileRoot]) -> None:
        self.roots = tuple(roots)
        self._writable = {root.path: root.writable for root in roots}
        self._writable |= {path: False for root in roots for path in (*root.protected, *root.hidden)}
        self._rights: dict[tuple[int, int], bool] = {}
        self._rights = self.rights()

    def spot(self, path: object) -> WorkspacePath:
        """Resolve a path: relative to the workspace, or absolute in any root, as kernels see it or as it is on this machine."""
        text = path_text(path)
        absolute = self.roots[0].path / text
        if text.startswith("/") and (seen := [root for root in self.roots if absolute.is_relative_to(root.inside)]):
            root = max(seen, key=lambda root: len(root.inside))
            absolute = root.path / absolute.relative_to(root.inside)
        if not any(root.has(absolute) for root in self.roots):
            raise InvalidPath(f"{short(text)} is outside of the allowed paths: {', '.join(self.describe_roots())}.")
        return self.spot_at(absolute)

    def spot_at(self, path: Path) -> WorkspacePath:
        """Resolve a path of this machine that is in a root."""
        root = max((root for root in self.roots if root.has(path)), key=lambda root: len(root.path.parts))
        spot = WorkspacePath(root, path.relative_to(root.path).parts, self._display_path(path, root))
        if any(path.is_relative_to(hidden) for hidden in root.hidden):
            raise FileRefused(f"{spot.shown} is hidden: people and programs keep secrets there, or it is another session's.")
        return spot

    def describe_roots(self) -> Iterator[str]:
        """Return the roots as text for a message."""
        for root in self.roots:
            rights = "to read and write" if root.writable else "to read"
            yield f"{clean_text(root.inside)} ({'the workspace' if root is self.roots[0] else rights})"

    def contains_root(self, path: Path) -> bool:
        """Return whether a directory is, or contains, a root or a read-only path."""
        return any(fixed.is_relative_to(path) for fixed in self._writable)

    def rights(self) -> dict[tuple[int, int], bool]:
        """Return which paths with rights of their own can be written, by device and inode: other names change nothing."""
        rights = dict(self._rights)
        for path, writable in self._writable.items():
            with suppress(OSError):
                seen = path.lstat()
                rights[seen.st_dev, seen.st_ino] = writable
        return rights

    @contextmanager
    def file(self, spot: WorkspacePath) -> Iterator[tuple[int, os.stat_result]]:
        """Open a regular file with one name for reading."""
        with self._open(spot, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY) as fd:
            seen = os.fstat(fd)
            check_plain(seen, spot)
            yield fd, seen

    def directory(self, spot: WorkspacePath) -> AbstractContextManager[int]:
        """Open a directory for listing."""
        return self._open(spot, LISTED)

    def look(self, spot: WorkspacePath) -> os.stat_result | None:
        """Return the state of a file, without following links; None if it is missing."""
        with self._root(spot) as top, os_errors_as_ours(spot):
            if not spot.parts and not spot.root.single:
                return os.fstat(top)
            with closing_fd(open_beneath(top, "/".join(spot.parts[:-1]) or ".", WAY)) as fd:
                return _lstat(spot.name, fd)

    @contextmanager
    def changing(self, spot: WorkspacePath, *, make: bool = False) -> Iterator[Target]:
        """Open the directory of a file that is to be changed; with ``make`` missing directories are created."""
        self._check_writable(spot)
        with self._root(spot) as top, os_errors_as_ours(spot):
            if not spot.parts and not spot.root.single:
                raise system_error(errno.EISDIR)
            fd = os.dup(top)
            try:
                rights = self.rights() if len(self._writable) > 1 else {}
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
        """Open a root across file systems, but over no link; of a root that is a file, its directory."""
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
        FileRefused: the file has another name, which may be anywhere.
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
    """Open a directory in an open one and close that; if it fails, the other stays open."""
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
    """Refuse files in a read-only directory, whatever its name is by now: the nearest directory with rights counts."""
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
            above = os.open("..", WAY | os.O_CLOEXEC, dir_fd=here)
            os.close(here)
            here = above
    finally:
        os.close(here)
    raise InvalidPath(f"{spot.shown} has been moved away: nothing was changed.")
