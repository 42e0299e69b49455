"""Changed files as reported by the system, with a watch for each directory and without a walk through the files.

``FileWatcher`` has an inotify instance for all sessions of an executor, and reads events soon, since the system's queue is
bounded. ``WatchedTree`` has the directories and the changed files of a session. After an overflow of the queue, or the move
of a directory, the tree is walked once, and the times of inodes decide.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import sys
import threading
import time
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
#: The bound of memory for the paths of changed files, and for the paths of directories.
PATHS_BYTES_MAX = 16 * 1024 * 1024
#: The seconds between two reads while events come, and the time limit of a read in the event loop.
_PAUSE_SECONDS, _SLICE_SECONDS = 0.005, 0.002
#: The most changed files for a look in the event loop.
_QUICK_CHANGES = 500
#: The clock of inode times: CLOCK_REALTIME_COARSE, which Python does not name.
_COARSE_CLOCK = 5
#: The longest tick of this clock (Linux at 100 Hz), for systems without the clock.
_TICK_NS = 10_000_000

Signature = tuple[int, int, int, int]
Report = Literal["none", "new", "all"]


class WatchRefused(Exception):
    """Too many directories in a workspace for watches."""


class FileWatcher:
    """The watches of an executor's sessions. Sessions in the same directory share a watch.

    Raises:
        OSError: the system has no inotify, or no instance is left for this user.
    """

    def __init__(self) -> None:
        self.inotify = Inotify()
        self.lock = threading.RLock()
        self.trees: set[WatchedTree] = set()
        self._trees_of: dict[int, list[WatchedTree]] = {}
        """The trees that contain each watched directory. inotify gives a directory the same watch each time."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read events in an event loop, from its thread."""
        self._loop = loop
        loop.add_reader(self.inotify.fd, self._on_readable)

    def stop(self) -> None:
        """Stop reading events, in the loop's thread. ``Inotify.close`` ends the watches."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._loop is not None:
            self._loop.remove_reader(self.inotify.fd)

    def drain(self, seconds: float | None = None) -> bool:
        """Handle the present events for at most ``seconds``; return whether all were handled.

        Events that come meanwhile are for the next call: a program may write faster than this process reads.
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

    def add(self, tree: WatchedTree, fd: int) -> int:
        """Watch an open directory of a tree, and return the watch.

        Raises:
            OSError: the user has no watches left.
        """
        watch = self.inotify.add(fd)
        trees = self._trees_of.setdefault(watch, [])
        if tree not in trees:
            trees.append(tree)
        return watch

    def remove(self, tree: WatchedTree, watch: int) -> None:
        """End the watch of a directory, unless another tree needs the watch."""
        trees = self._trees_of.get(watch, [])
        if tree in trees:
            trees.remove(tree)
            if not trees:
                del self._trees_of[watch]
                if not self._is_closed:
                    self.inotify.remove(watch)

    def _dispatch(self, event: FileEvent) -> None:
        if event.mask & OVERFLOW:  # it has no watch: any tree may have lost events
            for tree in self.trees:
                tree.must_walk = True
            return
        for tree in tuple(self._trees_of.get(event.watch, ())):
            tree.handle(event)
        if event.mask & IGNORED:
            self._trees_of.pop(event.watch, None)

    def _on_readable(self) -> None:
        assert self._loop is not None
        # Reading at once would wake the loop for each event of a busy program. The pause gathers them.
        self._loop.remove_reader(self.inotify.fd)
        self._timer = self._loop.call_later(_PAUSE_SECONDS, self._read_slice)

    def _read_slice(self) -> None:
        assert self._loop is not None
        is_complete = self.lock.acquire(blocking=False)  # a thread may walk a tree: the loop must not wait for it
        if is_complete:
            try:
                is_complete = self.drain(_SLICE_SECONDS) and all(tree.advance(_SLICE_SECONDS) for tree in tuple(self.trees))
            finally:
                self.lock.release()
        if is_complete:
            self._loop.add_reader(self.inotify.fd, self._on_readable)
        else:
            self._timer = self._loop.call_later(_PAUSE_SECONDS, self._read_slice)


