"""Bytes in files instead of memory: stream text beyond the size of a result, and a spool of rarely needed bytes.

The text is written up to a quota and read back in pages. The file of a spool has no name and ends with the process.
"""

from __future__ import annotations

import codecs
import os
import tempfile
import time
import weakref
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kernelexec.errors import InvalidRequest
from kernelexec.results import OutputPage
from kernelexec.text import head_within, utf8_size

#: The bytes read beyond a page. A page may begin within a character, and contains at least a whole character.
MARGIN_BYTES = 8
#: The bound of a search, in seconds. The page ends there, and a single line that takes longer is refused.
GREP_SECONDS = 5.0
_GREP_CHUNK_BYTES = 1024 * 1024
_LINE_MAX_CHARS = 64 * 1024
_PIECE_CHARS = 4096
#: Smaller pieces stay in memory, since a location in the file takes about as much.
LEAST_BYTES = 1024
#: The file is rewritten once the unneeded bytes exceed both the rest and this number.
WASTE_BYTES = 8 * 1024 * 1024


class SpillFile:
    """The stream text of an execution on disk, in a private directory. A full disk ends the writing, never the cell."""

    def __init__(self, path: Path, quota_bytes: int) -> None:
        self._path = path
        self._quota = quota_bytes
        self._fd: int | None = None
        self.stored_bytes = 0
        self.failed = False

    def write(self, text: str) -> None:
        """Append a piece of text, as far as the quota and the disk allow."""
        content = text.encode("utf-8", "replace")
        left = self._quota - self.stored_bytes
        if len(content) > left:
            content = content[:left].decode("utf-8", "ignore").encode()
            # No later and shorter piece may follow behind the cut: the stored text is always the beginning of the whole.
            self._quota = self.stored_bytes + len(content)
        if not content or self.failed:
            return
        try:
            if self._fd is None:
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            while content:
                written = os.write(self._fd, content)
                self.stored_bytes += written
                content = content[written:]
        except OSError:
            self.failed = True

    def close(self) -> None:
        """Stop writing. The text can still be read."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def remove(self) -> None:
        """Close and delete the file."""
        self.close()
        if self.stored_bytes or self.failed:  # else there is no file
            with suppress(FileNotFoundError):
                self._path.unlink()

    def page(self, offset: int, limit: int, total_bytes: int) -> OutputPage:
        """Return the characters that begin within ``limit`` bytes from ``offset``."""
        return page_of(self._read(offset, limit + MARGIN_BYTES), offset, limit, total_bytes, self.stored_bytes)

    def grep(self, pattern: str, offset: int, limit: int, total_bytes: int) -> OutputPage:
        """Return the matching lines of a regular expression from ``offset`` on, up to ``limit`` bytes."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        offset += _inside(self._read(offset, MARGIN_BYTES), offset)
        finder, position = Grep(pattern, offset, limit), offset
        while not finder.full and (raw := self._read(position, _GREP_CHUNK_BYTES)):
            finder.feed(decoder.decode(raw))
            position += len(raw)
        if not finder.full:
            finder.finish()
        return finder.result(total_bytes, self.stored_bytes)

    def _read(self, offset: int, size: int) -> bytes:
        if offset >= self.stored_bytes:
            return b""
        with self._path.open("rb") as file:
            file.seek(offset)
            return file.read(min(size, self.stored_bytes - offset))


def _inside(raw: bytes, offset: int) -> int:
    """Return the number of first bytes in a character that begins before ``offset``."""
    start = 0
    while start < min(4, len(raw)) and offset and raw[start] & 0xC0 == 0x80:  # noqa: PLR2004 - a continuation byte
        start += 1
    return start


def page_of(raw: bytes, offset: int, limit: int, total_bytes: int, stored_bytes: int) -> OutputPage:
    """Return a page of whole characters from the raw bytes at ``offset``."""
    start = _inside(raw, offset)
    text = raw[start : start + limit].decode("utf-8", "ignore") or raw[start:].decode("utf-8", "ignore")[:1]
    end = offset + start + utf8_size(text) if text else offset + len(raw)  # the disk may have cut the last character
    return OutputPage(text, offset + start, end if end < stored_bytes else None, total_bytes, stored_bytes)


