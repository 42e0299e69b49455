"""The relay next to a kernel, which connects to the kernel's sockets for an owner without access to them.

The owner's engine runs a program for each stream (``main``). The first program starts the relay, and each hands the standard
streams over, so a killed or cut program costs no connection.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress

from ..relayed_connections import (
    INSTANCE_BYTES,
    OPEN,
    PIECE_BYTES,
    READY,
    LinkError,
    RelayedConnection,
    RelayedConnections,
)

#: The seconds between two looks for the kernel's report, and the time that a relay without a stream waits for the next.
_LOOK_SECONDS, _PATIENCE_SECONDS = 0.01, 120.0
#: The time limit for a program to hand its streams over, in seconds. The event loop waits meanwhile.
_HANDOVER_SECONDS = 0.1
#: The names of the kernel's sockets in the private directory, and of the relay's own socket.
_NAMES, _SOCKET = re.compile(r"s-[1-5]"), "relay"


class _Stream(asyncio.Protocol):
    """The standard streams of a program, until a stream is cut."""

    def __init__(self, feed: Callable[[bytes], None]) -> None:
        self._feed = feed
        self.is_over = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        """Receive frames of the owner's side."""
        try:
            self._feed(data)
        except LinkError:
            self.is_over.set()

    def connection_lost(self, _: Exception | None) -> None:
        """Note the end of a pipe: the end of either stream ends both."""
        self.is_over.set()


class _Relay:
    """The kernel's side of a relay, for the sockets in ``directory``. Each stream holds the owner's pipe open."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._connections = RelayedConnections(os.urandom(INSTANCE_BYTES), take=self._take)
        self._tasks: set[asyncio.Task[None]] = set()
        self._stream: _Stream | None = None
        self._next: tuple[int, int, socket.socket] | None = None
        """The newest waiting program: its standard streams, and its socket, whose end ends the program."""
        self._has_next = asyncio.Event()

    async def serve(self, listener: socket.socket) -> None:
        """Serve a stream after the other, always the newest.

        Raises:
            TimeoutError: no stream came in time.
        """
        listener.setblocking(False)  # noqa: FBT003 - the socket module's own signature
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)
        while True:
            await asyncio.wait_for(self._has_next.wait(), _PATIENCE_SECONDS)
            self._has_next.clear()
            program, self._next = self._next, None
            if program is not None:
                await self._run(*program)

    def _accept(self, listener: socket.socket) -> None:
        try:
            program, _ = listener.accept()
        except OSError:
            return
        fds: list[int] = []
        with suppress(OSError):
            program.settimeout(_HANDOVER_SECONDS)
            _, fds, _, _ = socket.recv_fds(program, 1, 2)
        if len(fds) != 2:  # noqa: PLR2004 - its standard input and output; it was killed before it sent them
            _close(program, fds)
            return
        if self._next is not None:
            _close(self._next[2], self._next[:2])
        # The newest wins: the engine's end of an older stream may be gone without a sign of it here.
        self._next = fds[0], fds[1], program
        self._has_next.set()
        if self._stream is not None:
            self._stream.is_over.set()

    async def _run(self, incoming: int, outgoing: int, program: socket.socket) -> None:
        """Serve a stream until its end, or until another stream has come."""
        loop, link = asyncio.get_running_loop(), self._connections.link
        stream = self._stream = _Stream(link.feed)
        watch = loop.create_task(self._watch())
        # Frames come only once the link has this stream.
        writer, _ = await loop.connect_write_pipe(lambda: stream, os.fdopen(outgoing, "wb", 0))
        link.connect(writer.write)
        reader, _ = await loop.connect_read_pipe(lambda: stream, os.fdopen(incoming, "rb", 0))
        if self._next is None:
            await stream.is_over.wait()
        self._stream = None
        link.disconnect()
        watch.cancel()
        reader.close()
        writer.abort()
        program.close()

    def _take(self, kind: int, number: int, content: bytes) -> None:
        # Names of the kernel's own sockets only: the owner's side reaches nothing else in the directory.
        name = content.decode("ascii", "replace")
        if kind == OPEN and _NAMES.fullmatch(name):
            task = asyncio.get_running_loop().create_task(self._connect(name, self._connections.add(number)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _connect(self, name: str, connection: RelayedConnection) -> None:
        try:
            path = os.path.join(self._directory, name)  # noqa: PTH118 - text
            await asyncio.get_running_loop().create_unix_connection(lambda: connection, path)
        except OSError:
            self._connections.forget(connection)

    async def _watch(self) -> None:
        """Hold the owner's pipe once the kernel has created and opened the pipe, and send the complete report of the kernel."""
        owner, line = None, b""
        try:
            while owner is None or not line:
                if owner is None:
                    with suppress(OSError):  # ENXIO: the kernel has not opened its end of the FIFO yet
                        owner = self._open("owner", os.O_WRONLY)
                if not line and (line := self._read_report()):
                    self._connections.link.send(READY, 0, line)
                await asyncio.sleep(_LOOK_SECONDS)  # few times, at the start
            await asyncio.Event().wait()
        finally:
            if owner is not None:
                os.close(owner)

    def _read_report(self) -> bytes:
        """Return the line with the kernel's report of readiness, or nothing if the line is missing or incomplete."""
        with suppress(OSError):
            report = self._open("ready", os.O_RDONLY)
            try:
                line = os.read(report, PIECE_BYTES)
            finally:
                os.close(report)
            return line if line.endswith(b"\n") else b""
        return b""

    def _open(self, name: str, flags: int) -> int:
        path = os.path.join(self._directory, name)  # noqa: PTH118 - text
        return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)


def _close(program: socket.socket, fds: Iterable[int]) -> None:
    program.close()
    for fd in fds:
        os.close(fd)


def main(arguments: list[str]) -> None:
    """Hand this program's standard streams to the relay of a kernel's directory, and wait. Start a missing relay first."""
    path = os.path.join(arguments[0], _SOCKET)  # noqa: PTH118 - text
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(path)
        except OSError:
            _start_relay(arguments[0], path)
            connection.connect(path)
        socket.send_fds(connection, [b"s"], [0, 1])
        os.close(0)  # the relay alone holds the streams now, so they end with it
        os.close(1)
        connection.recv(1)  # until the relay closes the connection


def _start_relay(directory: str, path: str) -> None:
    """Fork the process of the relay, which listens when this function returns."""
    # Bound before the fork, so the caller's next connect succeeds. A socket file without a listener is of a dead relay.
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108 - text
    listener.bind(path)
    listener.listen()
    if os.fork():
        listener.close()
        return
    os.setsid()  # a signal to the program's group or terminal must not reach the relay
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(nothing, fd)
    for signum in (signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    try:
        with suppress(TimeoutError):
            asyncio.run(_Relay(directory).serve(listener))
    finally:
        os._exit(0)
