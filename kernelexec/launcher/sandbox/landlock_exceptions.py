"""Landlock rights to a directory except some paths in it. Others may write there, so no link is followed."""

from __future__ import annotations

import os
from contextlib import suppress

from .landlock import Ruleset

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def allow_except(ruleset: Ruleset, top: str, rights: int, excluded: list[str]) -> None:
    """Allow a tree, by an absolute path without links, except ``excluded`` paths; allow nothing if it is gone.

    Landlock knows no exceptions. So excluded paths get no right, nor do the directories above them, but their other entries do.
    """
    above = {parent for path in excluded for parent in _list_parents(path)}

    def allow(path: str, fd: int) -> None:
        if path in excluded:
            return
        if path not in above:
            ruleset.allow_open(fd, rights)
            return
        directory = os.open(".", _DIRECTORY, dir_fd=fd)
        try:
            for name in os.listdir(directory):  # noqa: PTH208 - of an open directory
                with suppress(OSError):  # it was removed meanwhile
                    inner = os.open(name, _build_open_flags(), dir_fd=directory)
                    try:
                        allow(f"{path}/{name}", inner)
                    finally:
                        os.close(inner)
        finally:
            os.close(directory)

    with suppress(OSError):
        fd = _open_path(top)
        try:
            allow(top.rstrip("/"), fd)
        finally:
            os.close(fd)


def _list_parents(path: str) -> list[str]:
    names = path.split("/")
    return ["/".join(names[:length]) for length in range(1, len(names))]


def _open_path(path: str) -> int:
    """Open a path without following links."""
    fd = os.open("/", _build_open_flags())
    for name in filter(None, path.split("/")):
        above = fd
        try:
            fd = os.open(name, _build_open_flags(), dir_fd=above)
        finally:
            os.close(above)
    return fd


def _build_open_flags() -> int:
    """Return the flags that open an entry; a function, since only Linux has all of them."""
    return os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
