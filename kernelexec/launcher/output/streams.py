"""The kernel's streams for the iopub thread, with class names by which libraries recognise Jupyter."""

from __future__ import annotations

import codecs
import io
import os
import sys
import threading
from time import monotonic
from typing import Any, TypeVar

from ipykernel.iostream import OutStream

from .. import owner
from .captured_output import DRAIN_SECONDS, CapturedFd
from .iopub import Publisher

_SLICE_CHARS = 256 * 1024
_FLUSH_CHARS = 64 * 1024
_PENDING_CHARS = 512 * 1024  # together with the message that is being sent, less than the crash buffer holds
_TIGHT_SECONDS = 10e-6  # in a tight loop no program runs between two prints, so no look for its output is needed

_Class = TypeVar("_Class", bound=type)


def named_as_base(subclass: _Class) -> _Class:
    """Give a class the name and module of the base class, as a decorator.

    Rich, tqdm, click, pandas and others choose their display of progress, tables and colours by the class name or module of
    the shell or of ``sys.stdout``.
    """
    base: type = subclass.__mro__[1]
    subclass.__name__, subclass.__qualname__, subclass.__module__ = base.__name__, base.__qualname__, base.__module__
    return subclass


@named_as_base
class OutputStream(OutStream):
    """A stream of the kernel. A common queue keeps the order of both streams and of captured descriptors."""

    flush_timeout = 3600  # seconds; ipykernel gives up after 10, while here a slow reader slows the cell down

    def __init__(self, session: Any, pub_thread: Publisher, name: str, **kwargs: Any) -> None:
        self._written = 0.0
        self._shares_fd = False
        """Whether code has the descriptor, and may write to it between two prints of a tight loop."""
        self._captured_fd: CapturedFd | None = None
        self._is_stderr = name == "stderr"
        super().__init__(session, pub_thread, name, **kwargs)
        pub_thread.streams[name] = self
        self.buffer = StreamBuffer(self)

    def write(self, string: str) -> int | None:  # type: ignore[override]  # ipykernel's own signature
        """Queue text for publishing. Wait while too much text is pending.

        Raises:
            TypeError: the argument is no text.
            ValueError: the stream is closed.
        """
        publisher = self.pub_thread
        if not isinstance(string, str):
            raise TypeError(f"write() argument must be str, not {type(string)}")
        if publisher is None:
            raise ValueError("I/O operation on closed file")
        if owner.is_forked_child or len(string) > _SLICE_CHARS:
            return self._write_in_slices(publisher, string)
        # Output of C code and of programs before this print must come before this text.
        now = monotonic()
        if (self._shares_fd or now - self._written > _TIGHT_SECONDS) and publisher.pipes.has_output:
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
        if owner.is_forked_child:
            publisher.forked_output.write(self.name, string)
        else:
            for start in range(0, len(string), _SLICE_CHARS):
                self.write(string[start : start + _SLICE_CHARS])
        return len(string)

    def queue(self, publisher: Publisher, parent: Any, text: str, content: bytes) -> None:
        """Queue text, also passed as UTF-8, behind all earlier output. Wait while too much text is pending."""
        with publisher.lock:
            while publisher.pending_chars > _PENDING_CHARS and publisher.may_block and not publisher.publishes_here:
                publisher.queue_condition.wait()
            if self is publisher.last_stream and parent is publisher.last_parent:
                publisher.last_texts.append(text)
            else:
                publisher.begin_piece(self, parent, text)
            # Under the lock, so the buffer has the order of the queue. By identity: late text of other cells is left out.
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
        """Wait until all output, children's output included, is on its way."""
        publisher = self.pub_thread
        if publisher is None or owner.is_forked_child:
            return
        if publisher.pipes.has_output:
            self.drain()
        if not (publisher.pieces or publisher.publishing):
            return
        if publisher.between_cells and threading.current_thread() is threading.main_thread():
            publisher.flush_text()
        else:
            super().flush()
            # Without a crash buffer, text in libzmq's queues would die with the process.
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
        self._captured_fd = CapturedFd(self._original_stdstream_fd, self.pub_thread.pipes, self.take)

    def take(self, text: str) -> None:
        """Queue text of a program or of a forked child, as output of the newest cell."""
        if self.pub_thread is not None:
            self.queue(self.pub_thread, self._parent_header_global, text, text.encode("utf-8", "backslashreplace"))

    @property
    def captured_fd(self) -> CapturedFd | None:
        """The captured descriptor, or None without capture."""
        return self._captured_fd

    def read_left(self) -> None:
        """Wait for a bounded time for the present output of earlier cells' children."""
        if self.pub_thread is not None and self.pub_thread.may_block:
            self.pub_thread.pipes.read_left(DRAIN_SECONDS)

    def end_cell(self) -> None:
        """Show partial lines of children, and stop waiting for children that outlive the cell."""
        if self._captured_fd is not None and self.pub_thread is not None:
            self.pub_thread.pipes.end_cell()
            self._captured_fd.end_cell()

    def recapture(self) -> None:
        """Capture the descriptor again if the cell closed it."""
        if self._captured_fd is not None:
            self._captured_fd.recapture()

    def fileno(self) -> int:
        """Return the captured descriptor, for output of programs and C code as output of the cell."""
        self._shares_fd = True
        fd: int = super().fileno() if self._captured_fd is None else self._original_stdstream_fd
        return fd

    @property
    def own_fd(self) -> int | None:
        """The descriptor past the capture, or None without capture."""
        return None if self._captured_fd is None else self._original_stdstream_copy

    def resume(self) -> None:
        """Capture the descriptor anew in a copy of this process."""
        publisher = self.pub_thread
        if publisher is None or self._captured_fd is None:
            return
        self._flush_pending = self._subprocess_flush_pending = False
        self._buffer_lock, self._io_loop = threading.RLock(), publisher.io_loop
        publisher.streams[self.name] = self
        self._captured_fd = CapturedFd(self._original_stdstream_fd, publisher.pipes, self.take)

    def reconfigure(self, **_options: Any) -> None:
        """Do nothing. Text is published as text, so a requested encoding has no effect."""

    def close(self) -> None:
        """Flush only, since the next cell needs the stream."""
        self.flush()

    def drain(self) -> None:
        """Wait for a bounded time until all output of descriptors and children has been read."""
        publisher = self.pub_thread
        if publisher is not None and publisher.may_block:
            publisher.pipes.drain(DRAIN_SECONDS)


class StreamBuffer(io.BufferedIOBase):
    """The binary layer of a stream, for bytes written to ``sys.stdout.buffer`` and for text layers around this layer.

    Bytes are text in UTF-8, and invalid bytes are replaced.
    """

    mode = "wb"

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def name(self) -> str:
        """The name of the stream."""
        return f"<{self._stream.name}>"

    @property
    def raw(self) -> StreamBuffer:
        """The layer without a buffer, which is this layer."""
        return self

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, content: Any) -> int:
        """Write bytes. Two calls may split a character."""
        data = memoryview(content).tobytes()
        if text := self._decoder.decode(data):
            self._stream.write(text)
        return len(data)

    def flush(self) -> None:
        """Flush the stream."""
        self._stream.flush()

    def fileno(self) -> int:
        """Return the stream's file descriptor."""
        number: int = self._stream.fileno()
        return number

    def close(self) -> None:
        """Flush only, since later cells need the stream. A text layer calls this too when it is closed or deleted."""
        self.flush()
