"""Jupyter's messages with less work for each: a session that packs messages, and a shell channel that reads and sends them."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from datetime import UTC, datetime
from hmac import compare_digest
from typing import Any

import jupyter_client.session as jupyter
import zmq
from jupyter_client._version import protocol_version
from jupyter_client.jsonutil import json_clean, json_default

from ..output.iopub import NOBLOCK, has_message, send_frames

_quote = json.encoder.encode_basestring
_HEADER = ("msg_id", "msg_type", "username", "session", "date", "version")
_HEADER_TEXT = "{" + ", ".join(f'"{name}": %s' for name in _HEADER) + "}"
_EMPTY = b"{}"
_PARTS = 5  # the signature and four signed frames
#: One encoder for all values. Without a check for cycles, a value inside of itself ends with RecursionError: see ``pack``.
_encode = json.JSONEncoder(default=json_default, ensure_ascii=False, allow_nan=False, check_circular=False).encode


class LauncherMessageSession(jupyter.Session):
    """A message session with one packed parent for all messages of a cell, and without conversion of dates.

    - Checked for: jupyter_client 8.9, ipykernel 7.4.0.
    - Gain: 0.5 ms a cell in processor time, of 4.1 ms together with the driver.
    - Obsolete when: ``test_jupyter_client_packs_the_parent_of_each_message_again``.
    """

    # Traits of jupyter_client, which looks them up for each message; no kernel changes them.
    adapt_version: Any = 0
    debug: Any = False
    # Frames are always copied: pyzmq keeps the others alive by a thread, which runs from then on and prevents checkpoints.
    copy_threshold: Any = sys.maxsize
    _parent: tuple[Any, bytes] = ({}, _EMPTY)

    def msg_header(self, msg_type: str) -> dict[str, Any]:
        """Return a new header, with the date as text."""
        return {
            "msg_id": self.msg_id,
            "msg_type": msg_type,
            "username": self.username,
            "session": self.session,
            "date": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
            "version": protocol_version,
        }

    def serialize(self, msg: dict[str, Any], ident: list[bytes] | bytes | None = None) -> list[bytes]:
        """Return the frames of a message, without its buffers."""
        content, metadata = msg.get("content", {}), msg["metadata"]
        if not isinstance(content, dict):
            return super().serialize(msg, ident)
        parts = [
            _pack_header(msg["header"]),
            self._pack_parent(msg["parent_header"]),
            pack(metadata) if metadata else _EMPTY,
            pack(content),
        ]
        # On the wire: identities, delimiter, signature, header, parent header, metadata, content.
        idents = ident if isinstance(ident, list) else [] if ident is None else [ident]
        return [*idents, jupyter.DELIM, self.sign(parts), *parts]

    def sign(self, msg_list: list[bytes]) -> bytes:
        """Return the signature of frames, in hexadecimal, or an empty text without a key."""
        auth: Any = self.auth
        if auth is None:
            return b""
        digest = auth.copy()
        digest.update(b"".join(msg_list[:-1]))
        digest.update(b"".join(msg_list[-1:]))  # a single frame is not copied
        signature: bytes = digest.hexdigest().encode()
        return signature

    def send(
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
        """Send a message. jupyter_client sends messages with buffers and those for an old protocol."""
        msg = msg_or_type if isinstance(msg_or_type, dict) else self.msg(msg_or_type, content, parent, header, metadata)
        if stream is None or buffers or msg.get("buffers") or self.adapt_version or self.debug:
            return super().send(stream, msg, ident=ident, buffers=buffers, track=track)
        frames = self.serialize(msg, ident)
        stream.send_multipart(frames)
        return msg

    def deserialize(self, msg_list: list[Any], content: bool = True, copy: bool = True) -> dict[str, Any]:  # noqa: FBT001, FBT002 - as above
        """Read a request as jupyter_client does, but leave dates as text. jupyter_client reads other versions itself."""
        signature, *parts = [frame if copy else bytes(frame.bytes) for frame in msg_list[:_PARTS]]
        header = self._read_header(signature, parts) if content and len(parts) == _PARTS - 1 and self.auth is not None else None
        if header is None:
            message: dict[str, Any] = super().deserialize(msg_list, content=content, copy=copy)
            return message
        self._add_digest(signature)  # a request that is sent again is refused, as by jupyter_client
        return {
            "header": header,
            "msg_id": header["msg_id"],
            "msg_type": header["msg_type"],
            "parent_header": {} if parts[1] == _EMPTY else self.unpack(parts[1]),
            "metadata": {} if parts[2] == _EMPTY else self.unpack(parts[2]),
            "content": self.unpack(parts[3]),
            "buffers": [memoryview(frame) for frame in msg_list[_PARTS:]],
        }

    def _read_header(self, signature: bytes, parts: list[bytes]) -> dict[str, Any] | None:
        """Return the header of a new and correctly signed message, or None: jupyter_client refuses or converts others."""
        if signature in self.digest_history or not compare_digest(signature, self.sign(parts)):
            return None
        header: dict[str, Any] = self.unpack(parts[0])
        return header if str(header.get("version", "")).startswith("5.") else None

    def _pack_parent(self, parent: Any) -> bytes:
        """Pack a parent's header once for all messages of a cell."""
        # By identity: all messages of a cell have the same object. The tuple is replaced as a whole, for other threads.
        last, packed = self._parent
        if last is not parent:
            packed = pack(parent)
            self._parent = (parent, packed)
        return packed


def _pack_header(header: dict[str, Any]) -> bytes:
    """Pack a header by a template, if the header has exactly the fields of ``msg_header`` in their order."""
    if tuple(header) != _HEADER:
        return pack(header)
    try:
        return (_HEADER_TEXT % tuple(map(_quote, header.values()))).encode("utf-8", "backslashreplace")
    except TypeError:  # a value that is no text
        return pack(header)


def pack(value: Any) -> bytes:
    """Return JSON as Jupyter's own packer does, but escape a lone surrogate instead of dropping the whole message.

    Raises:
        TypeError, ValueError: the value cannot be encoded as JSON.
    """
    try:
        text = _encode(value)
    except (TypeError, ValueError, RecursionError):
        text = _encode(json_clean(value))
    return text.encode("utf-8", "backslashreplace")


class ShellChannel:
    """A replacement of ipykernel's ``ZMQStream``, which queues replies and takes more rounds of the loop for a request.

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
        """Handle each request in a task of the same context."""
        self._loop = asyncio.get_running_loop() if handle is None else asyncio.get_event_loop()
        self._handle = handle
        if handle is None:
            self._loop.remove_reader(self.socket.FD)
        else:
            # The descriptor signals changes, not a state: a request that came before is read at once instead.
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
        """Return an option of the socket. Event loops of graphical toolkits watch the socket's descriptor."""
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
            # libzmq delivers the parts of a message together, so the further calls of recv cannot fail with EAGAIN.
            request = [self._bare.recv(NOBLOCK, copy=False)]
            while request[-1].more:
                request.append(self._bare.recv(NOBLOCK, copy=False))
            task = self._loop.create_task(self._handle(request), context=self._context)
            self.running.add(task)
            task.add_done_callback(self.running.discard)
            count += 1
        return count
