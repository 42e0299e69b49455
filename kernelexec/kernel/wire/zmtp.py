"""The connecting side of ZMTP 3.0, the wire protocol of ZeroMQ, with the NULL mechanism: bytes in, messages out, no socket.

Source: https://rfc.zeromq.org/spec/23/. The protocol is implemented here because the peer is untrusted. A frame over the limit
is skipped on arrival instead of being allocated, and its message keeps the other frames. No message is sent before the peer
has proven to speak ZMTP 3 (libzmq would fall back to ZMTP 1.0 and write a message to any peer).
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass

# A connection:  greeting (64 bytes) | READY command | messages
#   greeting:    FF, 8 bytes, 7F | major, minor | mechanism (20) | as-server | filler (31)
#   frame:       flags (1) | size (1, or 8 with _LONG) | body
#   READY body:  05 "READY", then properties: size (1), name, size (4), value
# A message is a row of frames; all but the last have _MORE. A command is one frame.
_MORE, _LONG, _COMMAND = 1, 2, 4
_GREETING_BYTES = 64
_LONG_SIZE = struct.Struct(">Q")
_PROPERTY_SIZE = struct.Struct(">I")
_SHORT_MAX = 255
_FRAMES_MAX = 64


_MECHANISM = b"NULL"
#: The first bytes of a connection: signature, version, and the name of the security mechanism.
GREETING = b"\xff\x00\x00\x00\x00\x00\x00\x00\x00\x7f\x03\x00" + _MECHANISM.ljust(20, b"\x00") + b"\x00" * 32


class ProtocolError(Exception):
    """A peer with another protocol than ZMTP 3, another mechanism than NULL, or a violation of the protocol."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The end of the handshake: messages may be sent."""


@dataclass(frozen=True, slots=True)
class Multipart:
    """A message. A frame over the limit is None; ``dropped_bytes`` is the total size of skipped frames."""

    frames: tuple[bytes | None, ...]
    dropped_bytes: int = 0


Event = Ready | Multipart


def ready_command(socket_type: bytes, identity: bytes = b"") -> bytes:
    """Return the READY command, which follows the greeting."""
    properties = _property(b"Socket-Type", socket_type) + (_property(b"Identity", identity) if identity else b"")
    return frame(b"\x05READY" + properties, _COMMAND)


def message(frames: Iterable[bytes]) -> bytes:
    """Return a multipart message as bytes for the wire."""
    *others, last = frames
    return b"".join([*[frame(part, _MORE) for part in others], frame(last, 0)])


def frame(body: bytes, flags: int) -> bytes:
    """Return a frame as bytes for the wire."""
    if len(body) > _SHORT_MAX:
        return bytes((flags | _LONG,)) + _LONG_SIZE.pack(len(body)) + body
    return bytes((flags, len(body))) + body


def _property(name: bytes, value: bytes) -> bytes:
    return bytes((len(name),)) + name + _PROPERTY_SIZE.pack(len(value)) + value


