"""The connections of a relay over one stream of bytes, such as the stream of a program run by an engine in a container.

The owner's side opens and closes connections by frames (``Link``); the kernel's side connects to its sockets. After a cut of
the stream the relay goes on in a process of its own, and both sides send all missing frames again. A connection has at most
``WINDOW_BYTES`` not yet taken by its reader, so a busy channel never delays the other channels.

On the wire a frame is a head (kind, connection, size of the content) and the content::

    HELLO  -        instances, count     the first frame of a stream: its sender, the known receiver (0 for none), and the
                                         number of frames received so far
    ACK    -        count                number of frames received so far
    OPEN   number   name of the socket   from here on frames are counted
    DATA   number   bytes
    CREDIT number   count                bytes taken by the reader since the last such frame
    CLOSE  number
    READY  -        a line               the ``ReadyMessage`` of the kernel
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from typing import cast

HELLO, ACK, OPEN, DATA, CREDIT, CLOSE, READY = range(7)
_HEAD, _COUNT = struct.Struct("!BII"), struct.Struct("!Q")
#: Bytes of one frame, and those of one connection that its reader has not taken; a read of the socket may exceed them once.
PIECE_BYTES, WINDOW_BYTES = 64 * 1024, 1024 * 1024
READ_BYTES = 512 * 1024
#: The reader's side reports frames and taken bytes in these numbers; until then the sender keeps the frames.
_ACK_FRAMES, _CREDIT_BYTES = 16, WINDOW_BYTES // 4
#: Bytes that the other side has not received, at most: more than the windows of all connections of a kernel.
_UNRECEIVED_MAX_BYTES = 64 * 1024 * 1024
INSTANCE_BYTES = 16


class LinkError(Exception):
    """The other side sends bytes without the form of a frame, or breaks a rule."""


class Link:
    """The counted frames of both directions, which survive cuts of the stream: bytes in, frames out; no socket.

    Args:
        take: called with kind, connection and content of each counted frame.
        instance: the name of this side.
        renew: called when the other side is a new instance, without knowledge of earlier frames.
    """

    def __init__(self, take: Callable[[int, int, bytes], None], instance: bytes, renew: Callable[[], None]) -> None:
        self._take, self._instance, self._renew = take, instance, renew
        self._write: Callable[[bytes], None] | None = None
        self._peer = b""
        self._buffer = bytearray()
        self._unreceived: deque[bytes] = deque()
        """The sent frames that the other side has not received, as far as is known, the oldest first."""
        self._unreceived_bytes = 0
        self._acknowledged = self._received = self._reported = 0
        self._is_greeted = False

    @property
    def is_greeted(self) -> bool:
        """Whether the other side of the present stream has sent a greeting."""
        return self._is_greeted

    def connect(self, write: Callable[[bytes], None]) -> None:
        """Use another stream, by its ``write``."""
        self._write, self._is_greeted = write, False
        self._buffer.clear()
        write(_frame(HELLO, 0, self._instance + self._peer.ljust(INSTANCE_BYTES, b"\0") + _COUNT.pack(self._received)))

    def disconnect(self) -> None:
        """Keep frames for the next stream."""
        self._write, self._is_greeted = None, False

    def send(self, kind: int, number: int = 0, content: bytes = b"") -> None:
        """Send a counted frame, now or over the next stream."""
        frame = _frame(kind, number, content)
        self._unreceived.append(frame)
        self._unreceived_bytes += len(frame)
        if self._write is not None and self._is_greeted:
            self._write(frame)

    def feed(self, data: bytes) -> None:
        """Take bytes of the stream; raise ``LinkError`` if they are no frames, or if the other side reports no receipt."""
        if self._unreceived_bytes > _UNRECEIVED_MAX_BYTES:
            raise LinkError("it does not report what it receives")
        self._buffer += data
        begin, buffer = 0, self._buffer
        while len(buffer) - begin >= _HEAD.size:
            kind, number, size = _HEAD.unpack_from(buffer, begin)
            if kind > READY or size > PIECE_BYTES or (kind != HELLO and not self._is_greeted):
                raise LinkError("what the relay sends is no frame")
            if len(buffer) - begin < _HEAD.size + size:
                break
            content = bytes(buffer[begin + _HEAD.size : begin + _HEAD.size + size])
            begin += _HEAD.size + size
            if kind == HELLO:
                self._greet(content)
            elif kind == ACK:
                self._forget_received(_count(content))
            else:
                self._received += 1
                self._take(kind, number, content)
        # Once for all frames: removing each from the front would copy the rest each time.
        del buffer[:begin]
        if self._received - self._reported >= _ACK_FRAMES and self._write is not None:
            self._reported = self._received
            self._write(_frame(ACK, 0, _COUNT.pack(self._received)))

    def _greet(self, content: bytes) -> None:
        if len(content) != 2 * INSTANCE_BYTES + _COUNT.size or self._is_greeted:
            raise LinkError("its greeting is none, or a second one")
        peer, known = content[:INSTANCE_BYTES], content[INSTANCE_BYTES : 2 * INSTANCE_BYTES]
        # Another instance: the frames of both directions count from 0 again, and its connections are gone. The same instance:
        # its count confirms frames, if the greeting means this instance. All frames left are sent in their old order.
        if self._peer not in (b"", peer):
            self._received = self._reported = self._acknowledged = 0
            self._unreceived.clear()
            self._unreceived_bytes = 0
            self._renew()
        elif known == self._instance:
            self._forget_received(_count(content[2 * INSTANCE_BYTES :]))
        self._peer, self._is_greeted = peer, True
        for frame in self._unreceived:
            assert self._write is not None
            self._write(frame)

    def _forget_received(self, count: int) -> None:
        # A hostile peer can send any count: it never makes this side drop frames beyond those that were sent.
        if not 0 <= count - self._acknowledged <= len(self._unreceived):
            raise LinkError("it has received other frames than were sent")
        for _ in range(count - self._acknowledged):
            self._unreceived_bytes -= len(self._unreceived.popleft())
        self._acknowledged = count


class RelayedConnection(asyncio.Protocol):
    """A connection of the relay: a local socket, with its other end at the other side of the link."""

    def __init__(self, connections: RelayedConnections, number: int) -> None:
        self._connections, self.number = connections, number
        self._transport: asyncio.Transport | None = None
        self._credit = WINDOW_BYTES
        self._untaken = self._taken = 0
        """Bytes that the local reader has not taken, and those that it has taken and that are not reported."""
        self._is_paused = self._is_closing = False
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Pass on the bytes received before the local connection was made."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_CREDIT_BYTES)
        early, self._early = self._early, []
        for content in early:
            self._write(content)
        if self._is_closing:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        """Send the bytes of the local side, and pause reading when the other side does not keep up."""
        for begin in range(0, len(data), PIECE_BYTES):
            self._connections.link.send(DATA, self.number, data[begin : begin + PIECE_BYTES])
        self._credit -= len(data)
        if self._credit <= 0 and self._transport is not None:
            self._transport.pause_reading()

    def connection_lost(self, _: Exception | None) -> None:
        """Close the other end too."""
        self._transport = None
        self._connections.forget(self)

    def pause_writing(self) -> None:
        """Report no taken bytes while the local reader lags behind."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """Report the bytes taken by the local reader meanwhile."""
        self._is_paused = False
        self._report()

    def take(self, content: bytes) -> None:
        """Take bytes from the other end; raise ``LinkError`` for an empty frame, or more bytes than allowed."""
        # A sender that keeps the rules exceeds the window by its last read at most: `data_received` pauses after it.
        self._untaken += len(content)
        if not content or self._untaken > WINDOW_BYTES + READ_BYTES:
            raise LinkError("it sends more than it may")
        if self._transport is None:
            self._early.append(content)
        else:
            self._write(content)

    def _write(self, content: bytes) -> None:
        assert self._transport is not None
        self._transport.write(content)
        self._taken += len(content)
        if not self._is_paused:
            self._report()

    def _report(self) -> None:
        if self._taken >= _CREDIT_BYTES:
            self._connections.link.send(CREDIT, self.number, _COUNT.pack(self._taken))
            self._untaken -= self._taken
            self._taken = 0

    def add_credit(self, count: int) -> None:
        """Resume reading; raise ``LinkError`` if the other side reports more than was sent."""
        self._credit += count
        if self._credit > WINDOW_BYTES:
            raise LinkError("it has taken more than was sent")
        if self._credit > 0 and self._transport is not None and not self._transport.is_reading():
            self._transport.resume_reading()

    def close(self) -> None:
        """Close the local end after all bytes are written."""
        self._is_closing = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the local end at once."""
        self._is_closing = True
        if self._transport is not None:
            self._transport.abort()


