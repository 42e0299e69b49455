"""The outputs of a cell as they came, for those who follow it: a bounded window with positions that stay valid."""

from __future__ import annotations

from collections import deque

from kernelexec.results import Output, Stream

_PIECE_BYTES = 256


class Tape:
    """The newest outputs. A position counts bytes of text since the beginning, one at least for each output."""

    def __init__(self, limit_bytes: int) -> None:
        self.held_bytes = 0
        self.end = 0
        self._limit = limit_bytes
        self._outputs: deque[tuple[Output, int]] = deque()

    def add(self, output: Output, size: int) -> None:
        """Take the next output; the oldest give way."""
        self.end += max(1, size)
        self._outputs.append((output, max(1, size)))
        self.held_bytes += size + _PIECE_BYTES
        while self.held_bytes > self._limit and len(self._outputs) > 1:
            _, gone = self._outputs.popleft()
            self.held_bytes -= gone + _PIECE_BYTES

    def since(self, position: int) -> tuple[tuple[Output, ...], int]:
        """The outputs after a position, streams joined, and how many bytes since then are no longer held."""
        found: deque[Output] = deque()
        start = self.end
        for output, size in reversed(self._outputs):
            if start <= position:
                break
            start -= size
            found.appendleft(output)
        return tuple(_joined(found)), max(0, start - position)


def _joined(outputs: deque[Output]) -> list[Output]:
    found: list[Output] = []
    texts: list[str] = []
    for output in outputs:
        last = found[-1] if found else None
        if isinstance(output, Stream) and isinstance(last, Stream) and output.name == last.name:
            texts.append(output.text)
            continue
        if texts and isinstance(last, Stream):
            found[-1] = Stream(last.name, "".join(texts))
        texts = [output.text] if isinstance(output, Stream) else []
        found.append(output)
    if texts and isinstance(found[-1], Stream):
        found[-1] = Stream(found[-1].name, "".join(texts))
    return found
