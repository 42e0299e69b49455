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
_REMOVE_OBJECT = 0
#: The mode of tmpfs mounts, both the engine's own and the requested ones.
_TMPFS_MODE = 0o1777


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
    """Reset the mode of a tmpfs, which may be root's, if a cell changed it, and remove the content; return whether all went."""
    try:
        info = Path(path).stat()
        if stat.S_IMODE(info.st_mode) != _TMPFS_MODE:
            Path(path).chmod(_TMPFS_MODE)
    except OSError:
        return False
    return _clear_directory(path, info.st_dev)


def _clear_directory(path: str, device: int, depth: int = 0) -> bool:
    """Remove the entries of a directory that are on its device; return whether all were removed."""
    cleared = depth < _DEPTH_MAX
    try:
        for entry in list(os.scandir(path)) if cleared else ():
            info = entry.stat(follow_symlinks=False)
            if info.st_dev != device:
                continue
            if not stat.S_ISDIR(info.st_mode):
                os.unlink(entry.path)  # noqa: PTH108 - no link can replace it: no other process runs
                continue
            if info.st_mode & stat.S_IRWXU != stat.S_IRWXU:
                os.chmod(entry.path, stat.S_IRWXU)  # noqa: PTH101 - as above
            if not _clear_directory(entry.path, device, depth + 1):
                cleared = False
            elif not os.listdir(entry.path):  # noqa: PTH208 - otherwise it contains a mount
                os.rmdir(entry.path)  # noqa: PTH106 - as above
    except OSError:
        return False
    return cleared


def _clear_objects() -> None:
    """Remove shared memory, message queues and semaphores (shmctl(2), msgctl(2), semctl(2): IPC_RMID)."""
    libc = ctypes.CDLL(None)
    calls = {
        "shm": lambda number: libc.shmctl(number, _REMOVE_OBJECT, None),
        "msg": lambda number: libc.msgctl(number, _REMOVE_OBJECT, None),
        "sem": lambda number: libc.semctl(number, 0, _REMOVE_OBJECT),
    }
    for kind, remove in calls.items():
        with suppress(OSError, ValueError, IndexError):
            for line in (_PROC / "sysvipc" / kind).read_text().splitlines()[1:]:
                remove(int(line.split()[1]))
