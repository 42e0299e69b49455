"""Files in reach of a kernel: read within a bound and replaced as a whole, beneath directories opened part by part.

Functions raise ``OSError`` for a missing file, a file that is not regular, and a link in its place or on the way.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from kernelexec.workspace.directory import OURS, give_to_owner, split_at_ours

#: Flags to open a directory, and never the target of a link.
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: `O_PATH`, or `O_RDONLY` on systems without it. Defined here, since this module is below the module of systems.
NAMED = getattr(os, "O_PATH", os.O_RDONLY)
_BUFFER_BYTES, _PIECE_BYTES = 256 * 1024, 2**20
#: Without ``O_NONBLOCK``, a FIFO in the place of a file would hold the caller until a program opens it to write.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
#: The name of an unfinished file of ``replace_file``, with the final name inside.
_UNFINISHED = re.compile(r"\.(.+)\.[0-9a-f]{16}\.tmp")


@contextmanager
def closing_fd(fd: int) -> Iterator[int]:
    """Yield an open file descriptor, and close it."""
    try:
        yield fd
    finally:
        os.close(fd)


def open_top(path: str | Path) -> int:
    """Open a workspace or another directory; the caller closes it. No link below our directory in a workspace is followed."""
    # ``opened`` closes the whole chain, hence the ``dup`` of the last directory.
    above, below = split_at_ours(Path(path))
    with ExitStack() as opened:
        return os.dup(open_directory_chain(os.open(above, DIRECTORY), below, opened))


@contextmanager
def _parent_of(path: str | Path, dir_fd: int | None) -> Iterator[tuple[Path, int | None]]:
    """Yield a file's path and the directory for relative paths, opened here for a file below our directory in a workspace."""
    path = Path(path)
    if dir_fd is not None or OURS not in path.parent.parts:
        yield path, dir_fd
    else:
        with closing_fd(open_top(path.parent)) as directory:
            yield Path(path.name), directory


def open_regular(path: str | Path, *, dir_fd: int | None = None) -> int:
    """Open a regular file for reading; the caller closes it."""
    with _parent_of(path, dir_fd) as (name, directory):
        fd = os.open(name, _READ, dir_fd=directory)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(f"{path} is no plain file")


def read_regular(path: str | Path, limit_bytes: int, *, dir_fd: int | None = None, tail: bool = False) -> bytes:
    """Return the first ``limit_bytes`` of a regular file, or with ``tail`` the last."""
    with os.fdopen(open_regular(path, dir_fd=dir_fd), "rb") as file:
        if tail:
            file.seek(max(0, os.fstat(file.fileno()).st_size - limit_bytes))
        return file.read(limit_bytes)


def replace_file(
    path: str | Path,
    content: bytes | Iterable[bytes | memoryview],
    *,
    mode: int | None = None,
    dir_fd: int | None = None,
    temporary: str = "",
) -> None:
    """Replace a file as a whole: readers see the old or the new content. A link in its place is replaced, not followed.

    The file belongs to the owner of the directory. The default ``mode`` is 0o644 less the umask. Until complete, the file has
    the name ``temporary``, and a leftover of the same name is removed. Without ``temporary`` each call chooses a new name.

    Raises:
        OSError: the file cannot be written; the old file is unchanged.
    """
    with _parent_of(path, dir_fd) as (final, directory):
        unfinished = final.with_name(temporary or f".{final.name}.{secrets.token_hex(8)}.tmp")
        if temporary:
            with suppress(FileNotFoundError):
                os.unlink(unfinished, dir_fd=directory)
        create_file(unfinished, content, mode=mode, dir_fd=directory)
        try:
            os.rename(unfinished, final, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            with suppress(OSError):
                os.unlink(unfinished, dir_fd=directory)
            raise


def final_name(name: str) -> str:
    """Return the final name of an unfinished file of ``replace_file``. Other names are unchanged."""
    unfinished = _UNFINISHED.fullmatch(name)
    return name if unfinished is None else unfinished[1]


def short_temporary_name() -> str:
    """Return a new name for an unfinished file, even if the final name has the greatest length of the system."""
    return f".{secrets.token_hex(8)}.tmp"


def create_file(
    path: Path, content: bytes | Iterable[bytes | memoryview], *, mode: int | None = None, dir_fd: int | None = None
) -> None:
    """Create a file that belongs to the owner of the directory. After an error the new file is removed.

    The default ``mode`` is 0o644 less the umask.

    Raises:
        FileExistsError: there is a file or a link with this name.
        OSError: the file cannot be written.
    """
    with _parent_of(path, dir_fd) as (name, directory):
        fd = os.open(name, _CREATE, 0o644 if mode is None else mode, dir_fd=directory)
        try:
            with os.fdopen(fd, "wb", buffering=_BUFFER_BYTES) as file:
                give_to_owner(fd, os.stat(name.parent, dir_fd=directory))
                if mode is not None:
                    os.fchmod(fd, mode)
                file.writelines([content] if isinstance(content, bytes) else content)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=directory)
            raise


