"""The process of a checkpoint: a waiting copy of the kernel, which forks kernels on the owner's request."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import socket
import sys
from contextlib import suppress
from typing import Any

from ..owner import OwnerPipe
from ..processes.tree import fork_orphan
from ..protocol import CheckpointEntry, CheckpointReport, LaunchOptions

_MESSAGE_BYTES = 96 * 1024
_BACKLOG = 4


def bind(path: str) -> socket.socket:
    """Return a socket bound to a new path of the private directory; only the copy listens there."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(path)
    except OSError:
        listener.close()
        raise
    return listener


class StoppedCopy:
    """This process, a fork of the kernel. The end comes with the owner's, on a drop request, or by the kernel's SIGKILL."""

    def __init__(self, listener: socket.socket, owner: str, grace_seconds: float, entry: CheckpointEntry) -> None:
        self._listener = listener
        # Not before the fork: SO_PEERCRED names the process that called listen(2), so the owner sees the copy's id.
        listener.listen(_BACKLOG)
        self._owner = OwnerPipe(owner, grace_seconds)
        self._entry: CheckpointEntry = {**entry, "pid": os.getpid()}
        self._connections: dict[int, socket.socket] = {}
        self._poll = select.poll()
        for source in (listener, self._owner.fd):
            self._poll.register(source, select.POLLIN)

    def wait(self) -> LaunchOptions:
        """Serve the owner's requests; return only in a forked child, which goes on as the kernel with these options."""
        if not self._owner.has_writer() and not self._owner.wait():
            os._exit(0)  # the owner ended while the copy was made
        while True:
            for fd, _ in self._poll.poll():
                if fd == self._listener.fileno():
                    self._accept()
                elif fd == self._owner.fd:
                    if not self._owner.wait():
                        os._exit(0)
                elif (options := self._handle_request(fd)) is not None:
                    return options

    def _accept(self) -> None:
        with suppress(OSError):
            connection, _ = self._listener.accept()
            self._connections[connection.fileno()] = connection
            self._poll.register(connection, select.POLLIN)

    def _handle_request(self, fd: int) -> LaunchOptions | None:
        connection = self._connections[fd]
        try:
            request: Any = json.loads(connection.recv(_MESSAGE_BYTES) or b"null")
        except (OSError, ValueError, RecursionError):
            request = None
        match request:
            case {"restore": dict(options)}:
                return self._fork_kernel(connection, LaunchOptions.of(options))
            case {"drop": True}:
                os._exit(0)
            case {}:  # matches every other mapping
                _send(connection, {"checkpoint": self._entry})
            case _:
                self._poll.unregister(fd)
                self._connections.pop(fd).close()
        return None

    def _fork_kernel(self, connection: socket.socket, options: LaunchOptions) -> LaunchOptions | None:
        """Fork a kernel, which the fork server or the container's init adopts."""
        state = random.getstate()  # Python reseeds its generator in every forked child
        try:
            pid = fork_orphan()
        except OSError as exc:
            _send(connection, {"failed": str(exc)})
            return None
        if pid:
            _send(connection, {"pid": pid})
            return None
        for sock in (self._listener, *self._connections.values()):
            sock.close()
        self._owner.close()
        if options.reseed:
            _reseed()
        else:
            random.setstate(state)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setsid()
        return options


def _send(connection: socket.socket, message: CheckpointReport) -> None:
    with suppress(OSError):
        # A peer that reads nothing must not stop this process, which also watches for the end of its owner.
        connection.setblocking(False)  # noqa: FBT003 - the library's own signature
        connection.send(json.dumps(message).encode())
        connection.setblocking(True)  # noqa: FBT003 - as above


def _reseed() -> None:
    """Reseed numpy and torch, to differ from other kernels of the checkpoint; Python has reseeded ``random`` by now."""
    numpy_random: Any = sys.modules.get("numpy.random")
    if numpy_random is not None:
        with suppress(Exception):
            numpy_random.seed()
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        with suppress(Exception):
            torch.seed()
