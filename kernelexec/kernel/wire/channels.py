"""A connection to one of a kernel's channels: ZMTP over a socket, whose other side is untrusted."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Iterator
from typing import cast

from kernelexec.config import MIB
from kernelexec.errors import KernelConnectionFailed
from kernelexec.kernel.wire import zmtp

#: Bytes that may wait behind the message that the kernel is reading, beside the largest message. A busy kernel leaves none: its
#: ZeroMQ reads 1,000 messages ahead in a thread of its own.
_WAITING_MAX_BYTES = 64 * MIB
#: How long messages of one kernel are delivered before others have their turn, in seconds: 256 KiB hold 131,072 empty ones.
_TURN_SECONDS = 0.005


class Channel(asyncio.Protocol):
    """ZMTP over one connection; ``deliver`` gets the messages as they come, ``lost`` the end of the connection."""

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
        self._events: Iterator[zmtp.Event] = iter(())
        self._deliver = deliver
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._reason = "the kernel closed the connection"
        self.is_overrun = False
        """Whether the connection was dropped since the kernel did not read its messages."""
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
        """Deliver complete messages, in several turns if there are many; abort the connection on data that is not ZMTP."""
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
                elif not self.ready.done():
                    self.ready.set_result(None)
                if loop.time() > self.heard_at + _TURN_SECONDS:
                    transport.pause_reading()
                    loop.call_soon(self._take_turn)
                    return
        except zmtp.ProtocolError as exc:
            self._reason = str(exc)
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
        """Whether an established connection takes no more messages, even if its loss has not been reported yet."""
        return self.closed.is_set() or (self._transport is not None and self._transport.is_closing())

    def send(self, frames: list[bytes]) -> None:
        """Queue a message of any size for sending, and drop the connection if too much waits already.

        Raises:
            KernelConnectionFailed: the connection is gone, or was dropped now.
        """
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
        """Keep messages here: from Python 3.12 on a transport counts all that it holds whenever it takes one."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """Hand messages to the transport until it holds enough of them."""
        self._is_paused = False
        while self._waiting and not self._is_paused and self._transport is not None:
            message = self._waiting.popleft()
            self._waiting_bytes -= len(message)
            self._transport.write(message)

    def abort(self) -> None:
        """Drop the connection at once."""
        if self._transport is not None:
            self._transport.abort()
