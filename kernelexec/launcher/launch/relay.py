"""The relay beside a kernel: a process that connects to its sockets for an owner that does not see them.

The owner's engine runs a program for each stream (``main``). The first one starts the relay, and all hand their standard
streams to it, so that a program that is killed or cut off costs no connection.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from ..relayed_connections import (
    INSTANCE_BYTES,
    OPEN,
    PIECE_BYTES,
    READ_BYTES,
    READY,
    LinkError,
    RelayedConnection,
    RelayedConnections,
)

#: Seconds between two looks for the kernel's report, and in which a relay without a stream waits for the next one.
_LOOK_SECONDS, _PATIENCE_SECONDS = 0.01, 120.0
#: The names of sockets in a kernel's private directory that a relay connects to, and of its own.
_NAMES, _SOCKET = re.compile(r"s-[1-5]"), "relay"


class _Relay:
    """The side beside the kernel, whose ``directory`` has its sockets. It holds the owner's pipe while there is a stream."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._connections = RelayedConnections(os.urandom(INSTANCE_BYTES), take=self._take, renew=self._renew)
        self._tasks: set[asyncio.Task[None]] = set()
        self._owner: int | None = None
        self._streams: asyncio.Queue[tuple[int, int, socket.socket]] = asyncio.Queue()
        self._is_over = asyncio.Event()
        """Set when the present stream is cut, or another one has come."""

    async def serve(self, listener: socket.socket) -> None:
        """Serve one stream after the other, the newest one; raise ``TimeoutError`` if none comes in time."""
        listener.setblocking(False)  # noqa: FBT003 - the socket module's own signature
        self._start(self._watch_ready())
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)
        while True:
            await self._run(*await asyncio.wait_for(self._streams.get(), _PATIENCE_SECONDS))

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            program, _ = listener.accept()
            program.settimeout(1.0)
            _, fds, _, _ = socket.recv_fds(program, 1, 2)
            self._streams.put_nowait((fds[0], fds[1], program))
            self._is_over.set()

    async def _run(self, incoming: int, outgoing: int, program: socket.socket) -> None:
        """Serve a stream until it is cut."""
        loop, is_over = asyncio.get_running_loop(), self._is_over
        is_over.clear()
        os.set_blocking(outgoing, False)
        os.set_blocking(incoming, False)
        with suppress(OSError):
            self._owner = os.open(os.path.join(self._directory, "owner"), os.O_WRONLY | os.O_NONBLOCK)  # noqa: PTH118 - text
        writer = _PipeWriter(loop, outgoing, is_over)

        def read() -> None:
            try:
                data = os.read(incoming, READ_BYTES)
                if data:
                    self._connections.link.feed(data)
                    return
            except BlockingIOError:
                return
            except (OSError, LinkError):
                pass
            loop.remove_reader(incoming)
            is_over.set()

        try:
            loop.add_reader(incoming, read)
            self._connections.link.connect(writer.write)
            await is_over.wait()
        finally:
            self._connections.link.disconnect()
            loop.remove_reader(incoming)
            writer.close()
            owner, self._owner = self._owner, None
            for fd in (incoming, outgoing, owner):
                if fd is not None:
                    os.close(fd)
            program.close()

    def _renew(self) -> None:
        """Report to a new owner that the kernel serves."""
        self._start(self._watch_ready())

    def _take(self, kind: int, number: int, content: bytes) -> None:
        name = content.decode("ascii", "replace")
        if kind == OPEN and _NAMES.fullmatch(name):
            self._start(self._connect(name, self._connections.add(number)))

    async def _connect(self, name: str, connection: RelayedConnection) -> None:
        try:
            path = os.path.join(self._directory, name)  # noqa: PTH118 - text
            await asyncio.get_running_loop().create_unix_connection(lambda: connection, path)
        except OSError:
            self._connections.forget(connection)

    async def _watch_ready(self) -> None:
        """Send the kernel's report once it is there."""
        path, line = os.path.join(self._directory, "ready"), b""  # noqa: PTH118 - text
        while not line.endswith(b"\n"):
            with suppress(OSError), open(path, "rb") as file:  # noqa: ASYNC230, PTH123 - a line in memory
                line = file.read(PIECE_BYTES)
            if not line.endswith(b"\n"):
                await asyncio.sleep(_LOOK_SECONDS)  # few times, at the start
        self._connections.link.send(READY, 0, line)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _PipeWriter:
    """A pipe's writing end, with the bytes that the pipe does not take yet: at most the windows of all connections."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int, is_over: asyncio.Event) -> None:
        self._loop, self._fd, self._is_over = loop, fd, is_over
        self._waiting = bytearray()

    def write(self, data: bytes) -> None:
        is_first = not self._waiting
        self._waiting += data
        if is_first:
            self._flush()
            if self._waiting:
                self._loop.add_writer(self._fd, self._flush)

    def _flush(self) -> None:
        try:
            while self._waiting:
                del self._waiting[: os.write(self._fd, memoryview(self._waiting)[:READ_BYTES])]
        except BlockingIOError:
            return
        except OSError:
            self._waiting.clear()
            self._is_over.set()
        self._loop.remove_writer(self._fd)

    def close(self) -> None:
        self._waiting.clear()
        self._loop.remove_writer(self._fd)


def main(arguments: list[str]) -> None:
    """Hand this program's standard streams to the relay of a kernel's directory, which may have to be started, and wait."""
    path = os.path.join(arguments[0], _SOCKET)  # noqa: PTH118 - text
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(path)
        except OSError:
            _start_relay(arguments[0], path)
            connection.connect(path)
        socket.send_fds(connection, [b"s"], [0, 1])
        os.close(0)
        os.close(1)
        connection.recv(1)  # until the relay closes it


def _start_relay(directory: str, path: str) -> None:
    """Fork the relay's process, which listens when this function returns."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108 - text
    listener.bind(path)
    listener.listen()
    if os.fork():
        listener.close()
        return
    os.setsid()
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
