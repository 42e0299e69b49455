"""The newest outputs of a running cell, for its readers: a bounded window whose positions stay valid."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import groupby

from kernelexec.results import Output, Stream

#: The cost of a piece of output in memory, in addition to its text, in bytes.
_PIECE_BYTES = 256


class OutputWindow:
    """The newest outputs. A position counts bytes of text since the start, at least one for each output."""

    def __init__(self, limit_bytes: int) -> None:
        self.held_bytes = 0
        self.end = 0
        self._limit = limit_bytes
        self._outputs: deque[tuple[Output, int]] = deque()

    def add(self, output: Output, size: int) -> None:
        """Add an output; the oldest are removed beyond the limit."""
        self.end += max(1, size)
        self._outputs.append((output, max(1, size)))
        self.held_bytes += size + _PIECE_BYTES
        while self.held_bytes > self._limit and len(self._outputs) > 1:
            _, gone = self._outputs.popleft()
            self.held_bytes -= gone + _PIECE_BYTES

    def since(self, position: int) -> tuple[tuple[Output, ...], int]:
        """Return the outputs after a position, streams joined, and the number of bytes that are no longer in memory."""
        outputs: deque[Output] = deque()
        start = self.end
        for output, size in reversed(self._outputs):
            if start <= position:
                break
            start -= size
            outputs.appendleft(output)
        return tuple(_join_streams(outputs)), max(0, start - position)


def _join_streams(outputs: Iterable[Output]) -> Iterator[Output]:
    for name, pieces in groupby(outputs, lambda output: output.name if isinstance(output, Stream) else None):
        if name is None:
            yield from pieces
        else:
            yield Stream(name, "".join(piece.text for piece in pieces if isinstance(piece, Stream)))
