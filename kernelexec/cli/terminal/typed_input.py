"""What the user has typed while a question to the terminal itself was open: it is kept for the next prompt."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_TYPED_BYTES_MAX = 4096


class TypedInput:
    """The text that was read with an answer of the terminal, and whether another reader waits for input now."""

    def __init__(self) -> None:
        self.is_awaited = False
        self._kept = b""

    @contextmanager
    def await_line(self) -> Iterator[None]:
        """Let the terminal be asked nothing while the block reads typed input."""
        self.is_awaited = True
        try:
            yield
        finally:
            self.is_awaited = False

    def keep(self, raw: bytes) -> None:
        """Keep typed bytes, up to a page of them."""
        self._kept = (self._kept + raw)[:_TYPED_BYTES_MAX]

    def take(self) -> str:
        """Return the kept text once, with newlines, without other control characters."""
        text, self._kept = self._kept.decode("utf-8", "replace").replace("\r", "\n"), b""
        return "".join(char for char in text if char.isprintable() or char == "\n")

    def take_line(self) -> str:
        """Return the first kept line with its newline; without one all of the text. The rest stays."""
        line, newline, rest = self.take().partition("\n")
        self.keep(rest.encode())
        return line + newline


#: Of the one terminal that a process has.
TYPED_INPUT = TypedInput()
