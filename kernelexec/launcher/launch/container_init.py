"""The first process of a container, which forks the kernel, and the next kernel once all processes of the last are gone.

``main`` connects to a socket of the owner, which sends ``InitRequest``s, and forks a kernel at once with the arguments and
environment of this process. The process reaps orphans and cannot be killed from within the container. Without an owner it ends
as the kernel ended, so the container has the kernel's status. Between two kernels the process removes the memory left by the
last kernel's processes: files in tmpfs, and System V objects.

There may be branches beside the kernel, forked from checkpoints. A branch has a mark and an end of its own: the end of the
kernel spares branches.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import socket
import stat
import sys
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import platform
from ..features import memory_monitor
from ..platform import prctl
from ..processes import proc
from ..protocol import KERNEL_MARK_VARIABLE, InitReport
from . import kernel_app
from .forkserver import ForkRequest, count_threads, detach, import_startup_modules

_MESSAGE_BYTES, _CONNECT_SECONDS = 256 * 1024, 5.0
#: The time limit for the end of all processes of the container, in seconds.
_SWEEP_SECONDS, _PAUSE_SECONDS, _DEATH_MILLISECONDS = 2.0, 0.001, 100
_INIT_PID, _SET_DUMPABLE, _SIGNALLED = 1, 4, 128
#: Signals for the kernel. After the first three this process ends with the kernel.
_FORWARDED_SIGNALS = (
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGINT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGRTMIN + 3,
)
_ENDING_SIGNALS = _FORWARDED_SIGNALS[:3]
_PROC = Path("/proc")
#: File systems in memory.
_KINDS = frozenset({"tmpfs", "mqueue"})
_WHOLE = "/"
#: Deeper directories are left and reported: only hostile code creates them.
_DEPTH_MAX = 200
_REMOVE_OBJECT = 0
#: The mode of all tmpfs mounts, the engine's own and the requested mounts.
_TMPFS_MODE = 0o1777


def main(arguments: list[str]) -> None:
    """Serve the owner's socket ``arguments[0]``. A forked process runs a kernel with the other arguments."""
    path, *kernel = arguments
    if os.getpid() != _INIT_PID:  # spawned by ``_fork_kernel``, with the same program
        kernel_app.main(kernel)
        return
    import_startup_modules()
    os.environ.pop(KERNEL_MARK_VARIABLE, None)  # the first environment still has it, for the marks of branches
    _ContainerInit(_connect(path)).serve(ForkRequest(kernel, dict(os.environ), str(Path.cwd()))).run()


def _connect(path: str) -> socket.socket | None:
    """Connect to the owner before any user code runs, or return None if no owner listens."""
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        channel.settimeout(_CONNECT_SECONDS)
        channel.connect(path)
    except OSError:
        channel.close()
        return None
    # No cell gets this descriptor: it is closed in each child, and this process cannot be read (``_protect``).
    channel.setblocking(True)  # noqa: FBT003 - the library's own signature
    return channel


@dataclass(slots=True)
class _Kernel:
    """The kernel or a branch. After the end ``pid`` is 0, while checkpoints and programs may live on."""

    pid: int = 0
    kills: int = 0
    """The number of processes of the container killed for want of memory before its start."""


