"""Rarely needed bytes, kept in a file without a name instead of memory; the file ends with its process."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterable
from dataclasses import dataclass

#: Smaller pieces stay in memory: their location in the file takes about as much.
LEAST_BYTES = 1024
#: The file is rewritten once its unneeded bytes are more than the rest and more than this.
WASTE_BYTES = 8 * 1024 * 1024


@dataclass(slots=True)
class SpooledBytes:
    """The location of bytes in the file of a spool."""

    offset: int
    size: int

    def __len__(self) -> int:
        """Return the number of bytes."""
        return self.size


class Spool:
    """A store of bytes for one thread at a time. Its file has no name, so no other process can change it."""

    def __init__(self) -> None:
        self._file: _File | None = None
        self._end = 0
        self._used = 0

    def keep(self, content: bytes) -> bytes | SpooledBytes:
        """Store bytes; return their location, or the bytes themselves if they are few or cannot be written."""
        if len(content) < LEAST_BYTES:
            return content
        try:
            self._file = self._file or _File()
            self._file.write(content, self._end)
        except OSError:
            return content
        location = SpooledBytes(self._end, len(content))
        self._end += location.size
        self._used += location.size
        return location

    def read(self, kept: bytes | SpooledBytes) -> bytes:
        """Return the bytes.

        Raises:
            OSError: the bytes cannot be read, or are gone.
        """
        if isinstance(kept, bytes):
            return kept
        content = b"" if self._file is None else self._file.read(kept)
        if len(content) != kept.size:
            raise OSError(f"{kept.size} bytes that were kept are not all there.")
        return content

    def drop(self, kept: bytes | SpooledBytes) -> None:
        """Release bytes."""
        self._used -= 0 if isinstance(kept, bytes) else kept.size

    def tidy(self, needed: Iterable[SpooledBytes]) -> None:
        """Rewrite the file with the ``needed`` bytes, if those are less than half of it; their locations are updated.

        Raises:
            OSError: the file cannot be written; nothing is changed.
        """
        if self._end - self._used <= max(self._used, WASTE_BYTES):
            return
        fresh, end = _File(), 0
        places: list[tuple[SpooledBytes, int]] = []
        for kept in needed:
            fresh.write(self.read(kept), end)
            places.append((kept, end))
            end += kept.size
        for kept, offset in places:
            kept.offset = offset
        self._file, self._end, self._used = fresh, end, end

    def close(self) -> None:
        """Release all bytes."""
        self._file = None


class _File:
    """Open a file without a name, which ends with this object."""

    def __init__(self) -> None:
        with tempfile.TemporaryFile() as file:
            self._fd = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._fd)

    def write(self, content: bytes, offset: int) -> None:
        left = memoryview(content)
        while left:
            written = os.pwrite(self._fd, left, offset)
            left, offset = left[written:], offset + written

    def read(self, kept: SpooledBytes) -> bytes:
        return os.pread(self._fd, kept.size, kept.offset)
