"""Jupyter messages on the wire: signed on the way out; checked, bounded and masked on the way in. No socket, no clock.

Source: https://jupyter-client.readthedocs.io/en/stable/messaging.html (wire protocol 5.x).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from json.scanner import make_scanner
from typing import TYPE_CHECKING, Any

from kernelexec.kernel.wire.zmtp import Multipart
from kernelexec.launcher import protocol
from kernelexec.text import ELEMENTS_MAX, has_more_elements, make_json_encoder

if TYPE_CHECKING:
    from kernelexec.rules.secrets import SecretStore

_VERSION = "5.4"
_SIGNED_FRAMES = 4
_ENVELOPE_BYTES = 64 * 1024
#: A message type without news: the content, a copy of the request, is never read.
_ECHO = "execute_input"
_encode = make_json_encoder(separators=(",", ":"))
_scan: Any = make_scanner(json.JSONDecoder())  # type: ignore[arg-type]  # without looks for white space around it
#: Messages masked by the collector, which has to join the parts of a stream first.
_OUTPUTS = frozenset({"stream", "display_data", "execute_result", "update_display_data", "error", "clear_output", "status"})
#: Protocol fields without user text: a secret that happens to be part of a value there must not change a verdict.
_SPARED = frozenset({"status", "token", "known", "source", "file", "sha256", "found", "msg_id"})


@dataclass(frozen=True, slots=True)
class Message:
    """A message from the kernel. ``whole`` is False if the content was not read: too large, or too many elements."""

    msg_type: str
    msg_id: str
    parent_id: str
    session: str
    content: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    whole: bool = True
    dropped_bytes: int = 0


class Malformed(Exception):
    """A message not from this kernel: not made of JSON objects, not signed with the key, or cut short."""


class _TooManyElements(Exception):
    """A message part with too many objects to be read."""


class MessageSession:
    """The messages of a connection with its own session id: packed, signed, verified, unpacked and masked."""

    def __init__(self, key: bytes) -> None:
        self.session_id = uuid.uuid4().hex
        self._hmac = hmac.new(key, digestmod=hashlib.sha256)
        self.secrets: SecretStore | None = None
        """Secrets to mask in received messages, before any other code reads them."""
        self._count = 0
        self._parent = (b"{}", "")

    def pack(self, msg_type: str, content: dict[str, Any], *, msg_id: str | None = None) -> tuple[str, list[bytes]]:
        """Return the msg_id of a request and its frames."""
        self._count += 1
        msg_id = msg_id or f"{self.session_id}_{self._count}"
        header = {
            "msg_id": msg_id,
            "msg_type": msg_type,
            "session": self.session_id,
            "username": protocol.OWNER_USERNAME,
            "date": datetime.now(UTC).isoformat(),
            "version": _VERSION,
        }
        parts = [_dump(header), b"{}", b"{}", _dump(content)]
        return msg_id, [protocol.DELIMITER, self._sign(parts), *parts]

    def read(self, multipart: Multipart) -> Message | None:
        """Return the message in the frames; None for a message to be dropped."""
        try:
            message = self.unpack(multipart)
        except Malformed:
            return None
        if self.secrets is None or message.msg_type in _OUTPUTS:
            return message
        mask = partial(self.secrets.masker.mask_value, keys=False, spared=_SPARED)
        return replace(message, content=mask(message.content), metadata=mask(message.metadata))

    def unpack(self, multipart: Multipart) -> Message:
        """Return the message in the frames; raise ``Malformed`` for a message to be dropped."""
        # Identities or a topic | <IDS|MSG> | signature | header | parent header | metadata | content | buffers
        # A frame over the limit is None.
        frames = multipart.frames
        try:
            start = frames.index(protocol.DELIMITER) + 1
            signature, *parts = frames[start : start + 1 + _SIGNED_FRAMES]
            header_part, parent_part, metadata_part, content_part = parts
        except ValueError as exc:
            raise Malformed from exc
        if signature is None:
            raise Malformed
        whole = metadata_part is not None and content_part is not None
        # A message with a skipped frame cannot be verified. Only its type and parent are used, to count the missing bytes or
        # to note an unread reply.
        if whole and not hmac.compare_digest(self._sign([part or b"" for part in parts]), signature):
            raise Malformed
        header = _load(header_part, _ENVELOPE_BYTES)
        message = Message(
            msg_type=_text(header, "msg_type"),
            msg_id=_text(header, "msg_id"),
            parent_id=self._parent_id(parent_part),
            session=_text(header, "session"),
            whole=whole,
            dropped_bytes=multipart.dropped_bytes,
        )
        if not whole:
            return message
        try:
            content = _load(content_part) if message.msg_type != _ECHO else {}
            return replace(message, content=content, metadata=_load(metadata_part))
        except _TooManyElements:
            return replace(message, whole=False, dropped_bytes=len(content_part or b"") + len(metadata_part or b""))

    def _parent_id(self, part: bytes | None) -> str:
        """Return the msg_id of the parent header, parsed once for all messages of a cell."""
        known, parent_id = self._parent
        if part != known or part is None:
            parent_id = _text(_load(part, _ENVELOPE_BYTES), "msg_id")
            self._parent = part or b"{}", parent_id
        return parent_id

    def _sign(self, parts: Sequence[bytes]) -> bytes:
        *envelope, content = parts
        signer = self._hmac.copy()  # the key is hashed once for the connection
        signer.update(b"".join(envelope))
        signer.update(content)
        return signer.hexdigest().encode()


def _dump(value: dict[str, Any]) -> bytes:
    return _encode(value).encode("utf-8")


def _load(part: bytes | None, limit: int | None = None) -> dict[str, Any]:
    if part is None or (limit is not None and len(part) > limit):
        raise Malformed
    if part == b"{}":
        return {}
    try:
        if has_more_elements(part, ELEMENTS_MAX):
            raise _TooManyElements
        value = _value(part)
    except (ValueError, RecursionError, MemoryError) as exc:
        raise Malformed from exc
    if not isinstance(value, dict):
        raise Malformed
    return value


def _value(part: bytes) -> object:
    text = part.decode()
    # `json.loads` also looks for white space at both ends. It is left to the rare texts that have some, or are not JSON.
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        end = -1
    return value if end == len(text) else json.loads(text)


def _text(header: dict[str, Any], name: str) -> str:
    value = header.get(name)
    return value if isinstance(value, str) else ""
