"""Files of ours in a directory that a kernel can write in: no link is followed on the way to them either."""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import ExitStack, suppress
from pathlib import Path

from kernelexec.workspace.directory import give_to_owner
from kernelexec.workspace.rmtree import DIRECTORY, descend


def write_within(top: Path, relative: Path, content: bytes) -> None:
    """Replace a file below ``top`` as a whole; directories on the way to it are made where they are missing.

    Raises:
        OSError: it cannot be written, or something on the way is a link, or no directory.
    """
    with ExitStack() as opened:
        first = os.open(top, DIRECTORY)
        owner = os.fstat(first)
        _replace(descend(first, relative.parent, opened, owner=owner), relative.name, content, owner)


def _replace(directory: int, name: str, content: bytes, owner: os.stat_result) -> None:
    temporary = f".{name}.{secrets.token_hex(8)}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(temporary, flags, 0o644, dir_fd=directory)
    try:
        with os.fdopen(file, "wb") as written:
            give_to_owner(file, owner)
            written.write(content)
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=directory)
        raise


def read_plain(path: Path, limit_bytes: int) -> bytes:
    """What a plain file holds, its beginning.

    Raises:
        OSError: it is missing, a link, or no plain file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            message = f"{path} is no plain file"
            raise OSError(message)
        return file.read(limit_bytes)
