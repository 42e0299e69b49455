"""Opening files when they are used: by descriptors beneath a root, so that no link leads out of it, whoever swaps names."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from kernelexec.errors import FileRefused, InvalidPath, InvalidWorkDir
from kernelexec.text import clean_text
from kernelexec.workspace.agent_files.paths import Root, Spot, explained, path_text, short, system_error
from kernelexec.workspace.directory import give_to_owner, gone
from kernelexec.workspace.openat2 import WAY, open_beneath

LISTED = os.O_RDONLY | os.O_DIRECTORY


@dataclass(frozen=True, slots=True)
class Target:
    """What is about to be changed: its name in an open directory, and what is there now."""

    directory: int
    name: str
    seen: os.stat_result | None


class Access:
    """Finds and opens files for one session. The first root is its workspace; of roots in each other the deeper one counts.

    A name is what the system takes it for: no other case, no other form of a character, no ``~`` and no variable.
    """

    def __init__(self, roots: Sequence[Root]) -> None:
        self.roots = tuple(roots)
        self._writable = {root.path: root.writable for root in roots}
        self._writable |= {path: False for root in roots for path in (*root.protected, *root.hidden)}
        self._rights: dict[tuple[int, int], bool] = {}
        self._rights = self.rights()

    def spot(self, path: object) -> Spot:
        """Where a path leads: relative to the workspace, or absolute in any root, as kernels see it or as it is here.

        Raises:
            InvalidPath: it is none, or leads elsewhere.
            FileRefused: it is hidden.
        """
        text = path_text(path)
        found = self.roots[0].path / text
        if text.startswith("/") and (seen := [root for root in self.roots if found.is_relative_to(root.inside)]):
            root = max(seen, key=lambda root: len(root.inside))
            found = root.path / found.relative_to(root.inside)
        if not any(root.has(found) for root in self.roots):
            message = f"{short(text)} is outside of what may be named: {', '.join(self.named())}."
            raise InvalidPath(message)
        return self.spot_at(found)

    def spot_at(self, path: Path) -> Spot:
        """The same of a path of this machine that is in a root.

        Raises:
            FileRefused: it is hidden there.
        """
        root = max((root for root in self.roots if root.has(path)), key=lambda root: len(root.path.parts))
        spot = Spot(root, path.relative_to(root.path).parts, self._shown(path, root))
        if any(path.is_relative_to(hidden) for hidden in root.hidden):
            message = f"{spot.shown} is hidden: people and programs keep secrets there, or it is another session's."
            raise FileRefused(message)
        return spot

    def named(self) -> Iterator[str]:
        """The roots, in words."""
        for root in self.roots:
            rights = "to read and write" if root.writable else "to read"
            yield f"{clean_text(root.inside)} ({'the workspace' if root is self.roots[0] else rights})"

    def holds_fixed(self, path: Path) -> bool:
        """Whether a directory is, or holds, what is to stay: a root, or what can only be read."""
        return any(fixed.is_relative_to(path) for fixed in self._writable)

    def rights(self) -> dict[tuple[int, int], bool]:
        """Whether what has rights of its own can be written, by device and inode: it keeps them under another name."""
        found = dict(self._rights)
        for path, writable in self._writable.items():
            with suppress(OSError):
                seen = path.lstat()
                found[seen.st_dev, seen.st_ino] = writable
        return found

    @contextmanager
    def file(self, spot: Spot) -> Iterator[tuple[int, os.stat_result]]:
        """Open a plain file that has no second name, to read it.

        Raises:
            InvalidPath, InvalidWorkDir: it is not there.
            FileRefused: it is anything else.
        """
        with self._root(spot) as top, explained(spot):
            fd = open_beneath(top, self._below(spot), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
            try:
                seen = os.fstat(fd)
                check_plain(seen, spot)
                yield fd, seen
            finally:
                os.close(fd)

    @contextmanager
    def directory(self, spot: Spot) -> Iterator[int]:
        """Open a directory to be listed; raises as ``file`` does."""
        with self._root(spot) as top, explained(spot):
            fd = open_beneath(top, self._below(spot), LISTED)
            try:
                yield fd
            finally:
                os.close(fd)

    def look(self, spot: Spot) -> os.stat_result | None:
        """What is there, a link being a link; None where nothing is.

        Raises:
            InvalidPath, InvalidWorkDir, FileRefused: the directory that it is in cannot be had.
        """
        with self._root(spot) as top, explained(spot):
            if not spot.parts and not spot.root.single:
                return os.fstat(top)
            fd = open_beneath(top, "/".join(spot.parts[:-1]) or ".", WAY)
            try:
                return _seen(spot.name, fd)
            finally:
                os.close(fd)

    @contextmanager
    def changing(self, spot: Spot, *, make: bool = False) -> Iterator[Target]:
        """Open the directory that something is to be changed in; with ``make`` directories that are missing are made.

        Raises:
            InvalidPath, InvalidWorkDir: it is not there.
            FileRefused: it can only be read, or is reached by a link.
        """
        self._check_writable(spot)
        with self._root(spot) as top, explained(spot):
            if not spot.parts and not spot.root.single:
                raise system_error(errno.EISDIR)
            fd = os.dup(top)
            try:
                rights = self.rights() if len(self._writable) > 1 else {}
                for part in spot.parts[:-1]:
                    if make and _seen(part, fd) is None:
                        _check_rights(fd, rights, spot)
                    fd = _entered(fd, part, make=make)
                _check_rights(fd, rights, spot)
                seen = _seen(spot.name, fd)
                if seen is not None and rights.get((seen.st_dev, seen.st_ino)) is False:
                    raise _only_read(spot)
                yield Target(fd, spot.name, seen)
            finally:
                os.close(fd)

    @contextmanager
    def _root(self, spot: Spot) -> Iterator[int]:
        """Open a root, over whatever file systems, but over no link; of one that is a file, the directory that it is in."""
        path = spot.root.path.parent if spot.root.single else spot.root.path
        top = os.open("/", WAY | os.O_CLOEXEC)
        try:
            fd = open_beneath(top, str(path).strip("/") or ".", WAY, across=True)
        except OSError as exc:
            raise InvalidWorkDir(gone(path)) from exc
        finally:
            os.close(top)
        try:
            yield fd
        finally:
            os.close(fd)

    def _below(self, spot: Spot) -> str:
        return spot.name if spot.root.single else "/".join(spot.parts) or "."

    def _check_writable(self, spot: Spot) -> None:
        above = [path for path in self._writable if spot.path.is_relative_to(path)]
        if not self._writable[max(above, key=lambda path: len(path.parts))]:
            raise _only_read(spot)

    def _shown(self, path: Path, root: Root) -> str:
        workspace = self.roots[0].path
        if path.is_relative_to(workspace):
            return clean_text(str(path.relative_to(workspace)))
        return clean_text(str(Path(root.inside) / path.relative_to(root.path)))


def check_plain(seen: os.stat_result, spot: Spot) -> None:
    """Refuse what is no plain file, or has a second name.

    Raises:
        OSError: it is no plain file; see ``explained``.
        FileRefused: it has another name, which may be anywhere.
    """
    if stat.S_ISDIR(seen.st_mode):
        raise system_error(errno.EISDIR)
    if stat.S_ISLNK(seen.st_mode):
        raise system_error(errno.ELOOP)
    if not stat.S_ISREG(seen.st_mode):
        raise system_error(errno.ENXIO)
    if seen.st_nlink > 1:
        message = f"{spot.shown} is left alone: it is a hard link, whose other name may be anywhere. Copy it by a cell first."
        raise FileRefused(message)


def _only_read(spot: Spot) -> FileRefused:
    return FileRefused(f"{spot.shown} can only be read: it is protected, or given to be read.")


def _seen(name: str, directory: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _entered(above: int, part: str, *, make: bool) -> int:
    """A directory in an open one, which is closed, unless this fails."""
    made = False
    if make:
        with suppress(FileExistsError):
            os.mkdir(part, dir_fd=above)
            made = True
    fd = open_beneath(above, part, LISTED if made else WAY)
    if made:
        try:
            give_to_owner(fd, os.fstat(above))
        except BaseException:
            os.close(fd)
            raise
    os.close(above)
    return fd


def _check_rights(directory: int, rights: dict[tuple[int, int], bool], spot: Spot) -> None:
    """Refuse what is in a directory that can only be read, whatever that is called by now: the nearest one above counts."""
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
    message = f"{spot.shown} has been moved away: nothing was changed."
    raise InvalidPath(message)
