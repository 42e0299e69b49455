"""Published messages of the newest cell, kept for an owner that takes the kernel over while it runs.

Text, and all other messages, have bounds of their own: the first and the newest messages are kept; dropped ones between are
counted.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge
from typing import Any

from ..protocol import DELIMITER

_STATUS = b'"msg_type": "status"'
#: Limit of displays and all other messages without text, as a multiple of the text's.
_OTHERS = 4
#: The largest reply that is kept, in bytes of JSON; it holds a traceback, which has bounds of its own.
_REPLY_BYTES = 4 * 1024 * 1024
_OVERHEAD_BYTES = 256

Frames = list[bytes]


@dataclass(frozen=True)
class Gap:
    """Messages that were dropped between two kept ones."""

    messages: int
    text_bytes: int
    other_bytes: int


class _BoundedMessages:
    """Messages within a limit: the first ones up to half of it, and the newest; ``least`` of these stay over the limit."""

    def __init__(self, limit_bytes: int, *, least: int = 0) -> None:
        self._limit = limit_bytes
        self._least = least
        self._head: list[tuple[int, Frames]] = []
        self._tail: deque[tuple[int, Frames, int, int]] = deque()
        self._head_bytes = self._tail_bytes = 0
        self._dropped = self._dropped_until = 0
        self._dropped_text_bytes = self._dropped_other_bytes = 0

    def add(self, number: int, frames: Frames, text_bytes: int) -> None:
        size = sum(map(len, frames)) + _OVERHEAD_BYTES
        if not self._tail and not self._dropped and self._head_bytes + size <= self._limit // 2:
            self._head.append((number, frames))
            self._head_bytes += size
            return
        self._tail.append((number, frames, size, text_bytes))
        self._tail_bytes += size
        while len(self._tail) > self._least and self._head_bytes + self._tail_bytes > self._limit:
            self._dropped_until, _, size, text_bytes = self._tail.popleft()
            self._tail_bytes -= size
            self._dropped += 1
            self._dropped_text_bytes += text_bytes
            self._dropped_other_bytes += 0 if text_bytes else size

    def __iter__(self) -> Iterator[tuple[int, Frames | Gap]]:
        yield from self._head
        if self._dropped:
            yield self._dropped_until, Gap(self._dropped, self._dropped_text_bytes, self._dropped_other_bytes)
        for number, frames, *_ in self._tail:
            yield number, frames


class PublishedMessages:
    """Kept messages of one cell, known by its request's msg_id. Only the publisher adds to it."""

    def __init__(self, msg_id: str, limit_bytes: int) -> None:
        self.msg_id = msg_id
        self.reply: tuple[dict[str, Any], dict[str, Any]] | None = None
        """The cell's reply and its metadata; empty dictionaries if they were too large."""
        self._mark = json.dumps({"msg_id": msg_id})[1:-1].encode()
        self._number = 0
        self._text = _BoundedMessages(
            limit_bytes, least=1
        )  # a message may hold all text that was printed while the last one was sent
        self._others = _BoundedMessages(limit_bytes * _OTHERS)
        self._idle: tuple[int, Frames] | None = None

    def add(self, frames: list[Any], text_bytes: int = 0) -> None:
        """Keep a sent message if it belongs to this cell; ``text_bytes`` is the size of a stream's text in it."""
        start = next((at for at, frame in enumerate(frames) if frame == DELIMITER), len(frames))
        if len(frames) < start + 6 or self._mark not in bytes(frames[start + 3]):
            return
        copies: Frames = [bytes(frame) for frame in frames]
        self._number += 1
        if not text_bytes and _STATUS in copies[start + 2]:
            self._idle = self._number, copies  # only the newest status counts
            return
        (self._text if text_bytes else self._others).add(self._number, copies, text_bytes)

    def set_reply(self, content: dict[str, Any], metadata: dict[str, Any], size_bytes: int) -> None:
        """Keep the cell's reply, just before it is sent."""
        self.reply = (content, metadata) if size_bytes <= _REPLY_BYTES else ({}, {})

    def __iter__(self) -> Iterator[Frames | Gap]:
        """Yield the kept messages in order of sending, and gaps."""
        idle = [self._idle] if self._idle is not None else []
        for _, item in merge(self._text, self._others, idle, key=lambda numbered: numbered[0]):
            yield item
