"""The space of deleted files, held by the rules of confined kernels.

Next to a hidden path, Landlock needs rules for single files (``launcher/sandbox``), and a rule holds the file: without this
module the space of a deleted file would be free only after the end of the last kernel with such a rule.
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
from kernelexec.workspace.system_calls import ATTRIB, Inotify

#: The number of watched files, which are the largest, and the least limit of open files: below it sessions need them all.
_FILES_MAX, _OPEN_MIN = 64, 1024
#: Seconds to the next look at deleted files in use: after the first look, and at most.
_LOOK_SECONDS, _LOOK_SECONDS_MAX = 0.1, 5.0


class DeletedFileSpace:
    """A watch of files that empties each deleted file once no process has it open, as the deletion alone would otherwise do.

    Each file is held by a descriptor without read or write access (``O_PATH``). Inotify reports the end of a name.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, inotify: Inotify) -> None:
        self._loop, self._inotify = loop, inotify
        self._files: dict[int, int] = {}
        """Descriptors of files by watch number."""
        self._changed_at: dict[str, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        track_fd(self._inotify.fd)
        loop.add_reader(self._inotify.fd, self._on_readable)

    @classmethod
    def open(cls, loop: asyncio.AbstractEventLoop) -> Self | None:
        """Return an instance for an event loop; None if the limit of open files is below 1024, or inotify fails."""
        limit = platform.open_files_limit()
        with suppress(OSError):
            return cls(loop, Inotify()) if limit is None or limit >= _OPEN_MIN else None
        return None

    def find(self, hidden: Iterable[str]) -> list[str] | None:
        """Return the 64 largest regular files in directories above a hidden path; for a thread.

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
        """Watch these files from now on; of the files watched before, keep only deleted files."""
        watches = {watch for path in paths if (watch := self._add(path)) is not None}
        for watch in [watch for watch, fd in self._files.items() if watch not in watches and os.fstat(fd).st_nlink]:
            self._leave(watch)

    def close(self) -> None:
        """End all watches; for the event loop's thread."""
        self._loop.remove_reader(self._inotify.fd)
        if self._timer is not None:
            self._timer.cancel()
        for fd in (self._inotify.fd, *self._files.values()):
            close_fd(fd)
        self._files.clear()

    def _add(self, path: str) -> int | None:
        with suppress(OSError):  # it is gone, or no watch is left
            fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
            track_fd(fd)
            try:
                if stat.S_ISREG(os.fstat(fd).st_mode):
                    watch = self._inotify.add(fd, ATTRIB)
                    # Inotify returns the old number for a file that is watched already: the older descriptor is closed then.
                    fd, self._files[watch] = self._files.get(watch, -1), fd
                    return watch
            finally:
                if fd >= 0:
                    close_fd(fd)
        return None

    def _on_readable(self) -> None:
        while self._inotify.read():
            pass
        self._look(_LOOK_SECONDS)

    def _look(self, seconds: float) -> None:
        """Empty deleted files without users; while others are in use, look again after these seconds, then ever more rarely.

        Events of closes would be no help: each look opens and closes the files too, so that the events never ended.
        """
        if self._timer is not None:
            self._timer.cancel()
        for watch in [watch for watch, fd in self._files.items() if os.fstat(fd).st_nlink == 0]:
            if platform.empty_unused(self._files[watch]):
                self._leave(watch)
        in_use = any(os.fstat(fd).st_nlink == 0 for fd in self._files.values())
        rarer = min(2 * seconds, _LOOK_SECONDS_MAX)
        self._timer = self._loop.call_later(seconds, self._look, rarer) if in_use else None

    def _leave(self, watch: int) -> None:
        self._inotify.remove(watch)  # by itself it would end with the file, which rules hold
        close_fd(self._files.pop(watch))


def _changed_at(directory: str) -> int:
    try:
        return os.stat(directory).st_mtime_ns  # noqa: PTH116 - called for each session
    except OSError:
        return 0
