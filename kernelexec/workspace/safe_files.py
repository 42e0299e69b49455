"""Files in directories that a kernel can write in: read within a bound, replaced as a whole, and no link is followed."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path

from kernelexec.workspace.directory import give_to_owner
from kernelexec.workspace.rmtree import DIRECTORY, open_directory_chain

_BUFFER_BYTES = 256 * 1024
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_TOP = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def open_regular(path: str | Path, *, dir_fd: int | None = None) -> int:
    """Open a regular file for reading; the caller closes it.

    Raises:
        OSError: the file is missing, a link, or not a regular file.
    """
    fd = os.open(path, _READ, dir_fd=dir_fd)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    message = f"{path} is no plain file"
    raise OSError(message)


def read_regular(path: str | Path, limit_bytes: int, *, dir_fd: int | None = None, tail: bool = False) -> bytes:
    """Return the first bytes of a regular file, or with ``tail`` the last ones.

    Raises:
        OSError: the file is missing, a link, or not a regular file.
    """
    with os.fdopen(open_regular(path, dir_fd=dir_fd), "rb") as file:
        if tail:
            file.seek(max(0, os.fstat(file.fileno()).st_size - limit_bytes))
        return file.read(limit_bytes)


def replace_file(
    path: str | Path,
    content: bytes | Iterable[bytes],
    *,
    mode: int | None = None,
    dir_fd: int | None = None,
    temporary: str = "",
) -> None:
    """Replace a file as a whole: readers see the old or the new content. A link in its place is replaced, not followed.

    The file belongs to the owner of its directory; its ``mode`` is by default 0o644 less the umask. Until it is complete it
    is called ``temporary``, and a leftover of that name is removed; without a name, each call chooses one.

    Raises:
        OSError: the file cannot be written; the old one is unchanged.
    """
    path = Path(path)
    unfinished = path.with_name(temporary or f".{path.name}.{secrets.token_hex(8)}.tmp")
    if temporary:
        with suppress(FileNotFoundError):
            os.unlink(unfinished, dir_fd=dir_fd)
    create_file(unfinished, content, mode=mode, dir_fd=dir_fd)
    try:
        os.rename(unfinished, path, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    except BaseException:
        with suppress(OSError):
            os.unlink(unfinished, dir_fd=dir_fd)
        raise


def create_file(path: Path, content: bytes | Iterable[bytes], *, mode: int | None = None, dir_fd: int | None = None) -> None:
    """Create a file that belongs to the owner of its directory; a file that cannot be filled is removed again.

    Its ``mode`` is by default 0o644 less the umask.

    Raises:
        FileExistsError: there is a file or a link of that name.
        OSError: the file cannot be written.
    """
    fd = os.open(path, _CREATE, 0o644 if mode is None else mode, dir_fd=dir_fd)
    try:
        with os.fdopen(fd, "wb", buffering=_BUFFER_BYTES) as file:
            give_to_owner(fd, os.stat(path.parent, dir_fd=dir_fd))
            if mode is not None:
                os.fchmod(fd, mode)
            file.writelines([content] if isinstance(content, bytes) else content)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(path, dir_fd=dir_fd)
        raise


def replace_beneath(top: Path, relative: Path, content: bytes) -> None:
    """Replace a file below ``top`` as a whole; missing directories on the way are created.

    Raises:
        OSError: the file cannot be written, or a part of the way is a link or not a directory.
    """
    with ExitStack() as opened:
        first = os.open(top, DIRECTORY)
        replace_file(relative.name, content, dir_fd=open_directory_chain(first, relative.parent, opened, owner=os.fstat(first)))


def copy_between(source: Path, target: Path, relative: Path, names: Iterable[str]) -> None:
    """Copy regular files of a directory in one workspace into the same directory of another; no link is followed in either.

    Files that are missing, not regular, or there already are left out.

    Raises:
        OSError: the directory is missing in the source, or cannot be written in the target.
    """
    with ExitStack() as opened:
        source_fd = open_directory_chain(os.open(source, _TOP), relative, opened)
        first = os.open(target, _TOP)
        target_fd = open_directory_chain(first, relative, opened, owner=os.fstat(first))
        for name in names:
            with suppress(OSError), os.fdopen(open_regular(name, dir_fd=source_fd), "rb") as file:
                fd = os.open(name, _CREATE, 0o644, dir_fd=target_fd)
                with os.fdopen(fd, "wb") as copy:
                    give_to_owner(fd, os.fstat(target_fd))
                    shutil.copyfileobj(file, copy)


def has_content(path: Path, content: bytes) -> bool:
    """Return whether a regular file has exactly that content."""
    try:
        return read_regular(path, len(content) + 1) == content
    except OSError:
        return False