class Grep:
    """A search for matching lines in pieces of text. Lines are cut at 64 Ki characters.

    The page is full at the limit or the deadline, and the next page begins with the next line.
    """

    def __init__(self, pattern: str, offset: int, limit: int) -> None:
        import regex  # noqa: PLC0415 - for a search only

        try:
            self._pattern = regex.compile(pattern)
        except (regex.error, OverflowError, RecursionError, TypeError) as exc:
            raise InvalidRequest(f"grep={str(pattern)[:100]!r} is no regular expression: {exc}.") from exc
        self._deadline = time.monotonic() + GREP_SECONDS
        self._offset = self._position = offset
        self._limit = limit
        self._line = ""
        self._found: list[str] = []
        self._size = 0
        self.full = False

    def feed(self, text: str) -> None:
        """Search the next piece."""
        text, begin = self._line + text, 0
        while not self.full and (end := text.find("\n", begin) + 1):  # a list of all lines takes 50 bytes for each
            self._take_in_pieces(text[begin:end])
            begin = end
        self._line = text[begin:]
        if self.full:
            return
        if len(self._line) > _LINE_MAX_CHARS:
            end = len(self._line) // _LINE_MAX_CHARS * _LINE_MAX_CHARS
            self._take_in_pieces(self._line[:end])
            self._line = self._line[end:]

    def finish(self) -> None:
        """Search the last line, without a line end."""
        if self._line:
            self._take(self._line)
            self._line = ""

    def result(self, total_bytes: int, stored_bytes: int) -> OutputPage:
        """Return the matching lines, and the offset of the next page if the search is not complete."""
        following = self._position if self.full else None
        return OutputPage("".join(self._found), self._offset, following, total_bytes, stored_bytes)

    def _take_in_pieces(self, line: str) -> None:
        for start in range(0, len(line), _LINE_MAX_CHARS):
            self._take(line[start : start + _LINE_MAX_CHARS])

    def _matches(self, line: str) -> bool | None:
        """Return whether the line matches, or None to leave the line to the next page. A pattern may take for ever.

        Raises:
            InvalidRequest: the line alone takes longer than ``GREP_SECONDS``.
        """
        try:
            left = max(0.001, self._deadline - time.monotonic())
            return self._pattern.search(line, timeout=left, concurrent=True) is not None
        except TimeoutError as exc:
            if self._position > self._offset:  # the next page has the whole time for this line
                return None
            message = f"grep={self._pattern.pattern[:100]!r} took more than {GREP_SECONDS} s: choose a simpler one."
            raise InvalidRequest(message) from exc

    def _take(self, line: str) -> None:
        if self.full:
            return
        size = utf8_size(line)
        matches = self._matches(line)
        if matches is None:
            self.full = True
            return
        # A line is counted in the position only once it is kept or passed over: a full page is continued with this line.
        if matches:
            if self._size + size > self._limit and self._found:
                self.full = True
                return
            self._keep(line if size <= self._limit else head_within(line, self._limit))
            self._size += size
        self._position += size
        self.full = time.monotonic() >= self._deadline

    def _keep(self, line: str) -> None:
        """Keep a matching line. Short lines are joined, since a string takes 50 bytes in addition to the text."""
        if self._found and len(self._found[-1]) + len(line) <= _PIECE_CHARS:
            self._found[-1] += line
        else:
            self._found.append(line)


@dataclass(slots=True)
class SpooledBytes:
    """The location of bytes in the file of a spool."""

    offset: int
    size: int

    def __len__(self) -> int:
        """Return the number of bytes."""
        return self.size


class Spool:
    """A store of bytes, for a single thread at a time. The file has no name, so no other process can change the content."""

    def __init__(self) -> None:
        self._file: _File | None = None
        self._end = 0
        self._used = 0

    def keep(self, content: bytes) -> bytes | SpooledBytes:
        """Store bytes and return their location. Few bytes, or bytes that cannot be written, are returned as they are."""
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
            OSError: the bytes cannot be read, or are missing.
        """
        if isinstance(kept, bytes):
            return kept
        content = b"" if self._file is None else self._file.read(kept)
        if len(content) != kept.size:
            raise OSError(f"{kept.size} bytes that were kept are not all there.")
        return content

    def drop(self, kept: bytes | SpooledBytes) -> None:
        """Release bytes. ``tidy`` returns their space to the disk."""
        self._used -= 0 if isinstance(kept, bytes) else kept.size

    def tidy(self, needed: Iterable[SpooledBytes]) -> None:
        """Rewrite the file with the ``needed`` bytes, if these are less than half of the file. Their locations are updated.

        Raises:
            OSError: the file cannot be written; nothing has changed.
        """
        if self._end - self._used <= max(self._used, WASTE_BYTES):
            return
        fresh, end = _File(), 0
        places: list[tuple[SpooledBytes, int]] = []
        for kept in needed:
            fresh.write(self.read(kept), end)
            places.append((kept, end))
            end += kept.size
        # Only now, when all is written: an error before leaves the locations in the old file.
        for kept, offset in places:
            kept.offset = offset
        self._file, self._end, self._used = fresh, end, end

    def close(self) -> None:
        """Release all bytes."""
        self._file = None


class _File:
    """An open file without a name, closed at the end of this object."""

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
