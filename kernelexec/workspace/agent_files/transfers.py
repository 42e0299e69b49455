"""Copies of whole files and directories between this machine and the files of kernels, in pieces, up to a bound."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO

from kernelexec.cancellation import CallerCalls
from kernelexec.errors import FileRefused, InvalidPath, InvalidRequest
from kernelexec.results import FilesCopied, NotCopied
from kernelexec.results.one_line import format_bytes
from kernelexec.workspace.agent_files.access import (
    Access,
    WalkEntry,
    WalkResult,
    WorkspacePath,
    check_plain,
    kind_of,
    short,
    walk,
)
from kernelexec.workspace.agent_files.tracking import ReadTracker
from kernelexec.workspace.safe_files import (
    DIRECTORY,
    closing_fd,
    open_directory_chain,
    replace_beneath,
    replace_file,
    short_temporary_name,
)
from kernelexec.workspace.system_calls import open_beneath

#: The most bytes of an upload or download.
TRANSFER_BYTES = 16 * 1024 * 1024 * 1024
_PIECE_BYTES = 2**20
_FOLLOWED = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_LINK, _OTHER = "it is a symbolic link, and none is followed", "it is not a regular file"


class FileTransfers:
    """Copies between the caller's files and files beneath the roots of a session. For a thread.

    No link is followed beneath the roots or in the caller's directories. Executable files stay executable.

    Args:
        access: opens the files of the session.
        tracker: records the files read or created by the caller.
        calls: makes the calls of open files. ``calls.check`` is called before each piece: its exception ends the copy, and the
            unfinished file is removed.

    Raises, in each operation:
        InvalidPath, InvalidWorkDir: a path is malformed, missing, or outside of all roots; or a root is missing.
        InvalidRequest: too many entries or bytes, or the caller's file cannot be read or written; copied files stay.
        FileRefused: the session's file must not or cannot be opened or changed.
    """

    def __init__(self, access: Access, tracker: ReadTracker, calls: CallerCalls) -> None:
        self._access = access
        self._tracker = tracker
        self._calls = calls

    def exists(self, path: str | os.PathLike[str]) -> bool:
        """Return whether a path exists. A link counts as an entry, whatever the target."""
        spot = self._access.spot(path)
        try:
            return self._access.look(spot) is not None
        except InvalidPath as exc:
            if isinstance(exc.__cause__, FileNotFoundError | NotADirectoryError):
                return False
            raise

    def upload(self, source: str | os.PathLike[str] | BinaryIO, path: str | os.PathLike[str] | None = None) -> FilesCopied:
        """Copy a file or a directory of the caller, or the rest of an open binary file, to a path of the session."""
        if not isinstance(source, str | os.PathLike):
            _check_binary(source, "read")
            if path is None:
                raise InvalidRequest("upload needs a path for the content of an open file.")
            spot = self._access.spot(path)
            size = self._replace(spot, self._read_stream(source), mode=None)
            return FilesCopied(spot.shown, (spot.shown,), size)
        local = _local_path(source)
        with _readable(local), closing_fd(os.open(local, _FOLLOWED)) as fd:
            name, seen = local.name or local.resolve().name, os.fstat(fd)
            if stat.S_ISDIR(seen.st_mode):
                return self._upload_directory(fd, local, self._access.spot(_join(path, name)))
            if not stat.S_ISREG(seen.st_mode):
                raise InvalidRequest(f"{short(str(local))} is not a regular file: pass it as an open binary file.")
            _check_size(str(local), seen.st_size)
            spot = self._access.spot(_join(path, name, into=path is not None and self._is_directory(path)))
            size = self._replace(spot, self._read(fd, seen.st_size), mode=_mode(seen))
        return FilesCopied(spot.shown, (spot.shown,), size)

    def download(self, path: str | os.PathLike[str], target: str | os.PathLike[str] | BinaryIO | None = None) -> FilesCopied:
        """Copy a file or directory of the session to a path of the caller, or a file into an open binary file."""
        spot = self._access.spot(path)
        seen = self._access.look(spot)
        is_directory = seen is not None and kind_of(seen) == "directory"
        if target is not None and not isinstance(target, str | os.PathLike):
            _check_binary(target, "write")
            return self._download_into(spot, target)
        local = _local_path(_join(target, spot.name)).absolute()
        if is_directory:
            return self._download_directory(spot, local)
        with _writable(local):
            if local.is_dir():
                local /= spot.name
            if local.exists() and not local.is_file():
                raise InvalidRequest(f"{short(str(local))} is not a regular file: pass it as an open binary file.")
            local.parent.mkdir(parents=True, exist_ok=True)
            size = self._save(spot, local.parent.resolve(), Path(local.name), whole=spot)
        return FilesCopied(str(local), (str(local),), size)

    def _upload_directory(self, top: int, local: Path, spot: WorkspacePath) -> FilesCopied:
        """Copy an open directory of the caller. Files are opened beneath the directory, since a cell may work there."""
        walked = walk(top, enters=lambda _: True, across=True)
        _check_count(str(local), walked)
        for parts, exc in walked.unreadable:
            raise InvalidRequest(f"{short(str(local.joinpath(*parts)))} cannot be read: {exc.strerror or exc}.") from exc
        _check_size(str(local), sum(entry.seen.st_size for entry in walked.entries if entry.kind == "file"))
        files, refused, size = list[str](), list[NotCopied](), 0
        with self._access.changing(spot / "_", make=True):
            pass  # the directory exists now
        for entry in walked.entries:
            path, copy = local.joinpath(*entry.parts), self._access.spot_at(spot.path.joinpath(*entry.parts))
            if entry.kind == "directory":
                with self._access.changing(copy / "_", make=True):
                    continue
            try:
                fd = _open_file(top, entry)
            except OSError as exc:
                refused.append(NotCopied(str(path), f"it cannot be read: {exc.strerror}" if exc.errno else str(exc)))
                continue
            with closing_fd(fd):
                size += self._replace(copy, self._read(fd, entry.seen.st_size), mode=_mode(entry.seen))
            files.append(copy.shown)
        return FilesCopied(spot.shown, tuple(files), size, tuple(refused))

    def _download_directory(self, spot: WorkspacePath, local: Path) -> FilesCopied:
        with self._access.directory(spot) as fd:
            walked = walk(fd, enters=lambda _: True)
        _check_count(spot.shown, walked)
        _check_size(spot.shown, sum(entry.seen.st_size for entry in walked.entries if entry.kind == "file"))
        refused = [
            NotCopied((spot / "/".join(parts)).shown, f"it cannot be listed: {exc.strerror}")
            for parts, exc in walked.unreadable
        ]
        files, size = [], 0
        # Links are followed up to the caller's own directory, and none below it.
        with _writable(local):
            local.mkdir(parents=True, exist_ok=True)
            local = local.resolve()
        for entry in walked.entries:
            relative = Path(*entry.parts)
            if entry.kind == "directory":
                with _writable(local / relative), ExitStack() as opened:
                    top = os.open(local, DIRECTORY)
                    open_directory_chain(top, relative, opened, owner=os.fstat(top))
                continue
            try:
                source = self._access.spot_at(spot.path.joinpath(*entry.parts))
                size += self._save(source, local, relative, whole=spot, before=size)
            except (FileRefused, InvalidPath) as exc:
                refused.append(NotCopied((spot / "/".join(entry.parts)).shown, str(exc)))
            else:
                files.append(str(local / relative))
        return FilesCopied(str(local), tuple(files), size, tuple(refused))

    def _download_into(self, spot: WorkspacePath, target: BinaryIO) -> FilesCopied:
        name, size = str(getattr(target, "name", "the open file")), 0
        with self._access.file(spot) as (fd, seen):
            _check_size(spot.shown, seen.st_size)
            for piece in self._read(fd, seen.st_size):
                with _writable(Path(name)):
                    self._calls.call(partial(_write_whole, target, piece))
                size += len(piece)
        self._tracker.note([spot])
        return FilesCopied(name, (), size)

    def _save(self, spot: WorkspacePath, top: Path, relative: Path, *, whole: WorkspacePath, before: int = 0) -> int:
        """Copy a file of the session to a path below a directory of the caller; return the size.

        ``before`` is the number of copied bytes of the ``whole``, the file or the directory that is downloaded.
        """
        with self._access.file(spot) as (fd, seen):
            _check_size(whole.shown, before + seen.st_size)
            with _writable(top / relative):
                replace_beneath(top, relative, self._read(fd, seen.st_size), mode=_mode(seen))
                size = os.lstat(top / relative).st_size
        self._tracker.note([spot])
        return size

    def _replace(self, spot: WorkspacePath, pieces: Iterator[bytes], *, mode: int | None) -> int:
        """Replace a file of the session by pieces; return the size."""
        # A container has a single file as a mount, which would show the old file after a replacement.
        if spot.root.single:
            raise FileRefused(f"{spot.shown} is a single file that kernels share: change it with files.write.")
        with self._access.changing(spot, make=True) as target:
            if target.seen is not None:
                check_plain(target.seen, spot)
            replace_file(target.name, pieces, mode=mode, dir_fd=target.directory, temporary=short_temporary_name())
            size = os.stat(target.name, dir_fd=target.directory, follow_symlinks=False).st_size
        self._tracker.note([spot], created=target.seen is None)
        return size

    def _read(self, fd: int, size: int) -> Iterator[bytes]:
        """Yield the first ``size`` bytes of a file, which may grow or shrink meanwhile."""
        position = 0
        while position < size:
            self._calls.check()
            if not (piece := os.pread(fd, min(_PIECE_BYTES, size - position), position)):
                return
            yield piece
            position += len(piece)

    def _read_stream(self, source: BinaryIO) -> Iterator[bytes]:
        size = 0
        while piece := self._calls.call(partial(_read_piece, source)):
            self._calls.check()
            if not isinstance(piece, bytes | bytearray | memoryview):
                raise InvalidRequest("The open file must be in binary mode: open(path, 'rb').")
            size += len(piece)
            _check_size("the open file", size)
            yield bytes(piece)

    def _is_directory(self, path: str | os.PathLike[str]) -> bool:
        seen = self._access.look(self._access.spot(path)) if self.exists(path) else None
        return seen is not None and kind_of(seen) == "directory"


def _check_size(name: str, size: int) -> None:
    if size > TRANSFER_BYTES:
        raise InvalidRequest(f"{short(name)} has more than {format_bytes(TRANSFER_BYTES)}: copy parts of it.")


def _check_count(name: str, walked: WalkResult) -> None:
    if not walked.complete:
        raise InvalidRequest(f"{short(name)} has more than {len(walked.entries)} entries: copy parts of it, or an archive.")


def _open_file(top: int, entry: WalkEntry) -> int:
    """Open a regular file beneath a directory of the caller.

    Raises:
        OSError: the file cannot be opened, or is another file since the listing.
    """
    if entry.kind != "file":
        raise OSError(_LINK if entry.kind == "link" else _OTHER)
    fd = open_beneath(top, "/".join(entry.parts), _FOLLOWED, across=True)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(_OTHER)


def _local_path(path: str | os.PathLike[str]) -> Path:
    """Return a path of the caller.

    Raises:
        InvalidRequest: no file can have this path.
    """
    text = os.fspath(path)
    if not text.strip() or "\0" in text:
        raise InvalidRequest(f"{text!r:.100} is no path of a file or directory.")
    try:
        return Path(text).expanduser()
    except RuntimeError as exc:
        raise InvalidRequest(f"{short(text)}: {exc}.") from exc


def _read_piece(source: BinaryIO) -> bytes:
    with _readable(Path(str(getattr(source, "name", "the open file")))):
        return source.read(_PIECE_BYTES)


def _write_whole(target: BinaryIO, piece: bytes) -> None:
    """Write all bytes. A raw file may take fewer bytes in a call."""
    left = memoryview(piece)
    while left:
        count = target.write(left)
        left = left[count:] if isinstance(count, int) else left[len(left) :]


def _join(path: str | os.PathLike[str] | None, name: str, *, into: bool = False) -> str:
    """Return the path of a copy: ``path``, or ``name`` in the directory ``path`` if it ends in a slash or with ``into``.

    Without a path, return the name alone.
    """
    if path is None:
        return name
    text = os.fspath(path)
    return f"{text.rstrip('/') or '/'}/{name}" if into or text.endswith("/") else text


def _mode(seen: os.stat_result) -> int | None:
    return 0o755 if seen.st_mode & stat.S_IXUSR else None


def _check_binary(file: object, method: str) -> None:
    if not hasattr(file, method):
        raise InvalidRequest(f"{type(file).__name__} must be a path, or a binary file that is open to {method}.")
    if hasattr(file, "encoding"):
        raise InvalidRequest("The open file must be in binary mode: open(path, 'rb') or open(path, 'wb').")


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise InvalidRequest(f"{short(str(path))} cannot be read: {exc.strerror or exc}.") from exc


@contextmanager
def _writable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise InvalidRequest(f"{short(str(path))} cannot be written: {exc.strerror or exc}.") from exc
