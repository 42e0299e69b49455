"""The connections to a kernel's channels: ZMTP over sockets whose server was checked to be the kernel.

The kernel's side is untrusted: see ``unix_sockets`` for unix sockets.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import cast

import anyio
import anyio.to_thread

from kernelexec.config import MIB
from kernelexec.errors import KernelConnectionFailed
from kernelexec.kernel.wire import zmtp
from kernelexec.provisioning import Connection
from kernelexec.provisioning.runtime.ports import has_foreign_listener
from kernelexec.provisioning.runtime.unix_sockets import open_pinned

logger = logging.getLogger("kernelexec")

#: Bytes that may wait behind the message that the kernel is reading, beside the largest message. A busy kernel leaves none: its
#: ZeroMQ reads 1,000 messages ahead in a thread of its own.
_WAITING_MAX_BYTES = 64 * MIB
#: How long messages of one kernel are delivered before other kernels have their turn, in seconds: one read of 256 KiB can
#: hold 131,072 empty messages.
_TURN_SECONDS = 0.005
#: The pauses between two tries to connect, in seconds.
_SOONEST, _LATEST = 0.005, 0.1


class Channel(asyncio.Protocol):
    """ZMTP over one connection; ``deliver`` gets each message on arrival, ``lost`` the end of the connection."""

    def __init__(
        self,
        socket_type: bytes,
        identity: bytes,
        limit_bytes: int,
        deliver: Callable[[zmtp.Multipart], None],
        lost: Callable[[Channel, str], None],
    ) -> None:
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.closed = asyncio.Event()
        self.heard_at = 0.0
        """The time of the newest data by the loop's clock."""
        self._hello = zmtp.GREETING + zmtp.ready_command(socket_type, identity)
        self._decoder = zmtp.Decoder(limit_bytes)
        self._events: Iterator[zmtp.Event | None] = iter(())
        self._deliver = deliver
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._reason = "the kernel closed the connection"
        self.is_overrun = False
        """Whether the connection was dropped because the kernel left its messages unread."""
        self._is_paused = False
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = self._largest_bytes = 0

    async def connect(self, sock: socket.socket) -> None:
        """Take over a connected socket and complete the handshake.

        Raises:
            KernelConnectionFailed: the peer does not speak ZMTP 3.
        """
        await asyncio.get_running_loop().create_connection(lambda: self, sock=sock)
        await self.ready

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the greeting."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has the methods of the class only
        self._transport.write(self._hello)

    def data_received(self, data: bytes) -> None:
        """Deliver complete messages, many of them in several turns; abort the connection on data other than ZMTP."""
        # The decoder is lazy, so reading stays paused until these events are used up: else `feed` would run twice at a time.
        self._events = self._decoder.feed(data)
        self._take_turn()

    def _take_turn(self) -> None:
        loop, transport = asyncio.get_running_loop(), self._transport
        if transport is None:
            return
        self.heard_at = loop.time()
        try:
            for event in self._events:
                if isinstance(event, zmtp.Multipart):
                    self._deliver(event)
                elif event is not None and not self.ready.done():
                    self.ready.set_result(None)
                if loop.time() > self.heard_at + _TURN_SECONDS:
                    transport.pause_reading()
                    loop.call_soon(self._take_turn)
                    return
        except zmtp.ProtocolError as exc:
            self._reason = str(exc)
            self.abort()
        except Exception as exc:  # asyncio would end a connection by an error of its first turn only, and reading is paused
            logger.exception("kernelexec.message_failed")
            self._reason = f"a message could not be read: {type(exc).__name__}"
            self.abort()
        if not (transport.is_reading() or transport.is_closing()):
            transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end of the connection."""
        reason = str(exc) if exc else self._reason
        if not self.ready.done():
            self.ready.set_exception(KernelConnectionFailed(f"no handshake: {reason}"))
        self.closed.set()
        self._transport = None
        self._waiting.clear()
        self._lost(self, reason)

    @property
    def is_closed(self) -> bool:
        """Whether an established connection takes no more messages, even before its loss is reported."""
        return self.closed.is_set() or (self._transport is not None and self._transport.is_closing())

    def send(self, frames: list[bytes]) -> None:
        """Queue a message of any size for sending; drop the connection if too many bytes wait already.

        Raises:
            KernelConnectionFailed: the connection is gone, or was dropped now.
        """
        # The largest message is added because the kernel may still be reading a message of any size, which is no overrun.
        if self._waiting_bytes > _WAITING_MAX_BYTES + self._largest_bytes and not self.is_closed:
            self._reason = f"the kernel left more than {_WAITING_MAX_BYTES} bytes unread"
            self.is_overrun = True
            self.abort()
        if self._transport is None or self._transport.is_closing():
            raise KernelConnectionFailed(self._reason)
        message = zmtp.message(frames)
        self._largest_bytes = max(self._largest_bytes, len(message))
        if self._is_paused:
            self._waiting.append(message)
            self._waiting_bytes += len(message)
        else:
            self._transport.write(message)

    def pause_writing(self) -> None:
        """Keep further messages here: since Python 3.12 each write to a full transport counts all its buffers."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """Hand messages to the transport until its buffer is full."""
        self._is_paused = False
        # A write may call `pause_writing` at once, which ends the loop.
        while self._waiting and not self._is_paused and self._transport is not None:
            message = self._waiting.popleft()
            self._waiting_bytes -= len(message)
            self._transport.write(message)

    def abort(self) -> None:
        """Drop the connection at once."""
        if self._transport is not None:
            self._transport.abort()


class Connector:
    """The opening of a kernel's channels: one try if the kernel ``is_serving``, else tries until the kernel serves.

    ``accepts`` decides by process id whether the peer of a unix socket is the kernel. The peer of a port must descend from
    ``pid``.
    """

    def __init__(
        self, connection: Connection, pid: int | None, *, is_serving: bool, accepts: Callable[[int], bool] = lambda _: True
    ) -> None:
        self.failure: KernelConnectionFailed | None = None
        """The failure of the last try."""
        self._connection = connection
        self._pid = pid
        self._is_serving = is_serving
        self._accepts = accepts

    async def connect(self, channel: str, make: Callable[..., Channel]) -> Channel:
        """Return a channel from ``make`` after its handshake. Socket and handshake are tried until the kernel serves.

        The caller bounds the wait. A greeting proves that the kernel serves.

        Raises:
            KernelConnectionFailed: the peer is not the kernel, or the socket is missing though the kernel is serving.
        """
        pause = _SOONEST
        while True:
            opened = make()  # a new one for each try: a closed channel cannot be connected again
            try:
                sock = await self.open_socket(channel)
                self.failure = None
                await self._shake_hands(opened, sock)
            except KernelConnectionFailed as exc:
                # A missing socket or a refused connection is an OSError: the kernel is not there yet. A foreign peer is final.
                if self._is_serving or not isinstance(exc.__cause__, OSError):
                    raise
                self.failure = exc
            else:
                if opened.closed.is_set():
                    raise KernelConnectionFailed("the kernel closed the connection")
                return opened
            await anyio.sleep(pause)
            pause = min(_LATEST, pause * 2)

    async def _shake_hands(self, opened: Channel, sock: socket.socket) -> None:
        try:
            await opened.connect(sock)
        except BaseException:
            opened.abort()
            raise

    async def open_socket(self, channel: str) -> socket.socket:
        """Return a connected socket.

        Raises:
            KernelConnectionFailed: the peer is not the kernel; or caused by an ``OSError``, such as a missing socket.
        """
        if self._connection.address is not None:
            return await self._open_port(self._connection.address, self._connection.port(channel))
        return open_pinned(self._connection.path(channel), uid=self._connection.uid, belongs=self._accepts)

    async def _open_port(self, address: str, port: int) -> socket.socket:
        with ExitStack() as unless_done:
            sock = unless_done.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            sock.setblocking(False)  # noqa: FBT003 - the socket module's own signature
            try:
                await asyncio.get_running_loop().sock_connect(sock, (address, port))
            except OSError as exc:
                raise KernelConnectionFailed(f"{address}:{port}: {exc.strerror or exc}") from exc
            # After the connection: a check before would say nothing about the listener that accepts us.
            if await anyio.to_thread.run_sync(has_foreign_listener, address, port, self._pid or 0):
                raise KernelConnectionFailed(f"{address}:{port} is served by another process than the kernel.")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            unless_done.pop_all()
        return sock
