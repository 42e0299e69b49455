"""The binary layer of a kernel's stream, for code that writes bytes to ``sys.stdout.buffer`` or wraps it in a text layer."""

from __future__ import annotations

import codecs
import io
from typing import Any


class StreamBuffer(io.BufferedIOBase):
    """A binary stream whose bytes are text in UTF-8 for a text stream; invalid bytes are replaced."""

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