class WatchedTree:
    """The watched directories of a workspace, and the changed files. Links are not followed.

    Args:
        watcher: reports the changes.
        root: the workspace, which may be missing or be replaced.
        ignored: names of unwatched directories.
        is_ignored: whether files of a name in the root itself are left out.

    Raises:
        WatchRefused: the workspace has too many directories, or the user has no watches left.
    """

    def __init__(
        self, watcher: FileWatcher, root: Path, ignored: frozenset[str], is_ignored: Callable[[str], bool] = lambda _: False
    ) -> None:
        self.must_walk = False
        """Whether events were lost, or a directory was moved away, whose watches still have the old paths."""
        self.omitted = 0
        """The number of changes beyond ``CHANGES_MAX`` since the last look."""
        self.unnamed = 0
        """The number of changed files left out by the last looks, since their paths are too large together."""
        self.since = read_inode_clock()
        """The time of the last look, by the clock of inodes, in nanoseconds."""
        self._watcher = watcher
        self._root = str(root)
        self._ignored, self._is_ignored = ignored, is_ignored
        self._identity: tuple[int, int] | None = None
        self._paths: dict[int, str] = {}
        """The paths of the watched directories, relative to the root."""
        self._inodes: dict[int, int] = {}
        """The inodes of the watched directories: after moves a path may lead to another directory."""
        self._known: dict[int, str] = {}
        """The paths before a walk, empty without watches before. All files of other directories are new."""
        self._recent: dict[str, int] = {}
        """The inode times of files that were reported in the tick of the last look."""
        self._changed: dict[int, dict[str, bool]] = {}
        """The names of changed files in each directory. False after a mere close of a file for writing: the time decides."""
        self._change_count = self._entry_count = self._paths_bytes = 0
        self._pending: list[tuple[int, str, Report]] = []
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
        """Whether the next look is for a thread, since it takes too long for the event loop."""
        is_drained = self._watcher.drain(_SLICE_SECONDS) and self.advance(_SLICE_SECONDS)
        return not is_drained or self.must_walk or self._change_count > _QUICK_CHANGES

    def look(self) -> set[str]:
        """Return the paths of new or changed regular files since the last look.

        Raises:
            WatchRefused: see the class. Close the tree then.
        """
        # Read first: for the next walk, times from ``now`` on are new. ``_recent`` has such files that are reported already.
        now = read_inode_clock()
        self._watcher.drain()
        paths: set[str] = set()
        if self.must_walk or self._identity != self._read_identity():
            paths = self.take_changes(now)
            self._begin("new")
        self._advance_or_raise()
        paths |= self.take_changes(now)
        self.since = now
        self._recent = {path: changed_at for path, changed_at in self._recent.items() if changed_at >= now}
        return paths

    def take_changes(self, now: int) -> set[str]:
        """Return the changes known at an inode time, without a look for other changes."""
        paths: set[str] = set()
        room = PATHS_BYTES_MAX
        with self._watcher.lock:
            if self._changed:
                with suppress(OSError), closing_fd(open_top(self._root)) as top:
                    for watch, names in self._changed.items():
                        for path in self._check_files(watch, names, top, now):
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
            for watch in self._paths:
                self._watcher.remove(self, watch)

    def handle(self, event: FileEvent) -> None:
        """Handle an event. The watcher calls this with the lock."""
        watch, name, mask = event.watch, event.name, event.mask
        if mask & IGNORED:
            if (path := self._paths.pop(watch, None)) is not None:
                self._paths_bytes -= sys.getsizeof(path)
            self._forget(watch)
        elif not name:
            return
        elif mask & IS_DIRECTORY:
            if name not in self._ignored and not mask & DELETE:
                # A moved directory keeps its watch, and so do all below it, but their paths have changed.
                self.must_walk |= bool(mask & MOVED_FROM)
                self._pending.append((watch, name, "all" if mask & (MOVED_TO | CREATE) else "new"))
        elif mask & (DELETE | MOVED_FROM):
            names = self._changed.get(watch, {})
            self._change_count -= name in names
            names.pop(name, None)
        elif self._paths.get(watch) or not self._is_ignored(name):
            self._mark(watch, name, is_certain=not mask & CLOSE_WRITE)

    def advance(self, seconds: float | None = None) -> bool:
        """Watch new directories for at most ``seconds``; return whether all are watched."""
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
        """Watch the root and all directories below anew."""
        with self._watcher.lock:
            identity, former = self._read_identity(), self._paths
            self._known = former if self.must_walk and identity == self._identity else {}
            self.must_walk, self._identity, self._paths = False, identity, {}
            self._paths_bytes = self._entry_count = 0
            self._pending.clear()
            with suppress(OSError), closing_fd(open_top(self._root)) as fd:
                self._scan("", fd, report)
        try:
            self._advance_or_raise()
        finally:
            self._known = {}
            # Last: a directory that is still there keeps its watch without a gap.
            with self._watcher.lock:
                for watch in former.keys() - self._paths.keys():
                    self._watcher.remove(self, watch)
                    self._forget(watch)

    def _read_identity(self) -> tuple[int, int] | None:
        """Return the root's device and inode, or None if the root is missing."""
        try:
            status = os.stat(self._root, follow_symlinks=False)  # noqa: PTH116 - before every result
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _add_directory(self, parent: int, name: str, report: Report) -> None:
        """Watch a directory, and queue inner directories. A missing or unreadable directory is left out."""
        above = self._paths.get(parent)
        if above is None:
            return
        path = f"{above}/{name}" if above else name
        try:
            with closing_fd(open_top(self._root)) as top, closing_fd(_open_beneath(top, path, DIRECTORY)) as fd:
                self._scan(path, fd, report)
        except OSError as exc:
            if exc.errno in (errno.EMFILE, errno.ENFILE):
                self._refuse(exc.strerror)

    def _scan(self, path: str, fd: int, report: Report) -> None:
        if len(self._paths) >= DIRECTORIES_MAX or self._paths_bytes > PATHS_BYTES_MAX:
            self._refuse(f"it has more than {DIRECTORIES_MAX} directories, or their paths are too long together")
            return
        try:
            watch = self._watcher.add(self, fd)  # before the listing, so no entry is missed in between
        except OSError as exc:
            self._refuse(f"no watch is left, {exc.strerror}: fs.inotify.max_user_watches is the limit")
            return
        if watch in self._paths:
            return
        self._paths[watch] = path
        self._inodes[watch] = os.fstat(fd).st_ino
        self._paths_bytes += sys.getsizeof(path)
        if self._known and self._known.get(watch) != path:
            report = "all"
        with os.scandir(fd) as listing:
            for entry in listing:
                self._entry_count += 1
                if self._entry_count > ENTRIES_MAX:
                    self._refuse(f"it has more than {ENTRIES_MAX} files")
                    return
                if entry.is_dir(follow_symlinks=False):
                    if entry.name not in self._ignored:
                        self._pending.append((watch, entry.name, report))
                elif report == "all" or (report == "new" and self._is_new_entry(entry, path)):
                    self._mark(watch, entry.name)

    def _is_new_entry(self, entry: os.DirEntry[str], above: str) -> bool:
        with suppress(OSError):
            return self._is_new(entry.stat(follow_symlinks=False), f"{above}/{entry.name}" if above else entry.name)
        return False

    def _is_new(self, status: os.stat_result, path: str) -> bool:
        return status.st_ctime_ns >= self.since and self._recent.get(path) != status.st_ctime_ns

    def _forget(self, watch: int) -> None:
        self._inodes.pop(watch, None)
        self._change_count -= len(self._changed.pop(watch, ()))

    def _refuse(self, reason: str | None) -> None:
        self._refusal = WatchRefused(reason)
        self._pending.clear()

    def _mark(self, watch: int, name: str, *, is_certain: bool = True) -> None:
        names = self._changed.setdefault(watch, {})
        if name in names:
            names[name] |= is_certain
            return
        if self._change_count >= CHANGES_MAX:
            self.omitted += 1
            return
        self._change_count += 1
        names[name] = is_certain

    def _check_files(self, watch: int, names: dict[str, bool], top: int, now: int) -> Iterator[str]:
        """Yield the paths of a directory's present and changed files."""
        above = self._paths.get(watch)
        if above is None:
            return
        with suppress(OSError), closing_fd(_open_beneath(top, above or ".", WAY)) as fd:
            is_it = os.fstat(fd).st_ino == self._inodes[watch]
            for name, is_certain in names.items() if is_it else ():
                path = f"{above}/{name}" if above else name
                with suppress(OSError):
                    status = os.stat(name, dir_fd=fd, follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode) and (is_certain or self._is_new(status, path)):
                        if status.st_ctime_ns >= now:
                            self._recent[path] = status.st_ctime_ns
                        yield path


def _open_beneath(top: int, path: str, flags: int) -> int:
    return open_beneath(top, path, flags, across=True)


def read_inode_clock() -> int:
    """Return the present inode time in nanoseconds, as for a change now. This clock has ticks of some milliseconds."""
    try:
        return time.clock_gettime_ns(_COARSE_CLOCK)
    except (OSError, AttributeError):  # not on every Unix
        return time.time_ns() - _TICK_NS
