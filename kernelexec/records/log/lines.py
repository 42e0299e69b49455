"""Lines of a log. Pure: each line begins with its time and its subject, whatever a text contains.

A line of a cell's own text stands behind ``in |`` (its source), ``out |`` or ``err |``; ``out +`` continues the cell's line
before, which had no end yet. Characters that are not printable are written as escapes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import Literal

from kernelexec.results.outputs import strip_ansi
from kernelexec.text import head_within, tail_within, utf8_size

Mark = Literal["in", "out", "err", "late", "note"]
#: The part of a cell's output that is written as it comes, and the newest output that is held after that, in bytes of the log.
HEAD_BYTES, TAIL_BYTES = 64 * 1024, 64 * 1024
#: The first pause of a cell above its bound, in seconds; each pause is twice as long as the one before.
PAUSE_SECONDS = 1.0
#: About the size of a line without its text, in bytes.
_LINE_BYTES = 48


def printable(text: str) -> str:
    """Return one line as it can be shown: without colours, with escapes for characters that are not printable."""
    text = strip_ansi(text)
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char == "\t" else char.encode("unicode_escape").decode("ascii") for char in text
    )


def quote_lines(head: str, mark: Mark, text: str, *, continues: bool = False) -> Iterator[str]:
    """Yield the lines of a text, each behind its mark; with ``continues`` the first one continues the line before."""
    for number, line in enumerate(text.removesuffix("\n").split("\n")):
        yield f"{head} {mark} {'+' if continues and not number else '|'} {printable(line.removesuffix(chr(13)))}"


def quote_within(head: str, mark: Mark, text: str, limit: int) -> Iterator[str]:
    """Yield the lines of a text, or of its head and its tail and the number of bytes between them."""
    size = utf8_size(text)
    if size <= limit:
        yield from quote_lines(head, mark, text)
        return
    yield from quote_lines(head, mark, head_within(text, limit // 2))
    yield f"{head} left out: {size - limit} bytes"
    yield from quote_lines(head, mark, tail_within(text, limit // 2))


def log_size(text: str) -> int:
    """Return about how many bytes of a log a text takes."""
    return utf8_size(text) + _LINE_BYTES * (text.count("\n") + 1)


class OutputThrottle:
    """The output of one running cell on its way into the log.

    Above its bound the newest output is written after pauses of one second, two, four and so on: an owner that is killed
    leaves the cell's newest output in the log, and a flood of output costs next to nothing.
    """

    def __init__(self) -> None:
        self._left = HEAD_BYTES
        self._held: deque[tuple[Mark, str]] = deque()
        self._held_bytes = 0
        self._cut_bytes = 0
        self._unended: set[Mark] = set()
        self._pause = PAUSE_SECONDS
        self._due = 0.0

    def lines(self, about: str, mark: Mark, text: str) -> Iterator[str]:
        """Yield the lines to write now for a piece of output."""
        if self._left > 0:
            size = log_size(text)
            head = text if size <= self._left else head_within(text, utf8_size(text) * self._left // size)
            self._left = max(0, self._left - size)
            yield from self._quote(about, mark, head)
            text = text[len(head) :]
            if text:
                self._left = 0
                self._be_silent()
                yield f"{about} left out: output over {HEAD_BYTES} bytes, but for its newest, now and then and at the end"
        if text:
            self._hold(mark, text)
        if self._held and time.monotonic() >= self._due:
            self._be_silent()
            yield from self.rest(about)

    def rest(self, about: str) -> Iterator[str]:
        """Yield the held output, after the number of bytes that were left out before it."""
        if self._cut_bytes:
            yield f"{about} left out: {self._cut_bytes} bytes of output"
        while self._held:
            yield from self._quote(about, *self._held.popleft())
        self._held_bytes = self._cut_bytes = 0

    def _be_silent(self) -> None:
        self._due, self._pause = time.monotonic() + self._pause, self._pause * 2

    def _hold(self, mark: Mark, text: str) -> None:
        if (size := log_size(text)) > TAIL_BYTES:
            tail = tail_within(text, utf8_size(text) * TAIL_BYTES // size)
            self._cut_bytes += utf8_size(text) - utf8_size(tail)
            text, size = tail, TAIL_BYTES
            self._unended.clear()
        self._held.append((mark, text))
        self._held_bytes += size
        while self._held_bytes > TAIL_BYTES and len(self._held) > 1:
            _, oldest = self._held.popleft()
            self._held_bytes -= min(log_size(oldest), TAIL_BYTES)
            self._cut_bytes += utf8_size(oldest)
            self._unended.clear()

    def _quote(self, about: str, mark: Mark, text: str) -> Iterator[str]:
        continues = mark in self._unended
        (self._unended.discard if text.endswith("\n") else self._unended.add)(mark)
        if text and not (continues and text == "\n"):
            yield from quote_lines(about, mark, text, continues=continues)
