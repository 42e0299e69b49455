"""Jupyter messages as this kernel makes them: what is the same for all messages of a cell is packed once."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from hmac import compare_digest
from typing import Any

import jupyter_client.session as jupyter
from jupyter_client._version import protocol_version
from jupyter_client.jsonutil import json_clean, json_default

_quoted = json.encoder.encode_basestring
_HEADER = ("msg_id", "msg_type", "username", "session", "date", "version")
_HEADER_TEXT = "{" + ", ".join(f'"{name}": %s' for name in _HEADER) + "}"
_NOTHING = b"{}"
_PARTS = 5  # the signature, and what it signs


def _encoder() -> Callable[[Any], str]:
    """What makes JSON. Python's class makes its C part anew for each value, which is half of the time of a small one.

    Neither looks for circles: a value that holds itself ends with RecursionError.
    """
    encoder: Any = json.encoder
    made = encoder.c_make_encoder
    if made is None:
        return json.JSONEncoder(default=json_default, ensure_ascii=False, allow_nan=False, check_circular=False).encode
    pieces = made(None, json_default, _quoted, None, ": ", ", ", False, False, False)  # noqa: FBT003 - as it takes them
    return lambda value: "".join(pieces(value, 0))


_encode = _encoder()


def pack(value: Any) -> bytes:
    """JSON as Jupyter's own packer makes it, but a lone surrogate is escaped, where that one drops the whole message.

    Raises:
        TypeError, ValueError: no JSON can be made of the value.
    """
    try:
        text = _encode(value)
    except (TypeError, ValueError, RecursionError):
        text = _encode(json_clean(value))
    return text.encode("utf-8", "backslashreplace")


def _packed_header(header: dict[str, Any]) -> bytes:
    """The same for a header, whose fields are known."""
    if tuple(header) != _HEADER:
        return pack(header)
    try:
        return (_HEADER_TEXT % tuple(map(_quoted, header.values()))).encode("utf-8", "backslashreplace")
    except TypeError:  # a value that is no text
        return pack(header)


class Session(jupyter.Session):
    """jupyter_client's session, with which a message costs a third of the time."""

    #: In jupyter_client these are traits, which it looks up for each message. Nobody sets them in a kernel.
    adapt_version: Any = 0
    debug: Any = False
    copy_threshold: Any = 2**16
    _parent: tuple[Any, bytes] = ({}, _NOTHING)

    def msg_header(self, msg_type: str) -> dict[str, Any]:
        """A new header, its date as it will be sent."""
        return {
            "msg_id": self.msg_id,
            "msg_type": msg_type,
            "username": self.username,
            "session": self.session,
            "date": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
            "version": protocol_version,
        }

    def serialize(self, msg: dict[str, Any], ident: list[bytes] | bytes | None = None) -> list[bytes]:
        """The frames of a message, without its buffers."""
        content, metadata = msg.get("content", {}), msg["metadata"]
        if not isinstance(content, dict):
            return super().serialize(msg, ident)
        parts = [
            _packed_header(msg["header"]),
            self._packed_parent(msg["parent_header"]),
            pack(metadata) if metadata else _NOTHING,
            pack(content),
        ]
        idents = ident if isinstance(ident, list) else [] if ident is None else [ident]
        return [*idents, jupyter.DELIM, self.sign(parts), *parts]

    def sign(self, msg_list: list[bytes]) -> bytes:
        """The signature of what is given, in hexadecimal; nothing without a key."""
        auth: Any = self.auth
        if auth is None:
            return b""
        digest = auth.copy()
        digest.update(b"".join(msg_list[:-1]))
        digest.update(b"".join(msg_list[-1:]))  # one is not copied
        signature: bytes = digest.hexdigest().encode()
        return signature

    def send(self, stream: Any, msg_or_type: Any, *args: Any, **kwargs: Any) -> Any:
        """Send a message; what is not as usual goes jupyter_client's own way."""
        if stream is None or kwargs.get("buffers") or len(args) > 3 or self.adapt_version or self.debug:  # noqa: PLR2004 - buffers
            return super().send(stream, msg_or_type, *args, **kwargs)
        return self._send(stream, msg_or_type, *args, **kwargs)

    def _send(
        self,
        stream: Any,
        msg_or_type: Any,
        content: Any = None,
        parent: Any = None,
        ident: Any = None,
        buffers: Any = None,
        track: bool = False,  # noqa: FBT001, FBT002 - jupyter_client's signature
        header: Any = None,
        metadata: Any = None,
    ) -> Any:
        msg = msg_or_type if isinstance(msg_or_type, dict) else self.msg(msg_or_type, content, parent, header, metadata)
        if msg.get("buffers"):
            return super().send(stream, msg, ident=ident, buffers=buffers, track=track)
        frames = self.serialize(msg, ident)
        stream.send_multipart(frames, copy=max(map(len, frames)) < self.copy_threshold)
        return msg

    def deserialize(self, msg_list: list[Any], content: bool = True, copy: bool = True) -> dict[str, Any]:  # noqa: FBT001, FBT002 - as above
        """A request of this protocol's version, as jupyter_client reads it, but for dates: nobody asks for them."""
        signature, *parts = [frame if copy else bytes(frame.bytes) for frame in msg_list[:_PARTS]]
        header = self._header_of(signature, parts) if content and len(parts) == _PARTS - 1 and self.auth is not None else None
        if header is None:
            found: dict[str, Any] = super().deserialize(msg_list, content=content, copy=copy)
            return found
        self._add_digest(signature)
        return {
            "header": header,
            "msg_id": header["msg_id"],
            "msg_type": header["msg_type"],
            "parent_header": {} if parts[1] == _NOTHING else self.unpack(parts[1]),
            "metadata": {} if parts[2] == _NOTHING else self.unpack(parts[2]),
            "content": self.unpack(parts[3]),
            "buffers": [memoryview(frame) for frame in msg_list[_PARTS:]],
        }

    def _header_of(self, signature: bytes, parts: list[bytes]) -> dict[str, Any] | None:
        """The header of a message that is new and signed as it should be; else None: jupyter_client says what is wrong."""
        if signature in self.digest_history or not compare_digest(signature, self.sign(parts)):
            return None
        header: dict[str, Any] = self.unpack(parts[0])
        return header if str(header.get("version", "")).startswith("5.") else None

    def _packed_parent(self, parent: Any) -> bytes:
        """The parent's header, which is one and the same object for all messages of a cell."""
        known, packed = self._parent
        if known is not parent:
            packed = pack(parent)
            self._parent = (parent, packed)
        return packed
