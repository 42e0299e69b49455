"""Whole files in a directory that a kernel can write in: made new, replaced at once, and no link is followed."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path

from kernelexec.workspace.directory import give_to_owner

_BUFFER_BYTES = 256 * 1024


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


def holds(path: Path, content: bytes) -> bool:
    """Whether a file has that content, and nothing else; the kernel may have put anything in its place."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return stat.S_ISREG(os.fstat(fd).st_mode) and os.pread(fd, len(content) + 1, 0) == content
    finally:
        os.close(fd)
