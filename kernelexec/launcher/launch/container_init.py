"""The first process of a container: it forks the kernel, and another one once no process of the last one is left.

``main`` connects to a socket of its owner, which sends ``InitRequest``s, and forks a kernel of its own arguments and
environment at once. It reaps orphans and cannot be killed from within the container. Without an owner it ends as its kernel
ended, so the container's status is the kernel's.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from .. import platform
from ..features import memory_monitor
from ..libc import prctl
from ..processes.tmpfs_cleanup import clear_tmpfs_and_ipc
from ..protocol import InitReport
from . import app
from .fork_child import ForkRequest, count_threads, detach, import_startup_modules

_MESSAGE_BYTES, _CONNECT_SECONDS = 256 * 1024, 5.0
#: Seconds that all processes of the container may take to end.
_SWEEP_SECONDS, _PAUSE_SECONDS = 2.0, 0.001
_FIRST, _SET_DUMPABLE, _SIGNALLED = 1, 4, 128
#: Signals that are passed on to the kernel; after one of the first three this process ends with the kernel.
_HANDED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGRTMIN + 3)
_ENDING = _HANDED_ON[:3]


def main(arguments: list[str]) -> None:
    """Serve the process that listens at ``arguments[0]``; a forked process runs a kernel of the other arguments."""
    path, *kernel = arguments
    if os.getpid() != _FIRST:
        app.main(kernel)
        return
    import_startup_modules()
    _ContainerInit(_channel(path)).serve(ForkRequest(kernel, dict(os.environ), str(Path.cwd()))).run()


def _channel(path: str) -> socket.socket | None:
    """Connect to the owner, before any user code runs; None if it does not listen."""
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        channel.settimeout(_CONNECT_SECONDS)
        channel.connect(path)
    except OSError:
        channel.close()
        return None
    channel.setblocking(True)  # noqa: FBT003 - the library's own signature
    return channel


class _ContainerInit:
    """Starts one kernel at a time and waits for its end."""

    def __init__(self, channel: socket.socket | None) -> None:
        self._channel = channel
        self._poll = select.poll()
        if channel is not None:
            self._poll.register(channel, select.POLLIN)
        self._group = memory_monitor.find_limited_cgroup()
        self._kills = self._pid = 0
        self._ending = False
        self._before = _settings()
        gc.freeze()
        _be_untouchable(on=True)
        for signum in _HANDED_ON:
            signal.signal(signum, self._hand_on)
        self._woken, wakes = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._poll.register(self._woken, select.POLLIN)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # the pipe tells of it

    def serve(self, birth: ForkRequest) -> ForkRequest:
        """Serve requests; return in a forked child only, with its request."""
        wanted: ForkRequest | None = birth
        while True:
            if wanted is not None and self._start(wanted):
                return wanted
            wanted = None
            for fd, _ in self._poll.poll():
                if fd == self._woken:
                    os.read(fd, _MESSAGE_BYTES)
                    self._reap()
                elif self._channel is not None:
                    wanted = self._hear(self._channel)

    def _start(self, birth: ForkRequest) -> bool:
        """Fork a kernel, or start it anew if this process has threads; return whether this is the forked child."""
        self._kills = self._group.kills() if self._group is not None else 0
        try:
            self._pid = os.fork() if count_threads() == 1 else _spawned(birth)
        except OSError as exc:
            self._say({"failed": exc.strerror})
            return False
        if self._pid:
            self._say({"born": self._pid})
            return False
        signal.set_wakeup_fd(-1)
        for signum in (*_HANDED_ON, signal.SIGCHLD):
            signal.signal(signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL)
        _be_untouchable(on=False)
        if self._channel is not None:
            self._channel.detach()
        detach()
        return True

    def _hear(self, channel: socket.socket) -> ForkRequest | None:
        """Handle a request of the owner; return a request for a kernel."""
        try:
            request: dict[str, Any] = json.loads(channel.recv(_MESSAGE_BYTES) or b"{}")
        except (OSError, ValueError):
            request = {}
        match request:
            case {"birth": {"arguments": list(arguments), "environ": dict(environ), "cwd": str(cwd)}} if not self._pid:
                return ForkRequest(arguments, environ, cwd)
            case {"signal": int(signum)}:
                self._signal(signum)
            case {"sweep": list(directories), "spared": list(spared)}:
                self._say({"swept": self._sweep() and clear_tmpfs_and_ipc(directories, spared) and self._before == _settings()})
            case _:
                self._part_from_owner()
        return None

    def _part_from_owner(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            self._poll.unregister(channel)
            channel.close()
        if not self._pid:
            os._exit(0)

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._pid:
                    self._bury(os.waitstatus_to_exitcode(ended[1]))

    def _bury(self, status: int) -> None:
        """Report the kernel's end, or end like it."""
        self._pid = 0
        if self._channel is None or self._ending:
            os._exit(status if status >= 0 else _SIGNALLED - status)
        kills = self._group.kills() - self._kills if self._group is not None else 0
        self._say({"ended": status, "kills": kills})

    def _sweep(self) -> bool:
        """Kill every other process; return whether none is left."""
        deadline = time.monotonic() + _SWEEP_SECONDS
        while _others():
            if time.monotonic() > deadline:
                return False
            with suppress(OSError):
                os.kill(-1, signal.SIGKILL)
            time.sleep(_PAUSE_SECONDS)  # nobody is told of the end of processes that are not their own children
            self._reap()
        return True

    def _signal(self, signum: int) -> None:
        if self._pid:
            with suppress(OSError, ValueError):
                os.kill(self._pid, signum)

    def _hand_on(self, signum: int, _frame: object) -> None:
        self._ending |= signum in _ENDING
        if self._ending and not self._pid:
            os._exit(_SIGNALLED + signum)
        self._signal(signum)

    def _say(self, message: InitReport) -> None:
        if self._channel is not None:
            with suppress(OSError):  # that the owner is gone is heard
                self._channel.send(json.dumps(message).encode())


def _spawned(birth: ForkRequest) -> int:
    os.chdir(birth.cwd)
    argv = [sys.executable, sys.argv[0], *birth.arguments]
    return os.posix_spawn(sys.executable, argv, birth.environ, setsid=True, setsigdef=(*_HANDED_ON, signal.SIGCHLD))


def _others() -> bool:
    """Return whether there is any other process in the container."""
    return sum(name.isdecimal() for name in os.listdir("/proc")) > 1  # noqa: PTH208 - names only


def _settings() -> object:
    """Return attributes of this process that other processes can change and kernels would inherit, and the devices."""
    try:
        resource = platform.resource
        limits = [resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")]
        rank = os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), os.sched_getaffinity(0)
        return limits, rank, Path("/proc/self/oom_score_adj").read_text(), sorted(os.listdir("/dev"))  # noqa: PTH208 - names only
    except OSError:
        return object()  # like no other


def _be_untouchable(*, on: bool) -> None:
    """Keep other processes of this user from reading or changing this one (prctl(2): PR_SET_DUMPABLE)."""
    with suppress(OSError, AttributeError):
        prctl(_SET_DUMPABLE, int(not on))
