"""The last words of a kernel: the newest text of the running cell, in a mapped file that outlives the process.

What is handed to libzmq is not yet sent: a process that is killed takes it along. The owner reads here what did not arrive.

Two halves of ``HALF_BYTES``, filled in turn. Each begins with the msg_id of the cell (64 bytes, padded with NUL) and the
number of bytes used (u32); records follow: 1 for stderr else 0 (u8), length (u32), offset of the text in all of the cell's
text (u64), the text in UTF-8. Little endian.
"""

from __future__ import annotations

import mmap
import os
import struct

HALF_BYTES = 64 * 1024
_HALF = struct.Struct("<64sI")
_RECORD = struct.Struct("<BIQ")
_ROOM_BYTES = HALF_BYTES - _HALF.size - _RECORD.size


class LastWords:
    """Remembers what the cell wrote last. Without a path it remembers nothing."""

    def __init__(self, path: str | None) -> None:
        self.msg_id = ""
        self._map: mmap.mmap | None = None
        self._start = 0
        self._used = 0
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
            _HALF.pack_into(self._map, HALF_BYTES, b"", _HALF.size)
            self._take_half(0)

    def add(self, *, stderr: bool, text: str) -> None:
        """Remember text that the cell wrote; called in the order of its writing."""
        if self._map is None:
            return
        content = text.encode("utf-8", "backslashreplace")
        self._total += len(content)
        content = content[-_ROOM_BYTES:]
        if self._used + _RECORD.size + len(content) > HALF_BYTES:
            self._take_half(HALF_BYTES - self._start)
        record = _RECORD.pack(stderr, len(content), self._total - len(content)) + content
        end = self._used + len(record)
        self._map[self._start + self._used : self._start + end] = record
        self._use(end)

    def _take_half(self, start: int) -> None:
        self._start = start
        self._use(_HALF.size)

    def _use(self, used: int) -> None:
        assert self._map is not None
        self._used = used
        _HALF.pack_into(self._map, self._start, self.msg_id.encode()[:64], used)