class RelayedConnections:
    """The connections on this side of a relay."""

    def __init__(self, instance: bytes, *, take: Callable[[int, int, bytes], None]) -> None:
        self.link = Link(self._take, instance, self.abort)
        self._take_other = take
        self._connections: dict[int, RelayedConnection] = {}

    def add(self, number: int) -> RelayedConnection:
        """Return a new connection."""
        connection = self._connections[number] = RelayedConnection(self, number)
        return connection

    def forget(self, connection: RelayedConnection) -> None:
        """Note the closing of a local end; another connection may have the number by now."""
        # Not after a CLOSE of the other side, which has removed the connection already.
        if self._connections.get(connection.number) is connection:
            del self._connections[connection.number]
            self.link.send(CLOSE, connection.number)

    def abort(self) -> None:
        """Close all local ends at once."""
        connections, self._connections = list(self._connections.values()), {}
        for connection in connections:
            connection.abort()

    def _take(self, kind: int, number: int, content: bytes) -> None:
        # Frames of a connection that was closed here may still be on their way: they are dropped.
        connection = self._connections.get(number)
        if kind == DATA and connection is not None:
            connection.take(content)
        elif kind == CREDIT and connection is not None:
            connection.add_credit(_count(content))
        elif kind == CLOSE and connection is not None:
            del self._connections[number]
            connection.close()
        elif kind in (OPEN, READY):
            self._take_other(kind, number, content)


def _frame(kind: int, number: int, content: bytes) -> bytes:
    return _HEAD.pack(kind, number, len(content)) + content


def _count(content: bytes) -> int:
    if len(content) != _COUNT.size:
        raise LinkError("its frame has no number")
    return int(_COUNT.unpack(content)[0])