class _ContainerInit:
    """The parent of a container's kernel, of later kernels and of branches; only a single kernel runs at a time."""

    def __init__(self, channel: socket.socket | None) -> None:
        self._channel = channel
        self._poll = select.poll()
        if channel is not None:
            self._poll.register(channel, select.POLLIN)
        self._group = memory_monitor.find_limited_cgroup()
        self._own = _Kernel()
        self._kernels = {"": self._own}
        """The kernel and the branches by their marks. The kernel's mark is empty."""
        self._ending = False
        self._before = _read_process_settings()
        gc.freeze()  # a collection in a child would copy the pages of all these objects
        _protect(on=True)
        # Linux drops signals without a handler for process 1, so each forwarded signal needs a handler.
        for signum in _FORWARDED_SIGNALS:
            signal.signal(signum, self._forward_signal)
        self._wakeup_fd, wakes = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._poll.register(self._wakeup_fd, select.POLLIN)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # the wake-up pipe reports it

    def serve(self, first: ForkRequest) -> ForkRequest:
        """Serve requests without end. Return the request in a forked child only."""
        request: ForkRequest | None = first
        while True:
            if request is not None and self._fork_kernel(request):
                return request
            request = None
            for fd, _ in self._poll.poll():
                if fd == self._wakeup_fd:
                    os.read(fd, _MESSAGE_BYTES)
                    self._reap()
                elif self._channel is not None:
                    request = self._handle_request(self._channel)

    def _fork_kernel(self, request: ForkRequest) -> bool:
        """Fork a kernel, or spawn a kernel if this process has threads. Return whether this is the forked child."""
        self._own.kills = self._read_kills()
        try:
            if count_threads() == 1:
                self._own.pid = os.fork()
            else:
                os.chdir(request.cwd)
                argv = [sys.executable, sys.argv[0], *request.arguments]
                signals = (*_FORWARDED_SIGNALS, signal.SIGCHLD)
                self._own.pid = os.posix_spawn(sys.executable, argv, request.environ, setsid=True, setsigdef=signals)
        except OSError as exc:
            self._send({"failed": exc.strerror})
            return False
        if self._own.pid:
            self._send({"born": self._own.pid})
            return False
        signal.set_wakeup_fd(-1)
        for signum in (*_FORWARDED_SIGNALS, signal.SIGCHLD):
            signal.signal(signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL)
        _protect(on=False)
        # The Python object must forget the number: ``detach`` closes it below, and the finalizer would close a new file.
        if self._channel is not None:
            self._channel.detach()
        detach()
        return True

    def _handle_request(self, channel: socket.socket) -> ForkRequest | None:
        """Handle a request of the owner. Return a request for a kernel, and None for other requests."""
        try:
            request: dict[str, Any] = json.loads(channel.recv(_MESSAGE_BYTES) or b"{}")
        except (OSError, ValueError):
            request = {}
        match request:
            case {"birth": {"arguments": list(arguments), "environ": dict(environ), "cwd": str(cwd)}} if not self._own.pid:
                return ForkRequest(arguments, environ, cwd)
            case {"adopt": int(pid), "mark": str(mark)} if mark or not self._own.pid:
                self._adopt(pid, mark)
            case {"end": list(spared), "mark": str(mark)}:
                processes = {pid for pid in spared if isinstance(pid, int)}
                self._end_branch(mark, processes) if mark else self._end_others(processes)
                self._send({"swept": True})
            case {"signal": int(signum), "mark": str(mark)}:
                self._signal(self._kernels.get(mark, _Kernel()).pid, signum)
            case {"sweep": list(directories), "spared": list(spared)}:
                # A branch may use the tmpfs and the System V objects, so they stay while there is any. The next
                # kernel would inherit settings of this process that a cell has changed: this is no clean start.
                self._send(
                    {
                        "swept": len(self._kernels) == 1
                        and self._kill_all()
                        and clear_tmpfs_and_ipc(directories, spared)
                        and self._before == _read_process_settings()
                    }
                )
            case _:  # the owner's end, or a request that does not fit the state
                self._disconnect()
        return None

    def _disconnect(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            self._poll.unregister(channel)
            channel.close()
        if not self._own.pid:
            os._exit(0)

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                status = os.waitstatus_to_exitcode(ended[1])
                for mark, kernel in self._kernels.items():
                    if ended[0] == kernel.pid:
                        self._report_end(mark, kernel, status)

    def _report_end(self, mark: str, kernel: _Kernel, status: int) -> None:
        """Report the end of the kernel or a branch. Without an owner, end as the kernel ended."""
        kernel.pid = 0
        if not mark and (self._channel is None or self._ending):
            os._exit(status if status >= 0 else _SIGNALLED - status)
        self._send({"ended": status, "mark": mark, "kills": self._read_kills() - kernel.kills})

    def _read_kills(self) -> int:
        """Return the number of processes killed for want of memory."""
        return self._group.read_kills() if self._group is not None else 0

    def _adopt(self, pid: int, mark: str) -> None:
        """Watch a kernel forked by a checkpoint, or with a ``mark`` a branch. This process is the new parent."""
        try:
            # Only a child can be waited for. WNOWAIT leaves the status of an ended child to ``_reap``.
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except OSError as exc:
            self._send({"failed": exc.strerror})
            return
        proc.give_oom_score(pid)
        kernel = self._kernels.setdefault(mark, _Kernel())
        kernel.pid, kernel.kills = pid, self._read_kills()
        self._send({"born": pid})
        self._reap()

    def _end_others(self, spared: set[int]) -> None:
        """Kill all processes except this process, branches and ``spared``. All are stopped meanwhile, so none forks."""
        deadline = time.monotonic() + _SWEEP_SECONDS
        with suppress(OSError):
            os.kill(-1, signal.SIGSTOP)  # -1 never means process 1 itself
        marks = [_entry(mark) for mark in self._kernels if mark]
        branches = {pid for pid in proc.read_processes() if any(proc.has_variable(pid, mark) for mark in marks)}
        spared = spared | branches | {_INIT_PID}
        while (others := _list_living() - spared) and time.monotonic() < deadline:
            for pid in others:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_PAUSE_SECONDS)  # as below
        self._await_end(self._own, deadline)
        for pid in spared - {_INIT_PID}:
            with suppress(OSError):
                os.kill(pid, signal.SIGCONT)

    def _end_branch(self, mark: str, spared: set[int]) -> None:
        """Kill the processes of a branch except ``spared``, its checkpoints. A branch without checkpoints is over."""
        branch, entry, deadline = self._kernels.get(mark, _Kernel()), _entry(mark), time.monotonic() + _SWEEP_SECONDS
        leader = branch.pid

        # By descent and by mark: a daemon leaves its parents and keeps the mark, ``env -i`` does the opposite.
        def find(table: Mapping[int, proc.ProcessStatus]) -> set[int]:
            family = proc.find_descendants(leader, table, session=leader) | {leader} if leader in table else set()
            return family | {pid for pid in table if proc.has_variable(pid, entry)}

        proc.kill_rounds(find, spared=spared, wait_milliseconds=_DEATH_MILLISECONDS)
        self._await_end(branch, deadline)  # before the branch is forgotten
        if not spared:
            self._kernels.pop(mark, None)

    def _await_end(self, kernel: _Kernel, deadline: float) -> None:
        """Report the end of a killed kernel, after the end of the last thread."""
        self._reap()
        while kernel.pid and time.monotonic() < deadline:
            time.sleep(_PAUSE_SECONDS)  # the poll that wakes up at the end of a child is the caller's
            self._reap()

    def _kill_all(self) -> bool:
        """Kill every other process; return whether none is left."""
        deadline = time.monotonic() + _SWEEP_SECONDS
        while sum(name.isdecimal() for name in os.listdir("/proc")) > 1:  # noqa: PTH208 - names only
            if time.monotonic() > deadline:
                return False
            with suppress(OSError):
                os.kill(-1, signal.SIGKILL)  # in each round: a fork may have been under way
            time.sleep(_PAUSE_SECONDS)  # the system reports no end of a process that is not a child
            self._reap()
        return True

    def _signal(self, pid: int, signum: int) -> None:
        if pid:
            with suppress(OSError, ValueError):
                os.kill(pid, signum)

    def _forward_signal(self, signum: int, _frame: object) -> None:
        self._ending |= signum in _ENDING_SIGNALS
        if self._ending and not self._own.pid:
            os._exit(_SIGNALLED + signum)
        self._signal(self._own.pid, signum)

    def _send(self, message: InitReport) -> None:
        if self._channel is not None:
            with suppress(OSError):  # the poll reports the end of the owner
                self._channel.send(json.dumps(message).encode())


