"""The checkpoints of a kernel, on the kernel's side: the kernel forks, and the child waits."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import random
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from ..features.memory_monitor import CGroup, find_limited_cgroup
from ..platform import fork
from ..processes import proc, tree
from ..processes.cell_processes import hide_own_children
from ..processes.shell_session import MovedDirectories
from ..processes.tree import replace_mark
from ..protocol import (
    CHECKPOINT_SOCKET,
    DROP_REQUEST,
    KERNEL_MARK_VARIABLE,
    CheckpointEntry,
    CopyTarget,
    LaunchOptions,
    Obstacle,
)
from .costs import AutomaticCheckpoints, MemoryCosts, find_excess
from .fork_safety import NAMES_MAX, end_pools, find_native_threads, find_obstacles
from .shared_state import OpenFiles, OwnDescriptors, SharedMemory, SharedState, close_loop, list_watched, renew_loop
from .stopped_copy import StoppedCopy, bind


class Checkpoints:
    """The checkpoints of this kernel. All methods run in the thread of cells, between two cells.

    A copy of this process has only the forking thread. There ``leave`` closes the descriptors of objects: an object collected
    later would close a newer descriptor of the same number. ``resume`` makes the copy a kernel again.
    """

    def __init__(
        self,
        options: LaunchOptions,
        descriptors: OwnDescriptors,
        leave: Callable[[MovedDirectories], Any],
        resume: Callable[[LaunchOptions], Any],
        own_threads: Callable[[], Iterable[threading.Thread]],
    ) -> None:
        self._descriptors = descriptors
        self._leave, self._resume = leave, resume
        self._own_threads = own_threads
        self._last_cell = ""
        self._automatic = AutomaticCheckpoints((options.checkpoints or {}).get("mode"))
        self._begin(options, 0)

    @cached_property
    def _group(self) -> CGroup | None:
        """The control group of this kernel and its copies, looked up for the first checkpoint."""
        return find_limited_cgroup()

    def _begin(self, options: LaunchOptions, number: int) -> None:
        """Begin in a new kernel, or in a kernel forked from checkpoint ``number``: other checkpoints are not its children."""
        settings = options.checkpoints or {}
        self._options, self._number = options, max(number, int(settings.get("after", 0)))
        self._entries: dict[int, CheckpointEntry] = {}
        self._requested = set(settings.get("requested", ()))
        self._earlier = {int(number): int(pid) for number, pid in settings.get("processes", {}).items()}
        """The processes of checkpoints that earlier kernels have made."""
        self._costs, self._killed, self._obstacles = MemoryCosts(), 0, list[Obstacle]()
        tree.own_children.clear()

    def after_cell(
        self, code: str, recorded_id: str | None, take: Callable[[], Any], report_obstacles: Callable[[list[Obstacle]], None]
    ) -> None:
        """Schedule ``take`` for after the reply of a cell, if a checkpoint is to follow the cell.

        Obstacles are reported when they have changed. A cell in the records has a ``recorded_id``.
        """
        self._last_cell = recorded_id or self._last_cell
        if self._options.checkpoints is not None and self._automatic.wants(code, time.monotonic()):
            asyncio.get_running_loop().call_soon(self._take_automatically, take, report_obstacles)

    def _take_automatically(self, take: Callable[[], Any], report_obstacles: Callable[[list[Obstacle]], None]) -> None:
        begun = time.monotonic()
        taken: CheckpointEntry | list[Obstacle] = take()
        if not isinstance(taken, list) and not taken["pid"]:  # this is a kernel that goes on from the checkpoint
            return
        self._automatic.note_cost(time.monotonic() - begun)
        obstacles = taken if isinstance(taken, list) else []
        if obstacles != self._obstacles:
            self._obstacles = obstacles
            report_obstacles(obstacles)

    def take(
        self,
        name: str | None,
        execution_count: int,
        own_tasks: Iterable[Any],
        target: CopyTarget | None = None,
        *,
        is_automatic: bool = False,
    ) -> CheckpointEntry | list[Obstacle]:
        """Make a checkpoint, for another kernel if there is a ``target``; return its description, or the obstacles."""
        settings, owner = self._options.checkpoints, self._options.owner
        if settings is None or owner is None:
            return _limit("this kernel makes none")
        self.reap()
        for number in self._costs.take_excess(self._requested, int(settings["memory_bytes"])):
            self._drop(number)
        is_own = target is None
        if target is None:
            directory, number = str(settings["directory"]), self._number + 1
            target = CopyTarget(directory=directory, number=number, owner=owner, mark=None, moves=[])
        entry = CheckpointEntry(
            number=target["number"],
            name=name,
            is_automatic=is_automatic,
            cell=execution_count,
            after=self._last_cell,
            seconds=0.0,
            pid=0,
        )
        if obstacles := self._copy_safely(target, entry, own_tasks):
            return obstacles
        if not entry["pid"] or not is_own:  # this is a kernel that goes on from the checkpoint, or it is another's
            return entry
        for older in self._entries.values():  # children that were not waited for
            proc.set_oom_score(older["pid"], proc.HIGHEST_OOM_SCORE)
        self._number = entry["number"]
        self._entries[self._number] = entry
        if not is_automatic:
            self._requested.add(self._number)
        numbers = self._list()
        for number in find_excess(numbers, self._requested, int(settings["limit"])):
            self._drop(number)
            numbers.remove(number)
        processes = self._earlier | {number: entry["pid"] for number, entry in self._entries.items()}
        self._costs.measure({number: processes[number] for number in numbers & processes.keys()})
        return entry

    def _copy_safely(self, target: CopyTarget, entry: CheckpointEntry, own_tasks: Iterable[Any]) -> list[Obstacle]:
        """Fork the process of a checkpoint if there are no obstacles; return the obstacles."""
        own = self._descriptors.list()
        files = OpenFiles(own)
        if obstacles := find_obstacles(self._own_threads(), own_tasks, own, files):
            return obstacles
        memory = SharedMemory()
        if memory.excess_bytes:
            return _limit(f"{memory.excess_bytes >> 20} MiB of memory are shared with other processes")
        hide_own_children()
        return self._fork_without_threads(target, entry, SharedState(files, memory))

    def _fork_without_threads(self, target: CopyTarget, entry: CheckpointEntry, shared: SharedState) -> list[Obstacle]:
        """Fork, and once more after ending threads of C code where possible; return the obstacles."""
        path = _path(target["directory"], target["number"])
        for is_first in (True, False):
            try:
                self._fork(target, entry, shared)
            except OSError as exc:
                if exc.errno != errno.EADDRINUSE:  # else it is another one's
                    path.unlink(missing_ok=True)
                return _limit(str(exc))
            # Without a process id this is a kernel forked from the checkpoint, which has returned from `_fork` too.
            if not entry["pid"] or not (threads := find_native_threads()):
                return []
            self._end(entry["pid"], path)
            if not (is_first and end_pools(threads)):
                break
        return [{"kind": "native threads", "names": sorted(set(map(str, threads)))[:NAMES_MAX]}]

    def _fork(self, target: CopyTarget, entry: CheckpointEntry, shared: SharedState) -> None:
        """Fork the process of a checkpoint; return in this process, and later in each kernel forked from the checkpoint."""
        loop, task, state = asyncio.get_running_loop(), asyncio.current_task(), random.getstate()
        on_term = signal.getsignal(signal.SIGTERM)
        timers = [(each, *signal.getitimer(each)) for each in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)]
        begun = time.perf_counter()
        score = proc.choose_checkpoint_score(None if self._group is None else self._group.read_limit())
        with bind(str(_path(target["directory"], target["number"]))) as listener:
            with proc.raise_oom_score_for_copy(score):
                if target["mark"] is None:
                    pid = int(fork())
                else:  # it is no child of this kernel
                    with tree.leave_orphans():
                        pid = tree.fork_orphan()
            if pid:
                entry["pid"], entry["seconds"] = pid, time.perf_counter() - begun
                if target["mark"] is None:
                    tree.own_children.add(pid)
                return
            try:
                random.setstate(state)  # Python has chosen others in the child
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # what is closed here is no mistake, and user code may want errors
                    proc.set_oom_score(os.getpid(), score)
                    self._wait(listener, target, entry, shared, loop, task)
            except BaseException:  # it must not unwind into the caller, or the copy would go on as a second kernel
                with suppress(BaseException):  # nobody may read it by now
                    traceback.print_exc(file=sys.__stderr__)
                os._exit(1)
        if on_term is not None:
            signal.signal(signal.SIGTERM, on_term)
        for timer in timers:  # a fork has none
            signal.setitimer(*timer)

    def _wait(
        self,
        listener: socket.socket,
        target: CopyTarget,
        entry: CheckpointEntry,
        shared: SharedState,
        loop: Any,
        task: asyncio.Task[Any] | None,
    ) -> None:
        """Wait as a checkpoint, without a running loop. Return only in a fork of this process, as a kernel."""
        collects_garbage = gc.isenabled()
        gc.disable()  # a collection would write to shared memory; frozen objects would stay in kernels that go on from here
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, signal.SIG_IGN if signum == signal.SIGINT else signal.SIG_DFL)
        os.setsid()
        grace_seconds = self._options.grace_seconds
        if (mark := target["mark"]) is not None:
            grace_seconds = 0.0  # no later owner takes it over
            replace_mark(mark)
            os.environ[KERNEL_MARK_VARIABLE] = mark
        _silence()
        # Order: list while the selector is open, close the loop and the objects, then all own descriptors that are left.
        watched = list_watched(loop, self._descriptors.list())
        close_loop(loop)
        moved = MovedDirectories(target["moves"])
        self._leave(moved)
        self._descriptors.close()
        shared.files.separate()
        options = StoppedCopy(listener, target["owner"], grace_seconds, entry).wait()
        # From now on they are not those of the checkpoint. A promoted branch's files are in their new places only now.
        shared.files.separate(moved.translate)
        shared.memory.separate()
        self._begin(options, entry["number"])
        with self._descriptors.count_opened():
            renew_loop(loop, task, watched)
        self._resume(options)
        if collects_garbage:
            gc.enable()

    def _list(self) -> set[int]:
        """Return the numbers of all checkpoints of the session, earlier kernels' included, by their sockets."""
        names = (path.name.removeprefix(CHECKPOINT_SOCKET) for path in self._path(0).parent.glob(f"{CHECKPOINT_SOCKET}*"))
        return {int(name) for name in names if name.isdecimal()}

    def _drop(self, number: int) -> None:
        """End a checkpoint of this process or of an earlier kernel."""
        path, entry = self._path(number), self._entries.pop(number, None)
        if entry is not None:
            self._end(entry["pid"], path)
            return
        # Not a child of this process, so its id may be another process's by now: it is asked to end by its socket.
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as connection:
            connection.connect(str(path))
            connection.send(DROP_REQUEST)
        path.unlink(missing_ok=True)

    def count_killed(self) -> int:
        """Return how many checkpoints of this kernel were killed from outside so far."""
        self.reap()
        return self._killed

    def reap(self) -> None:
        """Reap and forget ended checkpoints, and remove their sockets."""
        for number, entry in list(self._entries.items()):
            with suppress(ChildProcessError):
                pid, status = os.waitpid(entry["pid"], os.WNOHANG)
                if pid == 0:
                    continue
                self._killed += os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
            tree.own_children.discard(entry["pid"])
            self._entries.pop(number, None)
            self._path(number).unlink(missing_ok=True)

    def _path(self, number: int) -> Path:
        return _path((self._options.checkpoints or {})["directory"], number)

    def _end(self, pid: int, path: Path) -> None:
        path.unlink(missing_ok=True)
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)  # a child that was not waited for, so its id is its own
            os.waitpid(pid, 0)
        tree.own_children.discard(pid)


def _path(directory: str, number: int) -> Path:
    return Path(directory) / f"{CHECKPOINT_SOCKET}{number}"


def _limit(reason: str) -> list[Obstacle]:
    return [{"kind": "limit", "names": [reason]}]


def _silence() -> None:
    """Redirect the standard descriptors, which are the kernel's captured ones, to the null device."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for target in (0, 1, 2):
        os.dup2(null, target)
    os.close(null)
