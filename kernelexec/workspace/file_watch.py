"""Files that changed, as the system reports them: a watch for each directory, and no walk through the files.

``FileWatcher`` has one inotify instance for all sessions of an executor. It reads events soon after they come, since the
system's queue is bounded. ``WatchedTree`` has the directories and the changed files of one session. After an overflow of the
queue the tree is walked once, and the times of inodes decide.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

from kernelexec.workspace.safe_files import DIRECTORY, closing_fd, open_top
from kernelexec.workspace.system_calls import (
    CLOSE_WRITE,
    CREATE,
    DELETE,
    IGNORED,
    IS_DIRECTORY,
    MODIFY,
    MOVED_FROM,
    MOVED_TO,
    OVERFLOW,
    WAY,
    FileEvent,
    Inotify,
    open_beneath,
)

#: The bounds of one workspace: watched directories, entries of the first walk, and changed files between two looks.
DIRECTORIES_MAX, ENTRIES_MAX, CHANGES_MAX = 100_000, 1_000_000, 100_000
#: The bound of the memory of the changed files' paths.
PATHS_BYTES_MAX = 16 * 1024 * 1024
#: Files whose changes by a memory map are looked for, since the system does not report those: the newest that were written.
MAPPED_MAX = 32
#: The seconds between two reads of events while they come, and how long one read may take in the event loop.
_PAUSE_SECONDS, _SLICE_SECONDS = 0.005, 0.002
#: As many changed files are looked at in the event loop.
_QUICK_CHANGES = 500
#: The clock of the times of inodes, which Python does not name.
_COARSE_CLOCK = 5
_TICK_NS = 10_000_000

Signature = tuple[int, int, int, int]
Report = Literal["none", "new", "all"]


class WatchRefused(Exception):
    """The directories of a workspace are too many for watches."""


class FileWatcher:
    """The watches of one executor's sessions. Sessions of one directory share its watch.

    Raises:
        OSError: the system has no inotify, or no instance is left for this user.
    """

    def __init__(self) -> None:
        self.inotify = Inotify()
        self.lock = threading.RLock()
        self.trees: set[WatchedTree] = set()
        self._directories: dict[int, list[WatchedDirectory]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read events in an event loop, from its thread."""
        self._loop = loop
        loop.add_reader(self.inotify.fd, self._on_readable)

    def stop(self) -> None:
        """Stop reading events, in the loop's thread; end all watches with ``Inotify.close``."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._loop is not None:
            self._loop.remove_reader(self.inotify.fd)

    def drain(self, seconds: float | None = None) -> bool:
        """Take over the events so far, for at most so many seconds; return whether that was all.

        Events that come meanwhile are for the next call: a program may write faster than they are read.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        queued = 0 if self._is_closed else self.inotify.queued_bytes()
        while queued > 0 and not self._is_closed:
            if deadline is not None and time.monotonic() > deadline:
                return False
            with self.lock:
                content = self.inotify.read()
                for event in self.inotify.parse(content):
                    self._dispatch(event)
            queued = queued - len(content) if content else 0  # another thread may have read them
        return True

    def add(self, directory: WatchedDirectory, fd: int) -> None:
        """Watch an open directory; raise OSError if no watch is left."""
        directory.watch = self.inotify.add(fd)
        self._directories.setdefault(directory.watch, []).append(directory)

    def remove(self, directory: WatchedDirectory) -> None:
        """End the watch of a directory, unless another session has it."""
        directories = self._directories.get(directory.watch, [])
        if directory in directories:
            directories.remove(directory)
            if not directories:
                del self._directories[directory.watch]
                if not self._is_closed:
                    self.inotify.remove(directory.watch)

    def _dispatch(self, event: FileEvent) -> None:
        if event.mask & OVERFLOW:
            for tree in self.trees:
                tree.has_overflowed = True
            return
        for directory in tuple(self._directories.get(event.watch, ())):
            directory.tree.handle(directory, event)
        if event.mask & IGNORED:
            self._directories.pop(event.watch, None)

    def _on_readable(self) -> None:
        assert self._loop is not None
        self._loop.remove_reader(self.inotify.fd)
        self._timer = self._loop.call_later(_PAUSE_SECONDS, self._read_slice)

    def _read_slice(self) -> None:
        assert self._loop is not None
        is_complete = self.lock.acquire(blocking=False)
        if is_complete:
            try:
                is_complete = self.drain(_SLICE_SECONDS) and all(tree.advance(_SLICE_SECONDS) for tree in tuple(self.trees))
            finally:
                self.lock.release()
        if is_complete:
            self._loop.add_reader(self.inotify.fd, self._on_readable)
        else:
            self._timer = self._loop.call_later(_PAUSE_SECONDS, self._read_slice)


