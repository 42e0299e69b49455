"""The kernel's way out: nothing honest is lost and nothing grows without bound.

ipykernel publishes on a socket that drops what a slow reader does not take, from queues without an end. Here the socket
blocks instead, the queues are bounded, and whoever writes too fast waits: a cell that floods runs at its reader's speed.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any

import zmq
from ipykernel.iostream import IOPubThread, OutStream
from ipykernel.thread import CONTROL_THREAD_NAME
from jupyter_client.jsonutil import json_clean, json_default

from .inlet import Children, Inlet
from .pages import Descriptor
from .tape import Gap, Tape
from .words import LastWords

_SENDING_MAX = 64  # messages that libzmq holds: what is queued there delays an interrupt
_QUEUE_BYTES = 8 * 1024 * 1024
_MESSAGE_BYTES = 4096  # what a small message costs while it waits
_SLICE_CHARS = 256 * 1024
_FLUSH_CHARS = 64 * 1024
_PENDING_CHARS = 512 * 1024  # with what is just being sent, less than the last words hold
_DRAIN_SECONDS = 0.25
_TIGHT_SECONDS = 10e-6  # between two prints of a tight loop no program can have come and gone: do not look for its output


#: Whether this process is a child that a cell forked.
forked = False


def _note_fork() -> None:
    global forked  # noqa: PLW0603 - asked in every write, where a system call would cost too much
    forked = True


os.register_at_fork(after_in_child=_note_fork)


def block_instead_of_dropping(socket: zmq.Socket[bytes]) -> None:
    """Make an XPUB socket keep what its subscriber is too slow for. Call it before the socket is bound."""
    socket.setsockopt(zmq.XPUB_NODROP, 1)
    socket.setsockopt(zmq.SNDHWM, _SENDING_MAX)


def pack(value: Any) -> bytes:
    """JSON as Jupyter's own packer makes it, but a lone surrogate is escaped, where that one drops the whole message.

    Raises:
        TypeError, ValueError: no JSON can be made of the value.
    """
    try:
        text = json.dumps(value, default=json_default, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError):
        text = json.dumps(json_clean(value), default=json_default, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "backslashreplace")


class Publisher(IOPubThread):
    """ipykernel's iopub thread with a bounded queue. The control thread never waits for it: interrupts must get through."""

    def __init__(self, socket: Any, pipe: bool = False, session: Any = False) -> None:  # noqa: FBT001, FBT002 - ipykernel's
        self.lock = threading.RLock()  # a signal handler may print while its thread holds it
        self.room = threading.Condition(self.lock)
        self.pieces: list[tuple[Stream | None, Any, list[str]]] = []  # text, and calls that send other messages
        self.last_stream: Stream | None = None
        self.last_parent: Any = None
        self.last_texts: list[str] = []
        self.pending_chars = 0
        self.flushing = self.publishing = False
        self.words = LastWords(None)
        self.tape: Tape | None = None
        self.text_bytes = 0
        self.streams: dict[str, Stream] = {}
        self.inlet = Inlet()
        self.children = Children(self.inlet, self._take_from_child)
        self._queued_bytes = 0
        self._woken = False
        super().__init__(socket, pipe=pipe, session=session)

    @property
    def may_block(self) -> bool:
        """Whether the calling thread may wait for this one."""
        current = threading.current_thread()
        return self.thread.is_alive() and current is not self.thread and current.name != CONTROL_THREAD_NAME

    def send_multipart(self, msg: Any, *args: Any, **kwargs: Any) -> None:
        """Send a message from this thread; from another one queue it, and wait while the queue is full."""
        if forked:  # none of the locks may be taken in a child
            with suppress(ValueError, LookupError, TypeError):
                self.children.write_message(list(map(bytes, msg)))
            return
        if threading.current_thread() is self.thread:
            self._really_send(msg, *args, **kwargs)
            self._mind_subscriptions()
            return
        size = _MESSAGE_BYTES + sum(len(frame) if isinstance(frame, bytes) else memoryview(frame).nbytes for frame in msg)

        def send() -> None:
            try:
                self._really_send(msg, *args, **kwargs)
            finally:
                with self.room:
                    self._queued_bytes -= size
                    self.room.notify_all()
            self._mind_subscriptions()

        with self.room:
            while self._queued_bytes and self._queued_bytes + size > _QUEUE_BYTES and self.may_block:
                self.room.wait()
            self._queued_bytes += size
            self.last_stream = self.last_parent = None
            self.pieces.append((None, send, []))
        self.schedule(self.flush_text)

    def _really_send(self, msg: Any, *args: Any, **kwargs: Any) -> None:
        if self.tape is not None:
            self.tape.add(msg, self.text_bytes)
        super()._really_send(msg, *args, **kwargs)

    def replay(self, tape: Tape, request: Any) -> None:
        """Send again what a cell published, after a word that it begins. Runs in this thread: what is new comes after it."""
        reply, metadata = tape.reply or (None, None)
        self.session.send(self, "kernelexec_tape", {"reply": reply, "metadata": metadata}, parent=request)
        for item in tape:
            if isinstance(item, Gap):
                self.session.send(self, "kernelexec_gap", vars(item), parent=request)
            else:
                super()._really_send(item)

    def schedule(self, f: Callable[[], Any]) -> None:
        """Have a function called in this thread; one wake-up serves all that wait, so that the wake-up pipe never fills."""
        if not self.thread.is_alive():
            f()
            return
        self._events.append(f)
        if not self._woken:
            self._woken = True
            self._event_pipe.send(b"")

    def _handle_event(self, msg: Any) -> None:
        self._woken = False
        super()._handle_event(msg)

    def _take_from_child(self, stream: str, parent: Any, text: str) -> None:
        if stream in self.streams:
            self.streams[stream].queue(self, parent, text, text.encode("utf-8", "backslashreplace"))

    def _mind_subscriptions(self) -> None:
        """Sending eats the edge that announces a subscription (ipykernel 7.4): look for one, or its welcome gets stuck."""
        if self.socket is not None and self.socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            self._xpub_stream.flush(zmq.POLLIN)

    def begin_piece(self, stream: Stream, parent: Any, text: str) -> None:
        """Text of another stream or cell than before. Call it with the lock."""
        self.last_stream, self.last_parent, self.last_texts = stream, parent, [text]
        self.pieces.append((stream, parent, self.last_texts))

    def flush_text(self) -> None:
        """Publish what is pending in one order: text of both streams, and messages between. Runs in this thread."""
        with self.room:
            pieces, self.pieces, self.pending_chars, self.flushing = self.pieces, [], 0, False
            self.last_stream = self.last_parent = None
            self.publishing = bool(pieces)
            self.room.notify_all()
        for stream, parent, texts in pieces:
            with suppress(Exception):  # one message's fault must not cost the others
                parent() if stream is None else stream.publish("".join(texts), parent)
        self.publishing = False


