"""Whole files in a directory that a kernel can write in: made new, replaced at once, and no link is followed."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path

from kernelexec.workspace.directory import give_to_owner
from kernelexec.workspace.rmtree import descend

_BUFFER_BYTES = 256 * 1024
_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_TOP = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def write_atomically(path: Path, content: Iterable[bytes]) -> None:
    """Replace a file as a whole: a reader sees the old one or the new one; a link in its place is replaced, not followed."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    create(temporary, content)
    try:
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def create(path: Path, content: Iterable[bytes]) -> None:
    """Make a file where there is none; one that cannot be filled is removed again."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        with os.fdopen(fd, "wb", buffering=_BUFFER_BYTES) as file:
            give_to_owner(fd, path.parent.stat())
            file.writelines(content)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def copy_between(source: Path, target: Path, relative: Path, names: Iterable[str]) -> None:
    """Copy plain files of a directory in one workspace into the same place in another; no link is followed in either.

    What is no plain file, or not there, is left out.

    Raises:
        OSError: there is no such directory, or it cannot be written.
    """
    with ExitStack() as opened:
        of = descend(os.open(source, _TOP), relative, opened)
        first = os.open(target, _TOP)
        to = descend(first, relative, opened, owner=os.fstat(first))
        for name in names:
            with suppress(OSError):
                fd = os.open(name, _READING, dir_fd=of)
                with os.fdopen(fd, "rb") as found:
                    if stat.S_ISREG(os.fstat(fd).st_mode):
                        made = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=to)
                        with os.fdopen(made, "wb") as copy:
                            give_to_owner(made, os.fstat(to))
                            shutil.copyfileobj(found, copy)


def holds(path: Path, content: bytes) -> bool:
    """Whether a file has that content, and nothing else; the kernel may have put anything in its place."""
    try:
        fd = os.open(path, _READING)
    except OSError:
        return False
    try:
        return stat.S_ISREG(os.fstat(fd).st_mode) and os.pread(fd, len(content) + 1, 0) == content
    finally:
        os.close(fd)
