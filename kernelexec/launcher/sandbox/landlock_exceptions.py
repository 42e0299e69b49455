"""Landlock rights to a directory except some paths in it. Others may write there, so no link is followed."""

from __future__ import annotations

import os
from contextlib import suppress

from .landlock import Ruleset

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def allow_except(ruleset: Ruleset, top: str, rights: int, kept: list[str]) -> None:
    """Allow a tree, by an absolute path without links, except ``kept`` paths; allow nothing if it is gone.

    Landlock knows no exceptions. So kept paths get no right, nor do the directories above them, but their other entries do.
    """
    above = {parent for path in kept for parent in _above(path)}

    def allow(path: str, fd: int) -> None:
        if path in kept:
            return
        if path not in above:
            ruleset.allow_open(fd, rights)
            return
        directory = os.open(".", _DIRECTORY, dir_fd=fd)
        try:
            for name in os.listdir(directory):  # noqa: PTH208 - of what is open
                with suppress(OSError):  # it went meanwhile
                    inner = os.open(name, _entry(), dir_fd=directory)
                    try:
                        allow(f"{path}/{name}", inner)
                    finally:
                        os.close(inner)
        finally:
            os.close(directory)

    with suppress(OSError):
        fd = _opened(top)
        try:
            allow(top.rstrip("/"), fd)
        finally:
            os.close(fd)


def _above(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:length]) for length in range(1, len(parts))]


def _opened(path: str) -> int:
    """Open a path without following links."""
    fd = os.open("/", _entry())
    for part in filter(None, path.split("/")):
        above = fd
        try:
            fd = os.open(part, _entry(), dir_fd=above)
        finally:
            os.close(above)
    return fd


def _entry() -> int:
    """Return the flags that open an entry; a function, since only Linux has all of them."""
    return os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
