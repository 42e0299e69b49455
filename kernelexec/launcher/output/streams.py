"""The kernel's streams, whose text the iopub thread publishes, under the names by which libraries recognise Jupyter."""

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
_TIGHT_SECONDS = 10e-6  # in a tight loop no program can run between two prints: do not look for its output

_Class = TypeVar("_Class", bound=type)


def named_as_base(subclass: _Class) -> _Class:
    """Give a class the name and module of its base, as a decorator.

    Rich, tqdm, click, pandas and others look at the name or the module of the class of the shell or of ``sys.stdout``, and
    choose by it how they show progress, tables and colours.
    """
    base: type = subclass.__mro__[1]
    subclass.__name__, subclass.__qualname__, subclass.__module__ = base.__name__, base.__qualname__, base.__module__
    return subclass


@named_as_base
class OutputStream(OutStream):
    """One stream of the kernel; its text waits in one order with the other stream's and that of captured descriptors."""

    flush_timeout = 3600

    def __init__(self, session: Any, pub_thread: Publisher, name: str, **kwargs: Any) -> None:
        self._written = 0.0
        self._shares_fd = False
        """Whether code has asked for the descriptor, so that it may write there between two prints of a tight loop."""
        self._captured_fd: CapturedFd | None = None
        self._is_stderr = name == "stderr"
        super().__init__(session, pub_thread, name, **kwargs)
        pub_thread.streams[name] = self
        self.buffer = StreamBuffer(self)

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
        if owner.is_forked_child or len(string) > _SLICE_CHARS:
            return self._write_in_slices(publisher, string)
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
        """Queue text of a program or of a forked child; it belongs to the newest cell."""
        if self.pub_thread is not None:
            self.queue(self.pub_thread, self._parent_header_global, text, text.encode("utf-8", "backslashreplace"))

    @property
    def captured_fd(self) -> CapturedFd | None:
        """The captured descriptor; None where nothing is captured."""
        return self._captured_fd

    def read_left(self) -> None:
        """Wait, for a bounded time, for what children of earlier cells have written by now."""
        if self.pub_thread is not None and self.pub_thread.may_block:
            self.pub_thread.pipes.read_left(DRAIN_SECONDS)

    def end_cell(self) -> None:
        """Show partial lines of children, and do not wait any more for those that go on."""
        if self._captured_fd is not None and self.pub_thread is not None:
            self.pub_thread.pipes.end_cell()
            self._captured_fd.end_cell()

    def begin_cell(self) -> None:
        """Capture the descriptor again if an earlier cell closed it."""
        if self._captured_fd is not None:
            self._captured_fd.recapture()

    def fileno(self) -> int:
        """Return the captured descriptor, so that what programs and C code write there is output of the cell."""
        self._shares_fd = True
        fd: int = super().fileno() if self._captured_fd is None else self._original_stdstream_fd
        return fd

    @property
    def own_fd(self) -> int | None:
        """The descriptor for what is not captured; None where nothing is captured."""
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
        """Do nothing: text is published as text, whatever encoding a script asks for."""

    def close(self) -> None:
        """Flush only: the next cell needs the stream."""
        self.flush()

    def drain(self) -> None:
        """Wait, for a bounded time, until all output of descriptors and children has been read."""
        publisher = self.pub_thread
        if publisher is not None and publisher.may_block:
            publisher.pipes.drain(DRAIN_SECONDS)


class StreamBuffer(io.BufferedIOBase):
    """The binary layer of a stream, for code that writes bytes to ``sys.stdout.buffer`` or wraps it in a text layer.

    Bytes are text in UTF-8; invalid ones are replaced.
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
        """The layer without a buffer: nothing is buffered here."""
        return self

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, content: Any) -> int:
        """Write bytes; a character may be split between two calls."""
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
        """Flush only, also when a text layer around this one is closed or deleted: later cells need the stream."""
        self.flush()
