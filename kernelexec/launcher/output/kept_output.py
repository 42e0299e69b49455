"""Kept output of the newest cell for the owner, and bounds for texts of exceptions.

``CrashBuffer`` has the newest text in a mapped file, which outlives the process: messages in libzmq's queues die with the
process. The format is in ``protocol``. ``PublishedMessages`` are for a later owner of the running kernel. Text and all other
messages have separate bounds: the first and the newest messages are kept, and dropped messages between are counted.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from heapq import merge
from typing import Any

from .. import platform
from ..protocol import CRASH_HALF_BYTES as HALF_BYTES
from ..protocol import CRASH_KEY_BYTES as KEY_BYTES
from ..protocol import CRASH_OPEN_LENGTH as OPEN_LENGTH
from ..protocol import CRASH_RECORD as RECORD
from ..protocol import DELIMITER

_LENGTH = struct.Struct("<I")
_ROOM_BYTES = HALF_BYTES - KEY_BYTES - RECORD.size
#: The file's blocks are allocated in chunks of this size, a multiple of the page's.
_CHUNK_BYTES = 64 * 1024
_STATUS = b'"msg_type": "status"'
#: Limit of displays and all other messages without text, as a multiple of the text's.
_OTHERS = 4
#: The largest kept reply, in bytes of JSON. Most of a reply is a traceback, which is bounded too.
_REPLY_BYTES = 4 * 1024 * 1024
_OVERHEAD_BYTES = 256
#: Bounds for texts of exceptions, since a reader may refuse a larger message.
_EVALUE_CHARS = 64 * 1024
_TRACEBACK_CHARS = 256 * 1024

Frames = list[bytes]


class CrashBuffer:
    """The newest text of a cell. Without a path nothing is kept.

    Blocks of the file are allocated before they are written: a write into a mapped hole of a full disk is a SIGBUS. On a
    full disk the halves are as large as their blocks, and without blocks nothing is kept.
    """

    def __init__(self, path: str | None) -> None:
        self.header: Any = None
        self._map: mmap.mmap | None = None
        self._key = b""
        self._half = 0
        self._used = {0: 0, HALF_BYTES: 0}
        self._allocated = {0: 0, HALF_BYTES: 0}
        self._end = 0
        self._record = 0
        self._stderr: bool | None = None
        self._position = 0
        self._total = 0
        if path is not None:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                with suppress(OSError):
                    os.ftruncate(fd, 2 * HALF_BYTES)  # a file of holes: a cell without output takes no disk
                    self._map = mmap.mmap(fd, 2 * HALF_BYTES)
                    if not platform.can_allocate_pages(self._map):
                        platform.allocate_file(fd, 2 * HALF_BYTES)
                        self._allocated = {0: HALF_BYTES, HALF_BYTES: HALF_BYTES}
            finally:
                os.close(fd)

    def close(self) -> None:
        """Close the file in a copy of this process."""
        if self._map is not None:
            self._map.close()
        self._map, self._end = None, 0

    @property
    def is_file_backed(self) -> bool:
        """Return whether the text outlives this process."""
        return bool(self._end)

    def begin(self, header: Any) -> None:
        """Forget the text, before text of another cell, which is identified by the request's header."""
        self.header, self._total = header, 0
        self._key = str(header.get("msg_id", "")).encode()[:KEY_BYTES]
        if self._map is None:
            return
        if not all(self._allocated[half] or self._allocate(half, KEY_BYTES) for half in self._allocated):
            self._end = 0
            return
        self._map[HALF_BYTES : HALF_BYTES + KEY_BYTES] = bytes(KEY_BYTES)
        self._take_half(0)

    def add(self, stderr: bool, content: bytes) -> None:  # noqa: FBT001 - a keyword costs time in every print
        """Keep UTF-8 text of the cell. Calls must be in the order of writing."""
        if not self._end:
            return
        assert self._map is not None
        # The usual case, a few bytes behind the last: the length of an open record is not written with each print.
        position, size = self._position, len(content)
        self._total += size
        if stderr is self._stderr and position + size <= self._end:
            self._map[position : position + size] = content
            self._position = position + size
        else:
            self._add_record(stderr, content[-_ROOM_BYTES:])

    def _add_record(self, stderr: bool, content: bytes) -> None:  # noqa: FBT001 - as in the format
        assert self._map is not None
        # The record before gets its length now. Until then its header has OPEN_LENGTH, and NUL shows its end.
        if self._stderr is not None:
            _LENGTH.pack_into(self._map, self._record + 1, self._position - self._record - RECORD.size)
        size = RECORD.size + len(content)
        if not self._has_room(size):
            self._take_half(HALF_BYTES - self._half)
            if not self._has_room(size):  # a full disk: the newest bytes that fit
                room = self._end - self._position - RECORD.size
                content = content[-room:] if room > 0 else b""
        if not content:
            return
        record = RECORD.pack(stderr, OPEN_LENGTH, self._total - len(content)) + content
        start, end = self._position, self._position + len(record)
        self._map[start:end] = record  # no call follows in which a signal handler could raise
        self._record, self._stderr, self._position = start, stderr, end

    def _has_room(self, size: int) -> bool:
        """Return whether a record fits into the rest of this half, and allocate blocks for it."""
        end = self._position + size
        if end > self._end:
            self._allocate(self._half, end - self._half)
            self._end = self._half + self._allocated[self._half]
        return end <= self._end

    def _allocate(self, half: int, size: int) -> bool:
        """Allocate blocks for the first bytes of a half. Return False on a full disk."""
        assert self._map is not None
        begin = self._allocated[half]
        end = min(-(-size // _CHUNK_BYTES) * _CHUNK_BYTES, HALF_BYTES)
        try:
            if end > begin:
                platform.allocate_pages(self._map, half + begin, end - begin)
                self._allocated[half] = end
        except OSError:
            return False
        return True

    def _take_half(self, start: int) -> None:
        assert self._map is not None
        self._used[self._half] = max(self._position - self._half, 0)
        # Only NUL may follow the newest record, so the old text goes before the key makes the half valid.
        self._map[start : start + self._used[start]] = bytes(self._used[start])
        self._map[start : start + len(self._key)] = self._key
        self._half, self._position, self._stderr = start, start + KEY_BYTES, None
        self._end = start + self._allocated[start]


@dataclass(frozen=True)
class Gap:
    """Dropped messages between two kept messages."""

    messages: int
    text_bytes: int
    other_bytes: int


class _BoundedMessages:
    """Messages within a limit: the first up to half of the limit, and the newest. The last ``least`` are kept in any case."""

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
    """Kept messages of a cell, identified by the request's msg_id. Only the publisher adds messages."""

    def __init__(self, msg_id: str, limit_bytes: int) -> None:
        self.msg_id = msg_id
        self.reply: tuple[dict[str, Any], dict[str, Any]] | None = None
        """The cell's reply and its metadata; empty dictionaries if they were too large."""
        self._mark = json.dumps({"msg_id": msg_id})[1:-1].encode()  # as in a packed header: parsing each would cost more
        self._number = 0
        # A message may hold all text printed while the message before was sent: more than the limit.
        self._text = _BoundedMessages(limit_bytes, least=1)
        self._others = _BoundedMessages(limit_bytes * _OTHERS)
        self._idle: tuple[int, Frames] | None = None

    def add(self, frames: list[Any], text_bytes: int = 0) -> None:
        """Keep a sent message of this cell. ``text_bytes`` is the size of a stream's text in the message."""
        # Frames from the delimiter on: delimiter, signature, header, parent header, metadata, content.
        start = next((at for at, frame in enumerate(frames) if frame == DELIMITER), len(frames))
        if len(frames) < start + 6 or self._mark not in bytes(frames[start + 3]):
            return
        # Copies: a frame may be a view of memory that user code changes later.
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


def truncate(value: object) -> str:
    """Return the text of a value, cut to 64 Ki characters. A faulty ``__str__`` is described instead."""
    try:
        text = str(value)
    except BaseException as exc:  # a user's __str__ may raise anything
        text = f"<{type(value).__name__} whose __str__ raised {type(exc).__name__}>"
    return _cut(text, _EVALUE_CHARS)


def truncate_traceback(lines: list[str]) -> list[str]:
    """Return the lines of a traceback, cut to 256 Ki characters in sum."""
    total = sum(len(line) for line in lines)
    if total <= _TRACEBACK_CHARS:
        return list(lines)
    return _cut("\n".join(lines), _TRACEBACK_CHARS).split("\n")


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters cut ...]\n{text[-half:]}"
