"""List, read and write files for an agent, within bounds, while a kernel may change them."""

from __future__ import annotations

import codecs
import os
import secrets
import stat

from kernelexec.errors import InvalidRequest
from kernelexec.results import FileBytes, FileEntry, FileList, FileText, FileWritten
from kernelexec.workspace.agent_files.access import Target, check_plain
from kernelexec.workspace.agent_files.deletion import Deletions
from kernelexec.workspace.agent_files.globs import Globs
from kernelexec.workspace.agent_files.paths import WorkspacePath
from kernelexec.workspace.agent_files.walk import kind_of, walk
from kernelexec.workspace.file_changes import IGNORED
from kernelexec.workspace.openat2 import open_beneath
from kernelexec.workspace.safe_files import replace_file

#: The least size of a piece, in bytes: any character fits into it.
PIECE_BYTES = 4
_FURTHEST = 2**62
_ON = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY


class FileOperations(Deletions):
    """Operations of an agent on files beneath the roots of one session. For a thread.

    Each path is opened when it is used, and no link is followed in any part of it. Only regular files are read and written.
    """

    def list(self, path: str | os.PathLike[str] = ".", *, recursive: bool = False, pattern: str | None = None) -> FileList:
        """List a directory, or with ``recursive`` all directories in it too; of a file, its own entry.

        Directories that tools fill, such as ``.git`` or ``node_modules``, are not entered.

        Raises:
            InvalidRequest: the pattern is malformed.
            InvalidPath, InvalidWorkDir: the path is missing, or outside of all roots.
            FileRefused: the path leads over a link, or cannot be read.
        """
        globs = None if pattern is None else Globs(pattern, "pattern")
        spot = self._access.spot(path)
        seen = self._access.look(spot)
        if seen is not None and kind_of(seen) != "directory":
            return FileList(spot.shown, (_entry(spot, seen),))
        with self._access.directory(spot) as fd:
            walked = walk(fd, self.bounds.entries, enters=lambda entry: recursive and entry.parts[-1] not in IGNORED)
        matching = (entry for entry in walked.entries if globs is None or globs.matches(entry.parts))
        entries = tuple(_entry(spot / "/".join(entry.parts), entry.seen) for entry in matching)
        return FileList(spot.shown, entries, complete=walked.complete and not walked.unreadable)

    def read(self, path: str | os.PathLike[str], *, offset: int = 0, limit: int | None = None) -> FileText:
        """Return a piece of a file as text: the characters that begin within ``limit`` bytes from ``offset`` on.

        Raises:
            InvalidRequest: the offset or the limit is out of range.
            InvalidPath, InvalidWorkDir: the path is missing, or outside of all roots.
            FileRefused: the file is not regular, a link, has a second name, or cannot be read.
        """
        most = self.bounds.read_bytes
        room = most if limit is None else _number(limit, "limit", PIECE_BYTES, most)
        begin = _number(offset, "offset", 0, _FURTHEST)
        spot, before = self._access.spot(path), min(begin, PIECE_BYTES - 1)
        with self._access.file(spot) as (fd, seen):
            raw = os.pread(fd, before + room + PIECE_BYTES, begin - before)
        self.tracker.note([spot])
        return _page(spot.shown, raw, (begin, before, room), seen.st_size)

    def read_bytes(self, path: str | os.PathLike[str], *, offset: int = 0, limit: int | None = None) -> FileBytes:
        """Return at most ``limit`` bytes of a file from ``offset`` on. Raises as ``read`` does."""
        most = self.bounds.read_bytes
        room = most if limit is None else _number(limit, "limit", 1, most)
        begin = _number(offset, "offset", 0, _FURTHEST)
        spot = self._access.spot(path)
        with self._access.file(spot) as (fd, seen):
            content = os.pread(fd, room, begin)
        self.tracker.note([spot])
        following = begin + len(content)
        return FileBytes(spot.shown, content, begin, following if content and following < seen.st_size else None, seen.st_size)

    def write(self, path: str | os.PathLike[str], content: str | bytes, *, append: bool = False) -> FileWritten:
        """Replace a file as a whole: readers see the old or the new content. With ``append`` the content is appended.

        Missing directories are created. A root that is a single writable file is written in its place.

        Raises:
            InvalidRequest: the content is too large, or neither bytes nor text that is valid UTF-8.
            InvalidPath, InvalidWorkDir: the path is outside of all roots, or not a name for a file.
            FileRefused: the file can only be read, is not regular, a link, has a second name, or cannot be written.
        """
        raw = _encode(content, self.bounds.write_bytes)
        spot = self._access.spot(path)
        with self._access.changing(spot, make=True) as target:
            if target.seen is not None:
                check_plain(target.seen, spot)
            if target.seen is not None and (append or spot.root.single):
                size = _written_on(target, spot, raw, append=append)
            else:
                size = _replace(target, raw)
        if target.seen is None or not append:
            self.tracker.note([spot], created=target.seen is None)
        return FileWritten(spot.shown, size, created=target.seen is None)


