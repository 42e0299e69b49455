"""The shell channel without ``ZMQStream``: requests are read as they arrive, and a reply is sent at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any

import zmq

from ..output.iopub import NOBLOCK, has_message, send_frames


class ShellChannel:
    """A replacement of ipykernel's ``ZMQStream``, which queues replies and needs more rounds of the loop for a request.

    All methods run in the event loop's thread.
    """

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self.socket = socket
        self._bare: Any = super(zmq.Socket, socket)
        self._handle: Callable[[list[Any]], Coroutine[Any, Any, Any]] | None = None
        self._context = copy_context()
        self.running: set[asyncio.Task[Any]] = set()
        self.io_loop: Any = None

    def on_recv(self, handle: Callable[[list[Any]], Coroutine[Any, Any, Any]] | None, copy: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - ZMQStream's signature
        """Handle each request by a task; all tasks share one context."""
        self._loop = asyncio.get_running_loop() if handle is None else asyncio.get_event_loop()
        self._handle = handle
        if handle is None:
            self._loop.remove_reader(self.socket.FD)
        else:
            self._loop.add_reader(self.socket.FD, self._read)
            self._loop.call_soon(self._read)

    def resume(self, socket: zmq.Socket[bytes]) -> None:
        """Read from another socket, in a copy of this process."""
        self.socket, self._bare = socket, super(zmq.Socket, socket)
        self.running.clear()
        self._loop.add_reader(socket.FD, self._read)
        self._loop.call_soon(self._read)

    def send_multipart(self, frames: list[Any], copy: bool = True, **options: Any) -> None:  # noqa: FBT001, FBT002 - as above
        """Send a reply."""
        if copy and not options:
            send_frames(self._bare, frames)
        else:
            self.socket.send_multipart(frames, copy=copy, **options)
        if self._handle is not None and has_message(self.socket):  # sending may clear the event of an arrived request
            self._loop.call_soon_threadsafe(self._read)

    def flush(self, flag: int = zmq.POLLIN, limit: int | None = None) -> int:
        """Start handling the requests that have arrived; return their number."""
        return self._read(limit) if flag & zmq.POLLIN else 0

    def getsockopt(self, option: int) -> Any:
        """Return an option of the socket, whose descriptor event loops of graphical toolkits watch."""
        return self.socket.getsockopt(option)

    def close(self, linger: int | None = None) -> None:
        """Stop reading and close the socket."""
        if not self.socket.closed:
            if self._handle is not None:
                self._loop.remove_reader(self.socket.FD)
            self.socket.close(linger)

    def closed(self) -> bool:
        """Return whether the socket is closed."""
        return self.socket.closed

    def _read(self, limit: int | None = None) -> int:
        count = 0
        while self._handle is not None and not self.socket.closed and count != limit and has_message(self.socket):
            request = [self._bare.recv(NOBLOCK, copy=False)]
            while request[-1].more:
                request.append(self._bare.recv(NOBLOCK, copy=False))
            task = self._loop.create_task(self._handle(request), context=self._context)
            self.running.add(task)
            task.add_done_callback(self.running.discard)
            count += 1
        return count