def _entry(mark: str) -> bytes:
    return f"{KERNEL_MARK_VARIABLE}={mark}".encode()


def _read_process_settings() -> object:
    """Return the devices, and all attributes of this process that cells can change and later kernels would inherit."""
    try:
        resource = platform.resource
        limits = [resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")]
        rank = os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), os.sched_getaffinity(0)
        return limits, rank, Path("/proc/self/oom_score_adj").read_text(), sorted(os.listdir("/dev"))  # noqa: PTH208 - names only
    except OSError:
        return object()  # differs from all other settings


def _protect(*, on: bool) -> None:
    """Keep other processes of this user from reading or changing this process (prctl(2): PR_SET_DUMPABLE)."""
    with suppress(OSError, AttributeError):
        prctl(_SET_DUMPABLE, int(not on))


def _list_living() -> set[int]:
    """Return all living processes. Ended processes of stopped parents stay in the table."""
    return {pid for pid, status in proc.read_processes().items() if not status.has_ended}


def clear_tmpfs_and_ipc(directories: Iterable[str], spared: Collection[int]) -> bool:
    """Remove all System V objects and the content of tmpfs directories; return whether nothing is left.

    No other process may run meanwhile. Mounts in the directories stay, with the directories above them. A directory without a
    mount from memory, or on a ``spared`` device (``st_dev``), is not changed and counts as left.
    """
    _clear_objects()
    mounts = _read_mounts()
    real = [os.path.realpath(path) for path in directories]
    if not all(mounts.get(path) in _KINDS and Path(path).stat().st_dev not in spared for path in real):
        return False
    cleared = [_clear_mount(path) for path in real]
    return all(cleared)


def _read_mounts() -> dict[str, str]:
    """Return the file system type of each mount point, empty for mounts of a part of a file system.

    Of several mounts at a path the visible mount counts.
    """
    kinds = {}
    for line in (_PROC / "self/mountinfo").read_text("utf-8", "surrogateescape").splitlines():
        before, _, after = line.partition(" - ")
        _, _, _, root, path, *_ = before.split(" ")
        for code in ("\\040", "\\011", "\\012", "\\134"):  # the backslash last, so that no text is replaced twice
            path = path.replace(code, chr(int(code[1:], 8)))
        kinds[path] = after.split(" ")[0] if root == _WHOLE else ""  # the visible mount of a path is last
    return kinds


def _clear_mount(path: str) -> bool:
    """Remove the content of a tmpfs and reset a changed mode. Return whether both succeeded.

    The directory may belong to root, so the mode is set only if a cell changed it.
    """
    try:
        info = Path(path).stat()
        if stat.S_IMODE(info.st_mode) != _TMPFS_MODE:
            Path(path).chmod(_TMPFS_MODE)
    except OSError:
        return False
    return _clear_directory(path, info.st_dev)


def _clear_directory(path: str, device: int, depth: int = 0) -> bool:
    """Remove the entries of a directory on ``device``; return whether all were removed."""
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