def replace_beneath(
    top: Path, relative: Path, content: bytes | Iterable[bytes | memoryview], *, mode: int | None = None
) -> None:
    """Replace a file below ``top`` as a whole without following links. Missing directories on the way are created."""
    with ExitStack() as opened:
        first = open_top(top)
        directory = open_directory_chain(first, relative.parent, opened, owner=os.fstat(first))
        replace_file(relative.name, content, mode=mode, dir_fd=directory, temporary=short_temporary_name())


def create_beneath(top: Path, relative: Path) -> None:
    """Create a directory of mode 0o700 below ``top`` and missing directories on the way, without following links."""
    with ExitStack() as opened:
        first = open_top(top)
        os.fchmod(open_directory_chain(first, relative, opened, owner=os.fstat(first)), 0o700)


def copy_between(source: Path, target: Path, relative: Path, sizes: Mapping[str, int], *, limit_bytes: int) -> None:
    """Copy regular files of a directory in a workspace into the same directory of another, without following links.

    Left out are files that are missing, not regular, present in the target, larger than their size in ``sizes``, or larger
    than the rest of ``limit_bytes``, which is for all files together. Of a growing file only the first bytes are copied.
    """
    with ExitStack() as opened:
        source_fd = open_directory_chain(open_top(source), relative, opened)
        first = open_top(target)
        target_fd = open_directory_chain(first, relative, opened, owner=os.fstat(first))
        for name, most in sizes.items():
            with suppress(OSError), closing_fd(open_regular(name, dir_fd=source_fd)) as file:
                if (size := os.fstat(file).st_size) > min(most, limit_bytes):
                    continue
                with closing_fd(os.open(name, _CREATE, 0o644, dir_fd=target_fd)) as copy:
                    limit_bytes -= size
                    give_to_owner(copy, os.fstat(target_fd))
                    copy_content(file, copy, size)


def copy_content(source: int, target: int, size: int) -> None:
    """Copy the first ``size`` bytes of an open file, which may grow or shrink meanwhile."""
    left = size
    with suppress(OSError, AttributeError):  # between file systems, or on a system without the call
        while left and (count := os.copy_file_range(source, target, left)):
            left -= count
    while left and (piece := os.read(source, min(left, _PIECE_BYTES))):
        view = memoryview(piece)
        while view:
            view = view[os.write(target, view) :]
        left -= len(piece)


def has_content(path: Path, content: bytes) -> bool:
    """Return whether a regular file has exactly this content."""
    try:
        return read_regular(path, len(content) + 1) == content
    except OSError:
        return False


def open_directory_chain(top: int, relative: Path, opened: ExitStack, *, owner: os.stat_result | None = None) -> int:
    """Open a directory below an open directory, part by part. ``opened`` closes all of them, ``top`` included.

    With an ``owner``, missing directories on the way are created for this owner.
    """
    opened.callback(os.close, top)
    for part in relative.parts:
        is_new = False
        if owner is not None:
            with suppress(FileExistsError):
                os.mkdir(part, dir_fd=top)
                is_new = True
        top = os.open(part, DIRECTORY, dir_fd=top)
        opened.callback(os.close, top)
        if owner is not None and is_new:
            give_to_owner(top, owner)
    return top
