"""The connecting side of ZMTP 3.0 with the CURVE mechanism: only the holder of the server's secret key can read a byte.

Sources: https://rfc.zeromq.org/spec/25/ and https://rfc.zeromq.org/spec/26/. The server's public key is known beforehand, so
that no relay can pose as the server; the session keys of both sides live as long as the connection. The bounds of ``zmtp``
hold here too: a frame over the limit is skipped as it arrives, and its message keeps the other frames.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator

from nacl.bindings import (
    crypto_box_beforenm,
    crypto_box_easy_afternm,
    crypto_box_keypair,
    crypto_box_open_easy_afternm,
)
from nacl.exceptions import CryptoError

from kernelexec.kernel.wire import zmtp

_MORE, _COMMAND = 1, 2  # flags within a box
_COUNT = struct.Struct(">Q")
_KEY_BYTES, _LONG_NONCE_BYTES, _MAC_BYTES = 32, 16, 16
_MESSAGE = b"\x07MESSAGE"
_WELCOME, _READY, _ERROR = b"\x07WELCOME", b"\x05READY", b"\x05ERROR"
_FLAGS_AT = len(_MESSAGE) + _COUNT.size + _MAC_BYTES
#: Bytes that a box adds to a frame: the name and number of the command, the authenticator, and the flags.
OVERHEAD_BYTES = _FLAGS_AT + 1


class CurveDecoder(zmtp.Decoder):
    """Both directions of one connection, each with a counter of its boxes: turns bytes into events and messages into bytes."""

    mechanism = b"CURVE"
    _plain = False

    def __init__(self, limit_bytes: int, server_key: bytes, properties: bytes) -> None:
        super().__init__(limit_bytes)
        self._server_key = server_key
        self._properties = properties
        self._public, self._secret = crypto_box_keypair()
        self._server_box = _share_key(server_key, self._secret)
        self._box = b""
        self._sent = self._heard = 0
        self._skipped_flags = 0

    def message(self, frames: Iterable[bytes]) -> bytes:
        """Return a multipart message as bytes for the wire."""
        parts = list(frames)
        last = len(parts) - 1
        flagged = (bytes((_MORE if i < last else 0,)) + part for i, part in enumerate(parts))
        return b"".join(zmtp.frame(_MESSAGE + self._seal(b"CurveZMQMESSAGEC", body, self._box), 0) for body in flagged)

    def _answer_greeting(self) -> Iterator[zmtp.Answer]:
        """Return the HELLO command, which proves that we know the server's key."""
        box = self._seal(b"CurveZMQHELLO---", bytes(64), self._server_box)
        yield zmtp.Answer(zmtp.command(b"\x05HELLO\x01\x00" + bytes(72) + self._public + box))

    def _too_large(self, size: int) -> bool:
        return super()._too_large(size - OVERHEAD_BYTES)

    def _body(self, size: int, start: int) -> tuple[int, bytes | None]:
        """Decode as without boxes; the flags of a skipped frame are read, since they tell whether its message continues."""
        if self._ready and size < OVERHEAD_BYTES:
            message = f"a frame of {size} bytes holds no box"
            raise zmtp.ProtocolError(message)
        if self._ready and self._too_large(size):
            head = bytes(self._buffer[start : start + OVERHEAD_BYTES])
            if len(head) < OVERHEAD_BYTES:
                return -1, None
            self._skipped_flags = self._peek(head)
        return super()._body(size, start)

    def _event(self, _flags: int, size: int, body: bytes | None) -> zmtp.Ready | zmtp.Answer | zmtp.Multipart | None:
        if not self._ready:
            return self._shake_hands(body or b"")
        if body is None:
            inner = self._skipped_flags
        else:
            opened = self._open_next(body)
            inner, body = opened[0], opened[1:]
        if inner & _COMMAND:
            return None
        return super()._event(inner & _MORE, size - OVERHEAD_BYTES, body)

    def _shake_hands(self, body: bytes) -> zmtp.Ready | zmtp.Answer:
        if body.startswith(_ERROR):
            message = f"the peer refused the handshake: {body[len(_ERROR) + 1 : 100]!r}"
            raise zmtp.ProtocolError(message)
        if not self._box and body.startswith(_WELCOME):
            return zmtp.Answer(self._initiate(body[len(_WELCOME) :]))
        if self._box and body.startswith(_READY):
            self._open(b"CurveZMQREADY---", body[len(_READY) :])
            self._ready = True
            return zmtp.Ready()
        message = f"the peer broke the handshake: {body[:8]!r}"
        raise zmtp.ProtocolError(message)

    def _initiate(self, welcome: bytes) -> bytes:
        """Return the command that answers a WELCOME. Our long-term key is new, too: the kernel knows us by its own."""
        nonce, box = b"WELCOME-" + welcome[:_LONG_NONCE_BYTES], welcome[_LONG_NONCE_BYTES:]
        opened = _open_box(box, nonce, self._server_box)
        theirs, cookie = opened[:_KEY_BYTES], opened[_KEY_BYTES:]
        self._box = _share_key(theirs, self._secret)
        public, secret = crypto_box_keypair()
        vouch_nonce = os.urandom(_LONG_NONCE_BYTES)
        vouch = crypto_box_easy_afternm(self._public + self._server_key, b"VOUCH---" + vouch_nonce, _share_key(theirs, secret))
        box = self._seal(b"CurveZMQINITIATE", public + vouch_nonce + vouch + self._properties, self._box)
        return zmtp.command(b"\x08INITIATE" + cookie + box)

    def _seal(self, name: bytes, body: bytes, key: bytes) -> bytes:
        self._sent += 1
        count = _COUNT.pack(self._sent)
        return count + crypto_box_easy_afternm(body, name + count, key)

    def _open_next(self, body: bytes) -> bytes:
        if not body.startswith(_MESSAGE):
            message = f"the peer sent {body[:8]!r} in the place of a message"
            raise zmtp.ProtocolError(message)
        return self._open(b"CurveZMQMESSAGES", body[len(_MESSAGE) :])

    def _open(self, name: bytes, sealed: bytes) -> bytes:
        """Return the content of a box, which must be newer than those before."""
        count = sealed[: _COUNT.size]
        opened = _open_box(sealed[_COUNT.size :], name + count, self._box)
        (number,) = _COUNT.unpack(count)
        if number <= self._heard:
            message = "the peer repeated a message"
            raise zmtp.ProtocolError(message)
        self._heard = number
        return opened

    def _peek(self, head: bytes) -> int:
        """Return the flags of a box without opening it: the box of one zero byte begins with the same key stream."""
        count = head[len(_MESSAGE) : len(_MESSAGE) + _COUNT.size]
        stream = crypto_box_easy_afternm(b"\x00", b"CurveZMQMESSAGES" + count, self._box)
        return head[_FLAGS_AT] ^ stream[_MAC_BYTES]


def _share_key(public: bytes, secret: bytes) -> bytes:
    try:
        return crypto_box_beforenm(public, secret)
    except (CryptoError, ValueError) as exc:
        message = "a key of the kernel's side is none"
        raise zmtp.ProtocolError(message) from exc


def _open_box(box: bytes, nonce: bytes, key: bytes) -> bytes:
    try:
        return crypto_box_open_easy_afternm(box, nonce, key)
    except (CryptoError, ValueError) as exc:
        message = "a box of the peer does not open: it has another key, or was changed on the way"
        raise zmtp.ProtocolError(message) from exc
