"""Imports once what kernels need, and forks a kernel on request: it shares what was read, and nothing that can be written.

``main`` serves the other end of a socket, which it got from its owner, and ends with it. A request is one message with two
descriptors: a file with the rest of it, and the kernel's stderr. The answer, the forked process's own, brings it as a
descriptor; another message, later, how it ended. So once nobody can send any more, the owner has heard of all that were forked.
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
from typing import Any

from ..processes.tree import KERNEL_MARK
from .fork_child import Birth, fill_gaps, import_late, part, threads

_MARK_CHARS = 32
_MESSAGE_BYTES, _REASON_CHARS = 64 * 1024, 300
#: How long nobody has asked for a kernel when it imports something that users may want; and how long it minds that, in seconds.
_IDLE_MILLISECONDS, _MINDFUL_SECONDS = 200, 3.0
#: Set while something is imported that looks for it then; a kernel sets the same.
_BACKEND = ("MPLBACKEND", "module://matplotlib_inline.backend_inline")


def main(arguments: list[str]) -> None:
    """Serve until the owner is gone; a forked process comes to be a kernel here."""
    channel = socket.socket(fileno=int(arguments[0]))
    mark = _Mark.here()
    os.environ.setdefault(*_BACKEND)
    import_late()
    count = _settle()
    _say(channel, {"serves": count == 1, "threads": count})
    if count != 1:
        os._exit(1)
    _Server(channel, arguments[1:], mark).serve().become()


class _Server:
    """Forks, and waits for those that it forked: nobody else can. While nobody asks, it imports what users will."""

    def __init__(self, channel: socket.socket, modules: Iterable[str], mark: _Mark) -> None:
        self._channel = channel
        self._mark = mark
        self._modules = deque(modules)
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)
        self._born: dict[int, tuple[int, int]] = {}

    def serve(self) -> Birth:
        """Returns in a child only."""
        mindful = monotonic() + _MINDFUL_SECONDS
        while True:
            found = self._poll.poll(_IDLE_MILLISECONDS if self._modules else None)
            for fd, _ in found:
                if fd != self._channel.fileno():
                    self._bury(fd)
                elif (birth := self._answer()) is not None:
                    return birth
            if self._modules and (not found or monotonic() > mindful):
                self._import(self._modules.popleft())

    def _answer(self) -> Birth | None:
        """Fork if that is asked; what the child is to be, in the child."""
        try:
            said, fds, _, _ = socket.recv_fds(self._channel, _MESSAGE_BYTES, 2)
        except InterruptedError:
            return None
        if not said:
            os._exit(0)
        number = json.loads(said)["request"]
        file, stderr = fds
        try:
            with os.fdopen(file, "rb") as told:
                birth = Birth(**json.load(told))
            pid = os.fork()
        except (OSError, ValueError) as exc:
            _say(self._channel, {"request": number, "failed": str(exc)})
            os.close(stderr)
            return None
        if pid == 0:
            self._mark.change(birth.environ.get(KERNEL_MARK, ""))
            _say(self._channel, {"request": number, "pid": os.getpid()}, os.pidfd_open(os.getpid()))
            self._channel.detach()
            _have(stderr)
            part()
            return birth
        os.close(stderr)
        fd = os.pidfd_open(pid)
        self._born[fd] = number, pid
        self._poll.register(fd, select.POLLIN)
        return None

    def _bury(self, fd: int) -> None:
        """Tell how one of them ended."""
        number, pid = self._born.pop(fd)
        self._poll.unregister(fd)
        os.close(fd)
        _, status = os.waitpid(pid, 0)
        _say(self._channel, {"request": number, "ended": os.waitstatus_to_exitcode(status)})

    def _import(self, name: str) -> None:
        """Import a module; where it is not there, or fails, that is left to the kernels that want it.

        One that has threads is the end of this process: they do not survive a fork.
        """
        said: dict[str, Any] = {"imported": name}
        try:
            importlib.import_module(name)
        except BaseException as exc:
            said["failed"] = f"{type(exc).__name__}: {exc}"[:_REASON_CHARS]
        count = _settle()
        _say(self._channel, {**said, "threads": count})
        if count != 1:
            os._exit(0)


class _Mark:
    """The mark in this process's first environment, which other processes read: a forked one changes its own copy of it."""

    def __init__(self, address: int | None) -> None:
        self._address = address

    @classmethod
    def here(cls) -> _Mark:
        """Where it is; to be called before anything changes the environment."""
        prefix = f"{KERNEL_MARK}=".encode()
        entries = ctypes.POINTER(ctypes.c_void_p).in_dll(ctypes.CDLL(None), "environ")
        index = 0
        while (address := entries[index]) is not None:
            entry = ctypes.string_at(address)
            if entry.startswith(prefix) and len(entry) == len(prefix) + _MARK_CHARS:
                return cls(address + len(prefix))
            index += 1
        return cls(None)

    def change(self, value: str) -> None:
        """Be another one's."""
        if self._address is not None and len(value) == _MARK_CHARS and value.isascii():
            ctypes.memmove(self._address, value.encode(), _MARK_CHARS)


def _settle() -> int:
    """Be ready to be copied; how many threads there are then.

    OpenBLAS has threads from its import on, ends them at a fork, and starts them when they are needed: so one is forked first.
    """
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    gc.collect()
    fill_gaps()
    gc.freeze()
    return threads()


def _have(stderr: int) -> None:
    """Have nothing to read, and that to complain to."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd, own in ((null, 0), (null, 1), (stderr, 2)):
        os.dup2(fd, own)


def _say(channel: socket.socket, message: dict[str, Any], *fds: int) -> None:
    try:
        socket.send_fds(channel, [json.dumps(message).encode()], fds)
    except OSError:  # the owner is gone
        os._exit(0)
