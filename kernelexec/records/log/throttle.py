"""What a log takes of one cell's output: all of it up to a bound, from there on the newest, now and then and at the end."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable

from kernelexec.records.log.lines import Mark, cost, quoted
from kernelexec.text import head_of, tail_of, utf8_size

#: What is written of a cell's output as it comes, and how much of the newest is held once that is spent, in bytes of the log.
HEAD_BYTES, TAIL_BYTES = 64 * 1024, 64 * 1024
#: How long a cell over its bound is silent in the log at first, in seconds; twice as long after each time.
PAUSE_SECONDS = 1.0


class Flow:
    """The output of one running cell on its way into the log.

    Over its bound the newest output is written after a pause of one second, then of two, four and so on, so that an owner who
    is killed leaves the cell's last words in the log while a flood costs next to nothing.
    """

    def __init__(self) -> None:
        self._left = HEAD_BYTES
        self._held: deque[tuple[Mark, str]] = deque()
        self._held_bytes = 0
        self._cut_bytes = 0
        self._open: set[Mark] = set()
        self._pause = PAUSE_SECONDS
        self._due = 0.0

    def lines(self, about: str, mark: Mark, text: str) -> Iterable[str]:
        """What to write now of a piece of output."""
        found: list[str] = []
        if self._left > 0:
            text = self._first(found, about, mark, text)
        if text:
            self._hold(mark, text)
        if self._held and time.monotonic() >= self._due:
            self._be_silent()
            found.extend(self.rest(about))
        return found

    def rest(self, about: str) -> list[str]:
        """What is held, with what was left out before it."""
        found = [f"{about} left out: {self._cut_bytes} bytes of output"] if self._cut_bytes else []
        while self._held:
            found.extend(self._quoted(about, *self._held.popleft()))
        self._held_bytes = self._cut_bytes = 0
        return found

    def _first(self, found: list[str], about: str, mark: Mark, text: str) -> str:
        """Write what fits below the bound; what does not comes back."""
        price = cost(text)
        if price <= self._left:
            self._left -= price
            found.extend(self._quoted(about, mark, text))
            return ""
        head = head_of(text, utf8_size(text) * self._left // price)
        self._left = 0
        self._be_silent()
        found.extend(self._quoted(about, mark, head))
        found.append(f"{about} left out: output over {HEAD_BYTES} bytes, but for its newest, now and then and at the end")
        return text[len(head) :]

    def _be_silent(self) -> None:
        self._due, self._pause = time.monotonic() + self._pause, self._pause * 2

    def _hold(self, mark: Mark, text: str) -> None:
        if (price := cost(text)) > TAIL_BYTES:
            kept = tail_of(text, utf8_size(text) * TAIL_BYTES // price)
            self._cut_bytes += utf8_size(text) - utf8_size(kept)
            text, price = kept, TAIL_BYTES
            self._open.clear()
        self._held.append((mark, text))
        self._held_bytes += price
        while self._held_bytes > TAIL_BYTES and len(self._held) > 1:
            _, gone = self._held.popleft()
            self._held_bytes -= min(cost(gone), TAIL_BYTES)
            self._cut_bytes += utf8_size(gone)
            self._open.clear()

    def _quoted(self, about: str, mark: Mark, text: str) -> Iterable[str]:
        goes_on = mark in self._open
        (self._open.discard if text.endswith("\n") else self._open.add)(mark)
        return () if not text or (goes_on and text == "\n") else quoted(about, mark, text, goes_on=goes_on)
