"""The fork server: it imports once the modules that kernels need, and forks a kernel on request.

``main`` serves the owner's end of a socket and ends with it. A request is one message with two descriptors: a file with a
``Fork``, and the kernel's stderr. The forked process itself answers with its pidfd; a later message reports its end. So the
owner knows of every forked process once the socket has no sender left.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import select
import socket
from collections import deque
from collections.abc import Iterable
from time import monotonic

from ..protocol import KERNEL_MARK_VARIABLE, ForkServerReport
from .fork_child import ForkRequest, count_threads, detach, import_startup_modules

_MARK_CHARS = 32
_MESSAGE_BYTES, _REASON_CHARS = 64 * 1024, 300
#: Idle time before the next module is imported; after the second time modules are imported between requests too.
_IDLE_MILLISECONDS, _IDLE_ONLY_SECONDS = 200, 3.0
#: Set during imports that read it then; a kernel sets the same.
_BACKEND = ("MPLBACKEND", "module://matplotlib_inline.backend_inline")


def main(arguments: list[str]) -> None:
    """Serve until the owner has gone; a forked process runs a kernel here."""
    channel = socket.socket(fileno=int(arguments[0]))
    mark = _KernelMark.find()
    os.environ.setdefault(*_BACKEND)
    import_startup_modules()
    count = _prepare_fork()
    _send(channel, {"serves": count == 1, "threads": count})
    if count != 1:
        os._exit(1)
    _Server(channel, arguments[1:], mark).serve().run()


class _Server:
    """Forks kernels and waits for their ends. Between requests it imports the modules that users may want."""

    def __init__(self, channel: socket.socket, modules: Iterable[str], mark: _KernelMark) -> None:
        self._channel = channel
        self._mark = mark
        self._modules = deque(modules)
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)
        self._kernels: dict[int, tuple[int, int]] = {}

    def serve(self) -> ForkRequest:
        """Serve requests; return in a forked child only."""
        idle_until = monotonic() + _IDLE_ONLY_SECONDS
        while True:
            ready = self._poll.poll(_IDLE_MILLISECONDS if self._modules else None)
            for fd, _ in ready:
                if fd != self._channel.fileno():
                    self._report_end(fd)
                elif (request := self._handle_request()) is not None:
                    return request
            if self._modules and (not ready or monotonic() > idle_until):
                self._import(self._modules.popleft())

    def _handle_request(self) -> ForkRequest | None:
        """Answer a request; return it in the forked child only."""
        try:
            message, fds, _, _ = socket.recv_fds(self._channel, _MESSAGE_BYTES, 2)
        except InterruptedError:
            return None
        if not message:
            os._exit(0)
        number = json.loads(message)["request"]
        file, stderr = fds
        try:
            with os.fdopen(file, "rb") as content:
                request = ForkRequest(**json.load(content))
            pid = os.fork()
        except (OSError, ValueError) as exc:
            _send(self._channel, {"request": number, "failed": str(exc)})
            os.close(stderr)
            return None
        if pid == 0:
            self._mark.write(request.environ.get(KERNEL_MARK_VARIABLE, ""))
            _send(self._channel, {"request": number, "pid": os.getpid()}, os.pidfd_open(os.getpid()))
            self._channel.detach()
            _redirect_streams(stderr)
            detach()
            return request
        os.close(stderr)
        fd = os.pidfd_open(pid)
        self._kernels[fd] = number, pid
        self._poll.register(fd, select.POLLIN)
        return None

    def _report_end(self, fd: int) -> None:
        """Report the end of a kernel."""
        number, pid = self._kernels.pop(fd)
        self._poll.unregister(fd)
        os.close(fd)
        _, status = os.waitpid(pid, 0)
        _send(self._channel, {"request": number, "ended": os.waitstatus_to_exitcode(status)})

    def _import(self, name: str) -> None:
        """Import a module, and report a failure.

        A module that starts threads ends this process: they do not survive a fork.
        """
        report: ForkServerReport = {"imported": name}
        try:
            importlib.import_module(name)
        except BaseException as exc:
            report["failed"] = f"{type(exc).__name__}: {exc}"[:_REASON_CHARS]
        count = _prepare_fork()
        _send(self._channel, {**report, "threads": count})
        if count != 1:
            os._exit(0)


class _KernelMark:
    """The kernel mark in this process's first environment, which other processes read; a forked child changes its copy."""

    def __init__(self, address: int | None) -> None:
        self._address = address

    @classmethod
    def find(cls) -> _KernelMark:
        """Find the mark; must be called before the environment changes."""
        prefix = f"{KERNEL_MARK_VARIABLE}=".encode()
        entries = ctypes.POINTER(ctypes.c_void_p).in_dll(ctypes.CDLL(None), "environ")
        index = 0
        while (address := entries[index]) is not None:
            entry = ctypes.string_at(address)
            if entry.startswith(prefix) and len(entry) == len(prefix) + _MARK_CHARS:
                return cls(address + len(prefix))
            index += 1
        return cls(None)

    def write(self, value: str) -> None:
        """Write the mark of another kernel."""
        if self._address is not None and len(value) == _MARK_CHARS and value.isascii():
            ctypes.memmove(self._address, value.encode(), _MARK_CHARS)


def _prepare_fork() -> int:
    """Prepare for forks; return the number of threads.

    OpenBLAS has threads from its import on, ends them at a fork and starts them again on demand: so one child is forked first.
    """
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    gc.collect()
    gc.freeze()
    return count_threads()


def _redirect_streams(stderr: int) -> None:
    """Redirect stdin and stdout to /dev/null, and stderr to a descriptor."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd, target in ((null, 0), (null, 1), (stderr, 2)):
        os.dup2(fd, target)


def _send(channel: socket.socket, message: ForkServerReport, *fds: int) -> None:
    try:
        socket.send_fds(channel, [json.dumps(message).encode()], fds)
    except OSError:  # the owner is gone
        os._exit(0)
