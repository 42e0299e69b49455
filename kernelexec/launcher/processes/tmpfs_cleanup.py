"""What processes leave behind in memory when they end, in a container that goes on: files there, and System V's objects."""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")
_KINDS = frozenset({"tmpfs", "mqueue"})
_WHOLE = "/"
#: Deeper directories are left, and said to be there: nobody makes them but to be a nuisance.
_DEPTH_MAX = 200
_REMOVE = 0
#: The mode of directories that are mounted from memory: the engine's own have it, and so have those that we ask for.
_MODE = 0o1777


def clear_tmpfs_and_ipc(directories: Iterable[str], spared: Collection[int]) -> bool:
    """Remove all objects in memory, and what is in those directories, which are mounted from it; whether nothing is left.

    Nobody else may run meanwhile. What is mounted within stays, and so do the ways there. A directory that turns out to be
    something else, or on a device (``st_dev``) that is to be spared, is not touched, and counts as left.
    """
    _clear_objects()
    mounted = _mounted()
    real = [os.path.realpath(path) for path in directories]
    if not all(mounted.get(path) in _KINDS and Path(path).stat().st_dev not in spared for path in real):
        return False
    cleared = [_clear(path) for path in real]
    return all(cleared)


def _mounted() -> dict[str, str]:
    """Of what kind that is which is mounted as a whole at a place; of two the later, which can be seen."""
    kinds = {}
    for line in (_PROC / "self/mountinfo").read_text("utf-8", "surrogateescape").splitlines():
        before, _, after = line.partition(" - ")
        _, _, _, root, path, *_ = before.split(" ")
        for code in ("\\040", "\\011", "\\012", "\\134"):
            path = path.replace(code, chr(int(code[1:], 8)))
        kinds[path] = after.split(" ")[0] if root == _WHOLE else ""
    return kinds


def _clear(path: str) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        info = os.fstat(fd)
        if stat.S_IMODE(info.st_mode) != _MODE:
            os.fchmod(fd, _MODE)
        return _clear_within(fd, info.st_dev, 0)
    except OSError:
        return False
    finally:
        os.close(fd)


def _clear_within(directory: int, device: int, depth: int) -> bool:
    """Remove what is in an open directory and of its device; whether all of that could be removed."""
    cleared = depth < _DEPTH_MAX
    for name in os.listdir(directory) if cleared else ():
        info = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if info.st_dev != device:
            continue
        try:
            if stat.S_ISDIR(info.st_mode):
                if info.st_mode & stat.S_IRWXU != stat.S_IRWXU:
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