class WatchedDirectory:
    """A directory of a tree; ``files`` are the names of its changed files."""

    __slots__ = ("children", "files", "name", "parent", "tree", "watch")

    def __init__(self, tree: WatchedTree, parent: WatchedDirectory | None, name: str) -> None:
        self.tree, self.parent, self.name = tree, parent, name
        self.watch = -1
        self.children: dict[str, WatchedDirectory] = {}
        self.files: dict[str, None] = {}

    def path(self) -> str | None:
        """Return the path from the root on; None for a directory that is no longer there."""
        parts, directory = [], self
        while directory.parent is not None:
            parts.append(directory.name)
            directory = directory.parent
        return "/".join(reversed(parts)) if directory is self.tree.top else None


class WatchedTree:
    """The watched directories of one workspace, and its changed files. Links are not followed.

    Args:
        watcher: reports the changes.
        root: the workspace; it may be missing, and be replaced.
        ignored: names of directories that are not watched.
        is_ignored: whether files of a name, in the root itself, are left out.

    Raises:
        WatchRefused: the workspace has too many directories, or the user has no watches left.
    """

    def __init__(
        self, watcher: FileWatcher, root: Path, ignored: frozenset[str], is_ignored: Callable[[str], bool] = lambda _: False
    ) -> None:
        self.has_overflowed = False
        self.omitted = 0
        """The number of changes that were not noted since the last look, because there are too many."""
        self.unnamed = 0
        """The number of changed files that the last looks left out, because their paths are too large together."""
        self.since = read_inode_clock()
        """The time of the last look, by the clock of inodes, in nanoseconds."""
        self.top = WatchedDirectory(self, None, "")
        self._watcher = watcher
        self._root = str(root)
        self._ignored, self._is_ignored = ignored, is_ignored
        self._identity: tuple[int, int] | None = None
        self._known: dict[str, int] | None = None
        """The directories before an overflow, with their watches: all files of others are new."""
        self._recent: dict[str, int] = {}
        """The inode times of files that were reported in the tick of the last look."""
        self._changed: dict[WatchedDirectory, None] = {}
        self._change_count = self._directory_count = self._entry_count = 0
        self._pending: list[tuple[WatchedDirectory, str, Report]] = []
        self._written: OrderedDict[tuple[WatchedDirectory, str], Signature | None] = OrderedDict()
        self._refusal: WatchRefused | None = None
        with watcher.lock:
            watcher.trees.add(self)
        try:
            self._begin("none")
        except WatchRefused:
            self.close()
            raise

    @property
    def is_slow(self) -> bool:
        """Whether the next look is for a thread: it takes longer than an event loop should wait."""
        is_drained = self._watcher.drain(_SLICE_SECONDS) and self.advance(_SLICE_SECONDS)
        return not is_drained or self.has_overflowed or self._change_count > _QUICK_CHANGES

    def look(self) -> set[str]:
        """Return the paths of regular files that are new or changed since the last look.

        Raises:
            WatchRefused: see the class; the tree must be closed.
        """
        now = read_inode_clock()
        self._watcher.drain()
        paths: set[str] = set()
        if self.has_overflowed or self._identity != self._read_identity():
            paths = self.take_changes(now)
            self._begin("new")
        self._advance_or_raise()
        paths |= self.take_changes(now)
        self.since = now
        self._recent = {path: changed_at for path, changed_at in self._recent.items() if changed_at >= now}
        return paths

    def take_changes(self, now: int) -> set[str]:
        """Return the changes that are known at a time of inodes, without a look for others."""
        written: dict[WatchedDirectory, list[str]] = {}
        paths: set[str] = set()
        room = PATHS_BYTES_MAX
        with self._watcher.lock:
            for directory, name in self._written:
                written.setdefault(directory, []).append(name)
            if self._changed or written:
                with suppress(OSError), closing_fd(open_top(self._root)) as top:
                    for directory in {**self._changed, **dict.fromkeys(written)}:
                        for path in self._check_files(directory, top, written.get(directory, []), now):
                            room -= sys.getsizeof(path)
                            if room >= 0:
                                paths.add(path)
                            else:
                                self.unnamed += 1
            self._changed.clear()
            self._change_count = 0
        return paths

    def close(self) -> None:
        """End the watches."""
        with self._watcher.lock:
            self._watcher.trees.discard(self)
            self._forget(self.top)

    def handle(self, directory: WatchedDirectory, event: FileEvent) -> None:
        """Take over an event. The watcher calls it, with its lock."""
        name, mask = event.name, event.mask
        if mask & IGNORED:
            self._forget(directory)
        elif not name:
            return
        elif mask & IS_DIRECTORY:
            self._handle_directory(directory, name, mask)
        elif mask & (DELETE | MOVED_FROM):
            self._change_count -= name in directory.files
            directory.files.pop(name, None)
            self._written.pop((directory, name), None)
        elif not (directory is self.top and self._is_ignored(name)):
            if mask & (MODIFY | CLOSE_WRITE):
                self._note_written(directory, name)
            if not mask & CLOSE_WRITE:
                self._mark(directory, name)

    def advance(self, seconds: float | None = None) -> bool:
        """Watch new directories for at most so many seconds; return whether that was all of them."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while self._pending and self._refusal is None:
            with self._watcher.lock:
                if self._pending:
                    self._add_directory(*self._pending.pop())
            if deadline is not None and time.monotonic() > deadline:
                return not self._pending
        return True

    def _advance_or_raise(self) -> None:
        self.advance()
        if self._refusal is not None:
            raise self._refusal

    def _begin(self, report: Report) -> None:
        """Watch the root and all directories below it from the beginning on."""
        with self._watcher.lock:
            identity, former = self._read_identity(), self.top
            self._known = self._list_directories() if self.has_overflowed and identity == self._identity else None
            self.has_overflowed, self._identity = False, identity
            self.top = WatchedDirectory(self, None, "")
            self._directory_count = self._entry_count = 0
            self._pending.clear()
            with suppress(OSError), closing_fd(open_top(self._root)) as fd:
                self._scan(self.top, "", fd, report)
        try:
            self._advance_or_raise()
        finally:
            self._known = None
            with self._watcher.lock:
                self._forget(former)

    def _read_identity(self) -> tuple[int, int] | None:
        """Return the root's device and inode; None if it is missing."""
        try:
            status = os.stat(self._root, follow_symlinks=False)  # noqa: PTH116 - before every result
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _list_directories(self) -> dict[str, int]:
        paths, pending = {"": self.top.watch}, [("", self.top)]
        while pending:
            above, directory = pending.pop()
            for name, child in directory.children.items():
                path = f"{above}/{name}" if above else name
                paths[path] = child.watch
                pending.append((path, child))
        return paths

    def _handle_directory(self, directory: WatchedDirectory, name: str, mask: int) -> None:
        child = directory.children.get(name)
        if child is not None and mask & (DELETE | MOVED_FROM | MOVED_TO):  # a move may replace an empty directory
            del directory.children[name]
            self._forget(child)
            child = None
        if child is None and not mask & (DELETE | MOVED_FROM) and name not in self._ignored:
            self._pending.append((directory, name, "all" if mask & (MOVED_TO | CREATE) else "new"))

    def _add_directory(self, parent: WatchedDirectory, name: str, report: Report) -> None:
        """Watch a directory, and queue those in it. One that is gone or cannot be read is left out."""
        above = parent.path()
        if above is None or name in parent.children:
            return
        path = f"{above}/{name}" if above else name
        directory = WatchedDirectory(self, parent, name)
        try:
            with closing_fd(open_top(self._root)) as top, closing_fd(_open_beneath(top, path, DIRECTORY)) as fd:
                parent.children[name] = directory
                self._scan(directory, path, fd, report)
        except OSError as exc:
            if exc.errno in (errno.EMFILE, errno.ENFILE):
                self._refuse(exc.strerror)

    def _scan(self, directory: WatchedDirectory, path: str, fd: int, report: Report) -> None:
        self._directory_count += 1
        if self._directory_count > DIRECTORIES_MAX:
            self._refuse(f"it has more than {DIRECTORIES_MAX} directories")
            return
        try:
            self._watcher.add(directory, fd)  # first, so that nothing is missed
        except OSError as exc:
            self._refuse(f"no watch is left, {exc.strerror}: fs.inotify.max_user_watches is the limit")
            return
        if self._known is not None and self._known.get(path) != directory.watch:
            report = "all"
        with os.scandir(fd) as listing:
            for entry in listing:
                self._entry_count += 1
                if self._entry_count > ENTRIES_MAX:
                    self._refuse(f"it has more than {ENTRIES_MAX} files")
                    return
                if entry.is_dir(follow_symlinks=False):
                    if entry.name not in self._ignored:
                        self._pending.append((directory, entry.name, report))
                elif report == "all" or (report == "new" and self._is_new(entry, path)):
                    self._mark(directory, entry.name)

    def _is_new(self, entry: os.DirEntry[str], above: str) -> bool:
        with suppress(OSError):
            changed_at = entry.stat(follow_symlinks=False).st_ctime_ns
            return changed_at >= self.since and self._recent.get(f"{above}/{entry.name}" if above else entry.name) != changed_at
        return False

    def _refuse(self, reason: str | None) -> None:
        self._refusal = WatchRefused(reason)
        self._pending.clear()

    def _forget(self, directory: WatchedDirectory) -> None:
        pending = [directory]
        while pending:
            each = pending.pop()
            self._watcher.remove(each)
            pending += each.children.values()
            if each.parent is not None and each.parent.children.get(each.name) is each:
                del each.parent.children[each.name]
            self._change_count -= len(each.files)
            self._changed.pop(each, None)
            each.children, each.files, each.parent = {}, {}, None

    def _mark(self, directory: WatchedDirectory, name: str) -> None:
        if name in directory.files:
            return
        if self._change_count >= CHANGES_MAX:
            self.omitted += 1
            return
        self._change_count += 1
        directory.files[name] = None
        self._changed[directory] = None

    def _note_written(self, directory: WatchedDirectory, name: str) -> None:
        """Note a file that a program has written: it may have mapped it too, and change it later."""
        self._written.setdefault((directory, name), None)
        self._written.move_to_end((directory, name))
        if len(self._written) > MAPPED_MAX:
            self._written.popitem(last=False)

    def _check_files(self, directory: WatchedDirectory, top: int, written: list[str], now: int) -> Iterator[str]:
        """Yield the paths of the directory's files that are there and changed."""
        path, names = directory.path(), directory.files
        directory.files = {}
        if path is None:
            for name in written:
                del self._written[directory, name]
            return
        with suppress(OSError), closing_fd(_open_beneath(top, path or ".", WAY)) as fd:
            for name in dict.fromkeys((*names, *written)):
                with suppress(OSError):
                    status = os.stat(name, dir_fd=fd, follow_symlinks=False)
                    is_changed = name in names
                    if (directory, name) in self._written:
                        is_changed |= self._has_new_signature((directory, name), status)
                    if is_changed and stat.S_ISREG(status.st_mode):
                        file = f"{path}/{name}" if path else name
                        if status.st_ctime_ns >= now:
                            self._recent[file] = status.st_ctime_ns
                        yield file

    def _has_new_signature(self, key: tuple[WatchedDirectory, str], status: os.stat_result) -> bool:
        before = self._written[key]
        self._written[key] = signature = (status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)
        return status.st_ctime_ns >= self.since if before is None else before != signature


def _open_beneath(top: int, path: str, flags: int) -> int:
    return open_beneath(top, path, flags, across=True)


def read_inode_clock() -> int:
    """Return the time, in nanoseconds, that a file would get that changes now: this clock has ticks of some milliseconds."""
    try:
        return time.clock_gettime_ns(_COARSE_CLOCK)
    except (OSError, AttributeError):  # not on every Unix
        return time.time_ns() - _TICK_NS
