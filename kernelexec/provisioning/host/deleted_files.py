"""The space of deleted files, which the rules of confined kernels would hold.

Landlock has rights for single files where something hidden is next to them (``launcher/sandbox``), and a rule holds its file:
one that is deleted would keep its space until the last kernel with that rule ends.
"""

from __future__ import annotations

import asyncio
import heapq
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from typing import Self

from kernelexec.provisioning import platform
from kernelexec.provisioning.runtime.owned_directory import close_fd, track_fd
from kernelexec.workspace.system_calls import ATTRIB, CLOSE_NOWRITE, CLOSE_WRITE, Inotify

#: Files that are looked after at once: the largest. Where fewer files may be open in all, sessions need them.
_FILES_MAX, _OPEN_MIN = 64, 1024
_CLOSE_SECONDS = 0.1


class DeletedFileSpace:
    """Empties files without a name that no process has open, as their deletion alone would have done.

    It has descriptors of them that neither read nor write (``O_PATH``), and learns by inotify that a name or a reader is gone.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, inotify: Inotify) -> None:
        self._loop, self._inotify = loop, inotify
        self._files: dict[int, int] = {}
        """Descriptors of files by the numbers of their watches."""
        self._changed_at: dict[str, int] = {}
        track_fd(self._inotify.fd)
        loop.add_reader(self._inotify.fd, self._on_readable)

    @classmethod
    def open(cls, loop: asyncio.AbstractEventLoop) -> Self | None:
        """Return an object for an event loop; None if too few files may be open, or no instance of inotify is left."""
        limit = platform.open_files_limit()
        with suppress(OSError):
            return cls(loop, Inotify()) if limit is None or limit >= _OPEN_MIN else None
        return None

    def find(self, hidden: Iterable[str]) -> list[str] | None:
        """Return the largest plain files in directories that contain a hidden path at any depth; called in a thread.

        None if no file has come or gone since the last call.
        """
        names = {name for path in hidden for name in (path, os.path.realpath(path))}
        directories = {name[:at] or "/" for name in names for at, char in enumerate(name) if char == "/"}
        before, self._changed_at = self._changed_at, {directory: _changed_at(directory) for directory in directories}
        if before == self._changed_at:
            return None
        sizes: list[tuple[int, str]] = []
        for directory in directories:
            with suppress(OSError), os.scandir(directory) as entries:
                for entry in entries:
                    if entry.path not in names and entry.is_file(follow_symlinks=False):
                        with suppress(OSError):
                            sizes.append((entry.stat(follow_symlinks=False).st_size, entry.path))
        return [path for _, path in heapq.nlargest(_FILES_MAX, sizes)]

    def look_after(self, paths: Iterable[str]) -> None:
        """Look after these files from now on, and no longer after others that have names."""
        watches = {watch for path in paths if (watch := self._add(path)) is not None}
        for watch in [watch for watch, fd in self._files.items() if watch not in watches and os.fstat(fd).st_nlink]:
            self._leave(watch)

    def close(self) -> None:
        """End all watches; called in the event loop."""
        self._loop.remove_reader(self._inotify.fd)
        for fd in (self._inotify.fd, *self._files.values()):
            close_fd(fd)
        self._files.clear()

    def _add(self, path: str) -> int | None:
        with suppress(OSError):  # it is gone, or no watch is left
            fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
            track_fd(fd)
            try:
                if stat.S_ISREG(os.fstat(fd).st_mode):
                    watch = self._inotify.add(fd, ATTRIB | CLOSE_NOWRITE | CLOSE_WRITE)
                    fd, self._files[watch] = self._files.get(watch, -1), fd
                    return watch
            finally:
                if fd >= 0:
                    close_fd(fd)
        return None

    def _on_readable(self) -> None:
        while self._inotify.read():
            pass
        if self._empty():  # an event of a close comes before the file counts as closed
            self._loop.call_later(_CLOSE_SECONDS, self._empty)

    def _empty(self) -> bool:
        """Empty the deleted files; return whether one is still in use."""
        deleted = [watch for watch, fd in self._files.items() if os.fstat(fd).st_nlink == 0]
        for watch in deleted:
            if platform.empty_unused(self._files[watch]):
                self._leave(watch)
        return any(watch in self._files for watch in deleted)

    def _leave(self, watch: int) -> None:
        self._inotify.remove(watch)  # by itself it would end with the file, which rules hold
        close_fd(self._files.pop(watch))


def _changed_at(directory: str) -> int:
    try:
        return os.stat(directory).st_mtime_ns  # noqa: PTH116 - called for each session
    except OSError:
        return 0
