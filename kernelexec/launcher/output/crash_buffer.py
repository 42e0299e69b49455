"""The last words of a kernel: the newest text of the running cell, in a mapped file that outlives the process.

What is handed to libzmq is not yet sent: a process that is killed takes it along. The owner reads here what did not arrive.

Two halves of ``HALF_BYTES``, filled in turn. Each begins with the msg_id of the cell (64 bytes, padded with NUL); records
follow: 1 for stderr else 0 (u8), length (u32), offset of the text in all of the cell's text (u64), the text in UTF-8. The
newest record still grows: its length is ``OPEN``, and it ends where only NUL follows. Little endian.
"""

from __future__ import annotations

import mmap
import os
import struct
from typing import Any

HALF_BYTES = 1024 * 1024
OPEN = 0xFFFFFFFF
_KEY_BYTES = 64
_RECORD = struct.Struct("<BIQ")
_LENGTH = struct.Struct("<I")
_ROOM_BYTES = HALF_BYTES - _KEY_BYTES - _RECORD.size


class LastWords:
    """Remembers what the cell wrote last. Without a path it remembers nothing."""

    def __init__(self, path: str | None) -> None:
        self.header: Any = None
        self._map: mmap.mmap | None = None
        self._key = b""
        self._half = 0
        self._used = {0: 0, HALF_BYTES: 0}
        self._record = 0
        self._stderr: bool | None = None
        self._position = 0
        self._total = 0
        if path is not None:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            os.ftruncate(fd, 2 * HALF_BYTES)
            self._map = mmap.mmap(fd, 2 * HALF_BYTES)
            os.close(fd)

    @property
    def lasting(self) -> bool:
        """Whether they outlive this process."""
        return self._map is not None

    def begin(self, header: Any) -> None:
        """Forget what was; the words of another cell follow, which is known by its request's header."""
        self.header, self._total = header, 0
        self._key = str(header.get("msg_id", "")).encode()[:_KEY_BYTES]
        if self._map is not None:
            self._map[HALF_BYTES : HALF_BYTES + _KEY_BYTES] = bytes(_KEY_BYTES)
            self._take_half(0)

    def add(self, stderr: bool, content: bytes) -> None:  # noqa: FBT001 - a keyword costs time in every print
        """Remember UTF-8 text that the cell wrote; called in the order of its writing."""
        if self._map is None:
            return
        position, size = self._position, len(content)
        self._total += size
        if stderr is self._stderr and position + size <= self._half + HALF_BYTES:
            self._map[position : position + size] = content
            self._position = position + size
        else:
            self._add_record(stderr, content[-_ROOM_BYTES:])

    def _add_record(self, stderr: bool, content: bytes) -> None:  # noqa: FBT001 - as in the format
        assert self._map is not None
        if self._stderr is not None:
            _LENGTH.pack_into(self._map, self._record + 1, self._position - self._record - _RECORD.size)
        if self._position + _RECORD.size + len(content) > self._half + HALF_BYTES:
            self._take_half(HALF_BYTES - self._half)
        record = _RECORD.pack(stderr, OPEN, self._total - len(content)) + content
        start, end = self._position, self._position + len(record)
        self._map[start:end] = record  # and noted without a call between, in which a signal's handler may raise
        self._record, self._stderr, self._position = start, stderr, end

    def _take_half(self, start: int) -> None:
        assert self._map is not None
        self._used[self._half] = max(self._position - self._half, 0)
        self._map[start : start + self._used[start]] = bytes(self._used[start])
        self._map[start : start + len(self._key)] = self._key
        self._half, self._position, self._stderr = start, start + _KEY_BYTES, None