class Decoder:
    """A decoder of the peer's bytes into events; holds at most one message within the limit."""

    def __init__(self, limit_bytes: int) -> None:
        self._is_greeted = False
        self._limit = limit_bytes
        self._buffer = bytearray()
        self._ready = False
        #: Bytes still to be skipped of a frame over the limit.
        self._skip = 0
        self._frames: list[bytes | None] = []
        self._size = 0
        self._dropped = 0

    def feed(self, chunk: bytes) -> Iterator[Event | None]:
        """Take received bytes and yield the events completed by them, and None after many frames without an event.

        Frames of commands, and of messages without an end, complete nothing: else the caller would wait for a whole chunk.

        Raises:
            ProtocolError: the peer violates the protocol; the connection must be closed.
        """
        if self._takes_whole and not self._buffer:  # as nearly always: nothing is copied but the frames
            chunk = yield from self._directly(chunk)
        self._buffer += chunk
        if not self._is_greeted and not self._greet():
            return
        position = count = 0
        try:
            while position < len(self._buffer):
                if (count := count + 1) % _FRAMES_MAX == 0:
                    yield None
                position, multipart = self._take_whole(self._buffer, position) if self._takes_whole else (position, None)
                if multipart is not None:
                    yield multipart
                    continue
                flags, size, start = self._header(position)
                if start < 0:
                    return
                if flags < 0:
                    position = start
                    continue
                position, body = self._body(size, start)
                if position < 0:  # back to the header, which is read again with the next chunk
                    position = start - (9 if flags & _LONG else 2)
                    return
                event = self._event(flags, size, body)
                if event is not None:
                    yield event
        finally:  # also if the caller stops at a yield: the bytes of yielded events are used up
            del self._buffer[:position]

    def _directly(self, chunk: bytes) -> Generator[Multipart, None, bytes]:
        """Yield the messages at the beginning of a chunk, and return the rest."""
        position, multipart = self._take_whole(chunk, 0)
        while multipart is not None:
            yield multipart
            position, multipart = self._take_whole(chunk, position)
        return chunk[position:]

    @property
    def _takes_whole(self) -> bool:
        return self._ready and not self._skip

    def _take_whole(self, buffer: bytes | bytearray, position: int) -> tuple[int, Multipart | None]:
        """Take complete frames within the limit up to the end of a message, the usual case.

        Return the position behind the last frame taken, and the message if its end was reached. Other frames are left to
        `_header` and `_body`.
        """
        frames, room, end = self._frames, self._limit - self._size, len(buffer)
        while position + 9 <= end and len(frames) < _FRAMES_MAX:
            flags = buffer[position]
            if flags & ~(_MORE | _LONG):
                break
            if flags & _LONG:
                start = position + 9
                (size,) = _LONG_SIZE.unpack_from(buffer, position + 1)
            else:
                start, size = position + 2, buffer[position + 1]
            if start + size > end or size > room:
                break
            frames.append(bytes(buffer[start : start + size]))
            self._size += size
            room -= size
            position = start + size
            if not flags & _MORE:
                return position, self._whole()
        return position, None

    def _greet(self) -> bool:
        head = bytes(self._buffer[:_GREETING_BYTES])
        if head[:1] not in (b"", b"\xff") or (len(head) > 9 and not head[9] & 1):  # noqa: PLR2004 - signature's end
            message = "the peer's greeting is not ZMTP"
            raise ProtocolError(message)
        if len(head) > 10 and head[10] < 3:  # noqa: PLR2004 - major version
            message = f"the peer speaks ZMTP {head[10]}, not 3"
            raise ProtocolError(message)
        if len(head) < _GREETING_BYTES:
            return False
        if head[12:32].rstrip(b"\x00") != _MECHANISM:
            message = f"the peer wants another security mechanism than {_MECHANISM.decode()}"
            raise ProtocolError(message)
        del self._buffer[:_GREETING_BYTES]
        self._is_greeted = True
        return True

    def _header(self, position: int) -> tuple[int, int, int]:
        """Return flags, size and start of the body.

        A start of -1 means an incomplete header; flags of -1 mean skipped bytes up to the start.
        """
        buffer = self._buffer
        available = len(buffer) - position
        if self._skip:
            taken = min(self._skip, available)
            self._skip -= taken
            return (-1, 0, position + taken) if taken else (0, 0, -1)
        if available < 2:  # noqa: PLR2004 - flags and a short size
            return 0, 0, -1
        flags = buffer[position]
        if flags & ~(_MORE | _LONG | _COMMAND) or flags & (_COMMAND | _MORE) == _COMMAND | _MORE:
            message = f"flags 0x{flags:02x} are not of ZMTP 3"
            raise ProtocolError(message)
        if not flags & _LONG:
            return flags, buffer[position + 1], position + 2
        if available < 9:  # noqa: PLR2004 - flags and a long size
            return 0, 0, -1
        (size,) = _LONG_SIZE.unpack_from(buffer, position + 1)
        return flags, size, position + 9

    def _body(self, size: int, start: int) -> tuple[int, bytes | None]:
        """Return end and content of the frame; end -1 means incomplete, content None a frame over the limit."""
        # The frame's event is due at once, before its bytes have come: the size is known, and nothing of them is kept.
        if self._too_large(size):
            here = min(size, len(self._buffer) - start)
            self._skip = size - here
            return start + here, None
        if len(self._buffer) - start < size:
            return -1, None
        return start + size, bytes(self._buffer[start : start + size])

    def _too_large(self, size: int) -> bool:
        return size > self._limit - self._size or len(self._frames) >= _FRAMES_MAX

    def _event(self, flags: int, size: int, body: bytes | None) -> Event | None:
        if flags & _COMMAND:
            if body is not None and body.startswith(b"\x05READY") and not self._ready:
                self._ready = True
                return Ready()
            if body is not None and body.startswith(b"\x05ERROR"):
                message = f"the peer refused the handshake: {body[6:100]!r}"
                raise ProtocolError(message)
            return None
        if body is None:
            self._dropped += size
        else:
            self._size += size
        if len(self._frames) < _FRAMES_MAX:  # further frames are None by `_too_large`, and only their bytes are counted
            self._frames.append(body)
        return None if flags & _MORE else self._whole()

    def _whole(self) -> Multipart:
        multipart = Multipart(tuple(self._frames), self._dropped)
        self._frames, self._size, self._dropped = [], 0, 0
        return multipart
