"""The newest text of the running cell in a mapped file, which outlives the process.

A message that libzmq holds dies with the process. The owner reads here the text that did not arrive.

The format of the file stands in ``protocol``.
"""

from __future__ import annotations

import mmap
import os
import struct
from typing import Any

from ..protocol import CRASH_HALF_BYTES as HALF_BYTES
from ..protocol import CRASH_KEY_BYTES as KEY_BYTES
from ..protocol import CRASH_OPEN_LENGTH as OPEN_LENGTH
from ..protocol import CRASH_RECORD as RECORD

_LENGTH = struct.Struct("<I")
_ROOM_BYTES = HALF_BYTES - KEY_BYTES - RECORD.size


class CrashBuffer:
    """The newest text of one cell; without a path nothing is kept."""

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
    def is_file_backed(self) -> bool:
        """Return whether the text outlives this process."""
        return self._map is not None

    def begin(self, header: Any) -> None:
        """Forget the text; text of another cell follows, which is known by its request's header."""
        self.header, self._total = header, 0
        self._key = str(header.get("msg_id", "")).encode()[:KEY_BYTES]
        if self._map is not None:
            self._map[HALF_BYTES : HALF_BYTES + KEY_BYTES] = bytes(KEY_BYTES)
            self._take_half(0)

    def add(self, stderr: bool, content: bytes) -> None:  # noqa: FBT001 - a keyword costs time in every print
        """Keep UTF-8 text of the cell; must be called in order of writing."""
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
            _LENGTH.pack_into(self._map, self._record + 1, self._position - self._record - RECORD.size)
        if self._position + RECORD.size + len(content) > self._half + HALF_BYTES:
            self._take_half(HALF_BYTES - self._half)
        record = RECORD.pack(stderr, OPEN_LENGTH, self._total - len(content)) + content
        start, end = self._position, self._position + len(record)
        self._map[start:end] = record  # no call follows in which a signal handler could raise
        self._record, self._stderr, self._position = start, stderr, end

    def _take_half(self, start: int) -> None:
        assert self._map is not None
        self._used[self._half] = max(self._position - self._half, 0)
        self._map[start : start + self._used[start]] = bytes(self._used[start])
        self._map[start : start + len(self._key)] = self._key
        self._half, self._position, self._stderr = start, start + KEY_BYTES, None
