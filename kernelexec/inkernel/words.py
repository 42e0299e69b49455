"""The last words of a kernel: the newest text of the running cell, in a mapped file that outlives the process.

What is handed to libzmq is not yet sent: a process that is killed takes it along. The owner reads here what did not arrive.

Two halves of ``HALF_BYTES``, filled in turn. Each begins with the msg_id of the cell (64 bytes, padded with NUL); records
follow: 1 for stderr else 0 (u8), length (u32), offset of the text in all of the cell's text (u64), the text in UTF-8. A
length of 0 ends a half. Little endian.
"""

from __future__ import annotations

import mmap
import os
import struct

HALF_BYTES = 64 * 1024
_KEY_BYTES = 64
_RECORD = struct.Struct("<BIQ")
_LENGTH = struct.Struct("<I")
_END = bytes(_RECORD.size)
_ROOM_BYTES = HALF_BYTES - _KEY_BYTES - 2 * _RECORD.size


class LastWords:
    """Remembers what the cell wrote last. Without a path it remembers nothing."""

    def __init__(self, path: str | None) -> None:
        self.msg_id = ""
        self._map: mmap.mmap | None = None
        self._half = 0
        self._record = 0
        self._stderr: bool | None = None
        self._length = 0
        self._position = 0
        self._total = 0
        if path is not None:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            os.ftruncate(fd, 2 * HALF_BYTES)
            self._map = mmap.mmap(fd, 2 * HALF_BYTES)
            os.close(fd)

    def begin(self, msg_id: str) -> None:
        """Forget what was; the words of another cell follow."""
        self.msg_id, self._total = msg_id, 0
        if self._map is not None:
            self._take_half(HALF_BYTES)
            self._take_half(0)

    def add(self, stderr: bool, content: bytes) -> None:  # noqa: FBT001 - a keyword costs time in every print
        """Remember UTF-8 text that the cell wrote; called in the order of its writing."""
        if self._map is None:
            return
        size = len(content)
        self._total += size
        position = self._position
        end = position + size + _RECORD.size
        if stderr is not self._stderr or end > self._half + HALF_BYTES:
            self._add_record(stderr, content)
            return
        self._map[position:end] = content + _END
        self._position = position + size
        self._length += size
        _LENGTH.pack_into(self._map, self._record + 1, self._length)

    def _add_record(self, stderr: bool, content: bytes) -> None:  # noqa: FBT001 - as in the format
        assert self._map is not None
        content = content[-_ROOM_BYTES:]
        if self._position + len(content) + 2 * _RECORD.size > self._half + HALF_BYTES:
            self._take_half(HALF_BYTES - self._half)
        self._record, self._stderr, self._length = self._position, stderr, len(content)
        record = _RECORD.pack(stderr, len(content), self._total - len(content)) + content + _END
        self._map[self._record : self._record + len(record)] = record
        self._position = self._record + len(record) - len(_END)

    def _take_half(self, start: int) -> None:
        assert self._map is not None
        head = self.msg_id.encode()[:_KEY_BYTES].ljust(_KEY_BYTES, b"\0") + _END
        self._map[start : start + len(head)] = head
        self._half, self._position, self._stderr = start, start + _KEY_BYTES, None
