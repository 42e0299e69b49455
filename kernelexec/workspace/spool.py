"""Bytes that are needed again but seldom, in a file without a name instead of memory: it is gone with whoever opened it."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterable
from dataclasses import dataclass

#: What is smaller stays in memory: a place in the file takes about as much.
LEAST_BYTES = 1024
#: The file is made anew once what is no longer needed in it is more than the rest, and more than this, in bytes.
WASTE_BYTES = 8 * 1024 * 1024


@dataclass(slots=True)
class Kept:
    """Where some bytes are in the file of a spool."""

    offset: int
    size: int

    def __len__(self) -> int:
        """How many they are."""
        return self.size


class Spool:
    """Takes bytes and gives them back. Not for threads at once. It is never read by a name, so nobody else can change it."""

    def __init__(self) -> None:
        self._file: _File | None = None
        self._end = 0
        self._used = 0

    def keep(self, content: bytes) -> bytes | Kept:
        """Where the bytes are from now on: in the file, or as they were, where they are few or cannot be written."""
        if len(content) < LEAST_BYTES:
            return content
        try:
            self._file = self._file or _File()
            self._file.write(content, self._end)
        except OSError:
            return content
        found = Kept(self._end, len(content))
        self._end += found.size
        self._used += found.size
        return found

    def read(self, kept: bytes | Kept) -> bytes:
        """The bytes again.

        Raises:
            OSError: they cannot be read, or are gone.
        """
        if isinstance(kept, bytes):
            return kept
        content = b"" if self._file is None else self._file.read(kept)
        if len(content) != kept.size:
            message = f"{kept.size} bytes that were kept are not all there."
            raise OSError(message)
        return content

    def drop(self, kept: bytes | Kept) -> None:
        """Need some bytes no more."""
        self._used -= 0 if isinstance(kept, bytes) else kept.size

    def tidy(self, needed: Iterable[Kept]) -> None:
        """Make the file anew, of all that is ``needed``, where that is less than half of it; the places are changed.

        Raises:
            OSError: it cannot be; nothing was changed.
        """
        if self._end - self._used <= max(self._used, WASTE_BYTES):
            return
        fresh, end = _File(), 0
        places: list[tuple[Kept, int]] = []
        for kept in needed:
            fresh.write(self.read(kept), end)
            places.append((kept, end))
            end += kept.size
        for kept, offset in places:
            kept.offset = offset
        self._file, self._end, self._used = fresh, end, end

    def close(self) -> None:
        """Forget everything that is in the file."""
        self._file = None


class _File:
    """A file without a name, which ends with this object."""

    def __init__(self) -> None:
        with tempfile.TemporaryFile() as file:
            self._fd = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._fd)

    def write(self, content: bytes, offset: int) -> None:
        left = memoryview(content)
        while left:
            written = os.pwrite(self._fd, left, offset)
            left, offset = left[written:], offset + written

    def read(self, kept: Kept) -> bytes:
        return os.pread(self._fd, kept.size, kept.offset)
