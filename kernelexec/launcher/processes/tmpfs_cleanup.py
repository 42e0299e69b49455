"""Removal of the memory that ended processes leave in a container: files in tmpfs, and System V objects."""

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
#: Deeper directories are left and reported: only hostile code creates them.
_DEPTH_MAX = 200
_REMOVE = 0
#: The mode of tmpfs mounts, both the engine's own and the requested ones.
_MODE = 0o1777


def clear_tmpfs_and_ipc(directories: Iterable[str], spared: Collection[int]) -> bool:
    """Remove all System V objects and the content of tmpfs directories; return whether nothing is left.

    No other process may run meanwhile. Mounts in the directories stay, with the directories above them. A directory that is not
    mounted from memory, or is on a ``spared`` device (``st_dev``), is not changed, and counts as left.
    """
    _clear_objects()
    mounts = _read_mounts()
    real = [os.path.realpath(path) for path in directories]
    if not all(mounts.get(path) in _KINDS and Path(path).stat().st_dev not in spared for path in real):
        return False
    cleared = [_clear_mount(path) for path in real]
    return all(cleared)


def _read_mounts() -> dict[str, str]:
    """Return the file system type of each mount of a whole file system; of two at a path, the visible one."""
    kinds = {}
    for line in (_PROC / "self/mountinfo").read_text("utf-8", "surrogateescape").splitlines():
        before, _, after = line.partition(" - ")
        _, _, _, root, path, *_ = before.split(" ")
        for code in ("\\040", "\\011", "\\012", "\\134"):
            path = path.replace(code, chr(int(code[1:], 8)))
        kinds[path] = after.split(" ")[0] if root == _WHOLE else ""
    return kinds


def _clear_mount(path: str) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        info = os.fstat(fd)
        if stat.S_IMODE(info.st_mode) != _MODE:
            os.fchmod(fd, _MODE)
        return _clear_directory(fd, info.st_dev, 0)
    except OSError:
        return False
    finally:
        os.close(fd)


def _clear_directory(directory: int, device: int, depth: int) -> bool:
    """Remove the entries of an open directory that are on its device; return whether all were removed."""
    cleared = depth < _DEPTH_MAX
    for name in os.listdir(directory) if cleared else ():
        info = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if info.st_dev != device:
            continue
        try:
            if stat.S_ISDIR(info.st_mode):
                if info.st_mode & stat.S_IRWXU != stat.S_IRWXU:
                    os.chmod(name, stat.S_IRWXU, dir_fd=directory)  # no link can replace it: no other process runs
                cleared &= _clear_inner(name, directory, device, depth)
            else:
                os.unlink(name, dir_fd=directory)
        except OSError:
            cleared = False
    return cleared


def _clear_inner(name: str, above: int, device: int, depth: int) -> bool:
    fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    try:
        cleared = _clear_directory(fd, device, depth + 1)
        has_entries = bool(os.listdir(fd))  # noqa: PTH208 - as above
    finally:
        os.close(fd)
    if cleared and not has_entries:  # otherwise it contains a mount
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