class Stream(OutStream):
    """stdout or stderr of the kernel: text waits in one order with the other stream's, captured descriptors included."""

    flush_timeout = 3600

    def __init__(self, session: Any, pub_thread: Publisher, name: str, **kwargs: Any) -> None:
        self._written = 0.0
        self._descriptor: Descriptor | None = None
        self._is_stderr = name == "stderr"
        super().__init__(session, pub_thread, name, **kwargs)
        pub_thread.streams[name] = self

    def write(self, string: str) -> int | None:  # type: ignore[override]  # ipykernel's own signature
        """Queue text for publishing; wait while too much is pending.

        Raises:
            TypeError: not text.
            ValueError: the stream is closed.
        """
        publisher = self.pub_thread
        if not isinstance(string, str):
            raise TypeError(f"write() argument must be str, not {type(string)}")
        if publisher is None:
            raise ValueError("I/O operation on closed file")
        if forked or len(string) > _SLICE_CHARS:
            return self._write_otherwise(publisher, string)
        now = monotonic()
        if now - self._written > _TIGHT_SECONDS and publisher.inlet.busy:
            self.drain()
        self._written = now
        try:
            content = string.encode()
        except UnicodeEncodeError:
            content = string.encode("utf-8", "backslashreplace")
            self.queue(publisher, self.parent_header, content.decode(), content)
        else:
            self.queue(publisher, self._parent_header.get(self._parent_header_global), string, content)
        return len(string)

    def _write_otherwise(self, publisher: Publisher, string: str) -> int:
        if forked:
            publisher.children.write(self.name, self.parent_header, string)
        else:
            for start in range(0, len(string), _SLICE_CHARS):
                self.write(string[start : start + _SLICE_CHARS])
        return len(string)

    def queue(self, publisher: Publisher, parent: Any, text: str, content: bytes) -> None:
        """Put text, given as UTF-8 too, behind all that was written before; wait while too much is pending."""
        with publisher.lock:
            while publisher.pending_chars > _PENDING_CHARS and publisher.may_block:
                publisher.room.wait()
            if self is publisher.last_stream and parent is publisher.last_parent:
                publisher.last_texts.append(text)
            else:
                publisher.begin_piece(self, parent, text)
            if parent is publisher.words.header:
                publisher.words.add(self._is_stderr, content)
            publisher.pending_chars = pending = publisher.pending_chars + len(text)
            full = pending >= _FLUSH_CHARS and not publisher.flushing
            if full:
                publisher.flushing = True
        if full:
            publisher.schedule(publisher.flush_text)
        elif not self._flush_pending:
            self._schedule_flush()

    def flush(self) -> None:
        """Wait until what was written, by children too, is on its way; where nothing is pending, cost nothing."""
        publisher = self.pub_thread
        if publisher is None or forked:
            return
        if publisher.inlet.busy:
            self.drain()
        if publisher.pieces or publisher.publishing:
            super().flush()

    def _flush(self) -> None:
        self._flush_pending = False
        if self.pub_thread is not None:
            self.pub_thread.flush_text()

    def publish(self, text: str, parent: Any) -> None:
        """Send text as stream messages of a bounded size. Runs in the publisher's thread."""
        for start in range(0, len(text), _SLICE_CHARS):
            piece = text[start : start + _SLICE_CHARS]
            self.pub_thread.text_bytes = len(piece) if piece.isascii() else len(piece.encode("utf-8", "replace"))
            self.session.send(self.pub_thread, "stream", {"name": self.name, "text": piece}, parent=parent, ident=self.topic)
        self.pub_thread.text_bytes = 0

    def _setup_stream_redirects(self, name: str) -> None:
        self._original_stdstream_fd = getattr(sys, name).fileno()
        self._original_stdstream_copy = os.dup(self._original_stdstream_fd)
        assert self.pub_thread is not None
        self._descriptor = Descriptor(self._original_stdstream_fd, self.pub_thread.inlet, self._take)

    def _take(self, parent: Any, text: str) -> None:
        if self.pub_thread is not None:
            self.queue(self.pub_thread, parent or self._parent_header_global, text, text.encode())

    def begin_cell(self) -> None:
        """Have the descriptor lead here, whatever an earlier cell did to it."""
        if self._descriptor is not None:
            self._descriptor.take_back()

    def part_from_programs(self) -> None:
        """What programs that were started so far still write belongs to the cell that ends."""
        if self._descriptor is not None:
            self._descriptor.turn_page(self._parent_header_global)

    def close(self) -> None:
        """Flush only: the next cell needs the stream, whatever this one does to it."""
        self.flush()

    def drain(self) -> None:
        """Wait, for a bounded time, until all that was written to the descriptors, or by children, has been read."""
        publisher = self.pub_thread
        if publisher is not None and publisher.may_block:
            publisher.inlet.drain(_DRAIN_SECONDS)
