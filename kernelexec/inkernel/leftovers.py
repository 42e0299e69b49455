"""What processes leave behind in memory when they end, in a container that goes on: files there, and System V's objects."""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")
_KINDS = frozenset({"tmpfs", "mqueue"})
_WHOLE = "/"
#: Deeper directories are left, and said to be there: nobody makes them but to be a nuisance.
_DEPTH_MAX = 200
_REMOVE = 0


def clear_memory(directories: Iterable[str]) -> bool:
    """Remove all objects in memory, and what is in those directories that are mounted from it; whether nothing is left.

    Nobody else may run meanwhile. What other directories have mounted within stays, and so do the ways there.
    """
    _clear_objects()
    mounted = _mounted()
    found = [_clear(path) for path in directories if mounted.get(path) in _KINDS]
    return all(found)


def _mounted() -> dict[str, str]:
    """Of what kind that is which is mounted as a whole at a place; of two the later, which can be seen."""
    found = {}
    for line in (_PROC / "self/mountinfo").read_text("utf-8", "surrogateescape").splitlines():
        before, _, after = line.partition(" - ")
        _, _, _, root, path, *_ = before.split(" ")
        found[path] = after.split(" ")[0] if root == _WHOLE else ""
    return found


def _clear(path: str) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return _clear_within(fd, os.fstat(fd).st_dev, 0)
    except OSError:
        return False
    finally:
        os.close(fd)


def _clear_within(directory: int, device: int, depth: int) -> bool:
    """Remove what is in an open directory and of its device; whether all of that could be removed."""
    cleared = depth < _DEPTH_MAX
    for name in os.listdir(directory) if cleared else ():
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if found.st_dev != device:
            continue
        try:
            if stat.S_ISDIR(found.st_mode):
                if found.st_mode & stat.S_IRWXU != stat.S_IRWXU:
                    os.chmod(name, stat.S_IRWXU, dir_fd=directory)  # no link: nobody else runs
                cleared &= _clear_inner(name, directory, device, depth)
            else:
                os.unlink(name, dir_fd=directory)
        except OSError:
            cleared = False
    return cleared


def _clear_inner(name: str, above: int, device: int, depth: int) -> bool:
    fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    try:
        cleared = _clear_within(fd, device, depth + 1)
        kept = bool(os.listdir(fd))  # noqa: PTH208 - as above
    finally:
        os.close(fd)
    if cleared and not kept:  # else something is mounted in it
        os.rmdir(name, dir_fd=above)
    return cleared


def _clear_objects() -> None:
    """Remove shared memory, message queues and semaphores (shmctl(2), msgctl(2), semctl(2): IPC_RMID)."""
    libc = ctypes.CDLL(None)
    calls = {
        "shm": lambda number: libc.shmctl(number, _REMOVE, None),
        "msg": lambda number: libc.msgctl(number, _REMOVE, None),
        "sem": lambda number: libc.semctl(number, 0, _REMOVE),
    }
    for kind, remove in calls.items():
        with suppress(OSError, ValueError, IndexError):
            for line in (_PROC / "sysvipc" / kind).read_text().splitlines()[1:]:
                remove(int(line.split()[1]))
