"""stdout and stderr of the kernel: bounded text, in order of writing, under the cell that wrote it."""

from __future__ import annotations

import os
import sys
import threading
from time import monotonic
from typing import Any

from ipykernel.iostream import OutStream

from ..processes import fork_flag
from .fd_capture import CapturedFd
from .iopub import Publisher

_SLICE_CHARS = 256 * 1024
_FLUSH_CHARS = 64 * 1024
_PENDING_CHARS = 512 * 1024  # together with the message that is being sent, less than the crash buffer holds
_DRAIN_SECONDS = 0.25
_TIGHT_SECONDS = 10e-6  # in a tight loop no program can run between two prints: do not look for its output


class OutputStream(OutStream):
    """One stream of the kernel; its text waits in one order with the other stream's and that of captured descriptors."""

    flush_timeout = 3600

    def __init__(self, session: Any, pub_thread: Publisher, name: str, **kwargs: Any) -> None:
        self._written = 0.0
        self._captured_fd: CapturedFd | None = None
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
        if fork_flag.is_forked_child or len(string) > _SLICE_CHARS:
            return self._write_in_slices(publisher, string)
        now = monotonic()
        if now - self._written > _TIGHT_SECONDS and publisher.pipes.has_output:
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

    def _write_in_slices(self, publisher: Publisher, string: str) -> int:
        if fork_flag.is_forked_child:
            publisher.forked_output.write(self.name, self.parent_header, string)
        else:
            for start in range(0, len(string), _SLICE_CHARS):
                self.write(string[start : start + _SLICE_CHARS])
        return len(string)

    def queue(self, publisher: Publisher, parent: Any, text: str, content: bytes) -> None:
        """Queue text, passed as UTF-8 too, behind all earlier output; wait while too much is pending."""
        with publisher.lock:
            while publisher.pending_chars > _PENDING_CHARS and publisher.may_block and not publisher.publishes_here:
                publisher.queue_condition.wait()
            if self is publisher.last_stream and parent is publisher.last_parent:
                publisher.last_texts.append(text)
            else:
                publisher.begin_piece(self, parent, text)
            if parent is publisher.crash_buffer.header:
                publisher.crash_buffer.add(self._is_stderr, content)
            publisher.pending_chars = pending = publisher.pending_chars + len(text)
            full = pending >= _FLUSH_CHARS and not publisher.flushing
            if full:
                publisher.flushing = True
        if full:
            publisher.schedule(publisher.flush_text)
        else:
            publisher.flush_soon()

    def flush(self) -> None:
        """Wait until all output, of children too, is on its way."""
        publisher = self.pub_thread
        if publisher is None or fork_flag.is_forked_child:
            return
        if publisher.pipes.has_output:
            self.drain()
        if not (publisher.pieces or publisher.publishing):
            return
        if publisher.between_cells and threading.current_thread() is threading.main_thread():
            publisher.flush_text()
        else:
            super().flush()
            if not publisher.crash_buffer.is_file_backed:
                publisher.io_threads.wait()

    def _flush(self) -> None:
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
        self._captured_fd = CapturedFd(self._original_stdstream_fd, self.pub_thread.pipes, self._take)

    def _take(self, parent: Any, text: str) -> None:
        if self.pub_thread is not None:
            self.queue(self.pub_thread, parent or self._parent_header_global, text, text.encode())

    def begin_cell(self) -> None:
        """Capture the descriptor again if an earlier cell replaced it."""
        if self._captured_fd is not None:
            self._captured_fd.recapture()

    def separate_programs(self) -> None:
        """Assign later output of running programs to the cell that ends."""
        if self._captured_fd is not None:
            self._captured_fd.rotate(self._parent_header_global)

    def close(self) -> None:
        """Flush only: the next cell needs the stream."""
        self.flush()

    def drain(self) -> None:
        """Wait, for a bounded time, until all output of descriptors and children has been read."""
        publisher = self.pub_thread
        if publisher is not None and publisher.may_block:
            publisher.pipes.drain(_DRAIN_SECONDS)