def _entry(spot: WorkspacePath, seen: os.stat_result) -> FileEntry:
    return FileEntry(spot.shown, kind_of(seen), seen.st_size, seen.st_mtime)


def _page(path: str, raw: bytes, asked: tuple[int, int, int], size: int) -> FileText:
    """Return a piece of a file from bytes that begin somewhat before it; whole characters only."""
    begin, before, room = asked
    start = before + _rest_of_character(raw, before)
    piece = raw[start : start + room]
    offset = begin - before + start
    ends = len(piece) < room or offset + len(piece) >= size
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(piece, ends)
    used = piece[: len(piece) - len(decoder.getstate()[0])]
    following = offset + len(used)
    return FileText(path, text, min(offset, max(size, begin)), None if ends else following, size, lossy=not _is_text(used))


def _rest_of_character(raw: bytes, at: int) -> int:
    """Return how many bytes from there on belong to a character that begins before."""
    for back in range(1, min(at, PIECE_BYTES - 1) + 1):
        for length in range(back + 1, PIECE_BYTES + 1):
            if len(raw) >= at - back + length and _is_character(raw[at - back : at - back + length]):
                return length - back
    return 0


def _is_character(raw: bytes) -> bool:
    return _is_text(raw) and len(raw.decode()) == 1


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _number(value: object, name: str, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        message = f"{name}={value!r:.100}: must be a number of bytes, from {least} to {most}."
        raise InvalidRequest(message)
    return value


def _encode(content: object, most: int) -> bytes:
    if not isinstance(content, str | bytes):
        message = f"content={content!r:.100}: must be text or bytes."
        raise InvalidRequest(message)
    try:
        raw = content.encode() if isinstance(content, str) else content
    except UnicodeEncodeError as exc:
        message = f"content holds half a character at position {exc.start}, which is no UTF-8: give bytes, or leave it out."
        raise InvalidRequest(message) from exc
    if len(raw) > most:
        message = f"content has {len(raw)} bytes, and one call writes {most} at most: write the rest with append=True."
        raise InvalidRequest(message)
    return raw


def _written_on(target: Target, spot: WorkspacePath, raw: bytes, *, append: bool) -> int:
    """Write into an existing file; return its new size."""
    fd = open_beneath(target.directory, target.name, _ON | (os.O_APPEND if append else 0))
    with os.fdopen(fd, "wb", buffering=0) as file:
        check_plain(os.fstat(fd), spot)
        if not append:
            file.truncate(0)
        left = memoryview(raw)
        while left:
            left = left[file.write(left) :]
        return os.fstat(fd).st_size


def _replace(target: Target, raw: bytes) -> int:
    """Replace a file by a new one, which readers see as a whole or not at all."""
    mode = None if target.seen is None else stat.S_IMODE(target.seen.st_mode) & 0o777
    temporary = f".{secrets.token_hex(8)}.tmp"  # short: the file's own name may be as long as the system allows
    replace_file(target.name, raw, mode=mode, dir_fd=target.directory, temporary=temporary)
    return len(raw)
