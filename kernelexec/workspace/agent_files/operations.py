"""List, read, write and delete files for an agent, by paths and by patterns."""

from __future__ import annotations

import codecs
import errno
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from itertools import pairwise

from kernelexec.errors import FileRefused, InvalidPath, InvalidRequest
from kernelexec.results import FileBytes, FileEntry, FileList, FilesDeleted, FileText, FileWritten, NotDeleted
from kernelexec.workspace.agent_files.access import (
    LISTED,
    Access,
    Target,
    WalkEntry,
    WalkResult,
    WorkspacePath,
    check_plain,
    kind_of,
    system_error,
    walk,
)
from kernelexec.workspace.agent_files.tracking import ReadTracker
from kernelexec.workspace.cell_files import IGNORED
from kernelexec.workspace.directory import OURS
from kernelexec.workspace.rmtree import clear
from kernelexec.workspace.safe_files import closing_fd, replace_file, short_temporary_name
from kernelexec.workspace.system_calls import open_beneath

#: The most bytes of a read, which the next call continues, and of a write.
READ_BYTES, WRITE_BYTES = 1024 * 1024, 16 * 1024 * 1024
#: The least size of a piece, in bytes, for any character of UTF-8.
PIECE_BYTES = 4
_FURTHEST = 2**62
#: The most new entries of a directory during its deletion.
_NEW_ENTRIES = 100
_ON = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY
#: Names, in any case, of files and directories needed by a project or its owner. They and their content are not deleted.
CRITICAL = frozenset(
    {
        *(".git", ".hg", ".svn", ".env", ".venv", "venv", "node_modules"),
        *(".ssh", ".gnupg", ".kernelexec", ".journals"),
    }
)
_CRITICAL_BEGINNING = ".env."
#: The bounds of the number of patterns in a request, and of the length of each.
PATTERNS_MAX, PATTERN_CHARS = 100, 1000
_ANY = "**"


class FileOperations:
    """Operations of an agent on files beneath the roots of a session. For a thread.

    Each path is opened at its use, without following links in any part. Only regular files are read and written.

    Args:
        access: opens the files.
        read_before_delete: whether files must have been read or created before they are deleted.

    Raises, in each operation:
        InvalidRequest: a number is out of range, a pattern is malformed, or the content is too large or not text in UTF-8.
        InvalidPath, InvalidWorkDir: the path is malformed, missing, or outside of all roots; or a root is missing.
        FileRefused: the file is hidden, not regular, a link, has a second name, or must not or cannot be opened or changed.
    """

    def __init__(self, access: Access, *, read_before_delete: bool = True) -> None:
        self.tracker = ReadTracker(access, enforced=read_before_delete)
        self._access = access

    def list(self, path: str | os.PathLike[str] = ".", *, recursive: bool = False, pattern: str | None = None) -> FileList:
        """List a directory, or with ``recursive`` all inner directories too. A file has a list of its own entry.

        Directories of tools, such as ``.git`` or ``node_modules``, are not entered, and our directory is left out.
        """
        globs = None if pattern is None else Globs(pattern, "pattern")
        spot = self._access.spot(path)
        seen = self._access.look(spot)
        if seen is not None and kind_of(seen) != "directory":
            return FileList(spot.shown, (_entry(spot, seen),))
        with self._access.directory(spot) as fd:
            walked = walk(fd, enters=lambda entry: recursive and entry.parts[-1] not in IGNORED)
        others = (entry for entry in walked.entries if entry.parts[-1] != OURS)
        matching = (entry for entry in others if globs is None or globs.matches(entry.parts))
        entries = tuple(_entry(spot / "/".join(entry.parts), entry.seen) for entry in matching)
        return FileList(spot.shown, entries, complete=walked.complete and not walked.unreadable)

    def read(self, path: str | os.PathLike[str], *, offset: int = 0, limit: int | None = None) -> FileText:
        """Return a piece of a file as text: the characters that begin within ``limit`` bytes from ``offset`` on."""
        most = READ_BYTES
        room = most if limit is None else _number(limit, "limit", PIECE_BYTES, most)
        begin = _number(offset, "offset", 0, _FURTHEST)
        # Read from a little before ``offset``: it may be inside of a character, which belongs to the piece before.
        spot, before = self._access.spot(path), min(begin, PIECE_BYTES - 1)
        with self._access.file(spot) as (fd, seen):
            raw = os.pread(fd, before + room + PIECE_BYTES, begin - before)
        self.tracker.note([spot])
        return _page(spot.shown, raw, (begin, before, room), seen.st_size)

    def read_bytes(self, path: str | os.PathLike[str], *, offset: int = 0, limit: int | None = None) -> FileBytes:
        """Return at most ``limit`` bytes of a file from ``offset`` on."""
        most = READ_BYTES
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

        Missing directories are created. A root of a single writable file is written in place.
        """
        raw = _encode(content, WRITE_BYTES)
        return self._write(self._access.spot(path), raw, append=append)

    def edit(self, path: str | os.PathLike[str], old: str, new: str, *, every: bool = False) -> FileWritten:
        """Replace a text with a single occurrence in a file, or with ``every`` all occurrences, as ``write`` does."""
        before, after = _encode(old, WRITE_BYTES), _encode(new, WRITE_BYTES)
        if not before:
            raise InvalidRequest("The text to replace must not be empty: use write to make a file.")
        spot, limit = self._access.spot(path), WRITE_BYTES
        with self._access.file(spot) as (fd, seen), os.fdopen(fd, "rb", closefd=False) as file:  # it may grow meanwhile
            content = b"" if seen.st_size > limit else file.read(limit + 1)
        size = max(seen.st_size, len(content))
        if size > limit:
            raise InvalidRequest(f"{spot.shown} has {size} bytes; the limit of a file that is edited is {limit}.")
        count = content.count(before)
        if not count:
            raise InvalidRequest(f"{spot.shown} does not contain the text: it must be the same in every space and line end.")
        if count > 1 and not every:
            raise InvalidRequest(f"{spot.shown} contains the text {count} times: add lines around it, or replace all of them.")
        _check_length(len(content) + count * (len(after) - len(before)), limit)
        return self._write(spot, content.replace(before, after), edited=seen)

    def delete(self, path: str | os.PathLike[str], *, recursive: bool = False) -> FilesDeleted:
        """Delete a file, a link itself, an empty directory, or with ``recursive`` a directory and its content."""
        spot = self._access.spot(path)
        self._delete(spot, recursive=recursive)
        return FilesDeleted((spot.shown,))

    def delete_many(self, include: str | Iterable[str], exclude: str | Iterable[str] = ()) -> FilesDeleted:
        """Delete the files of the workspace that match a pattern of ``include`` and no pattern of ``exclude``.

        A match of a directory is a match of the content, and the directory is deleted too once empty. Each file is deleted or
        refused separately.
        """
        included, excluded = Globs(include, "include"), Globs(exclude, "exclude")
        if not included:
            raise InvalidRequest("include names no pattern: say which files, as in include=['*.tmp'].")
        top = self._access.spot(".")
        with self._access.directory(top) as fd:
            seen = walk(fd, enters=lambda entry: not is_critical(entry.parts[-1]))
        chosen = [entry for entry in seen.entries if included.covers(entry.parts) and not excluded.covers(entry.parts)]
        refused = [
            NotDeleted((top / "/".join(parts)).shown, f"It cannot be looked into: {exc.strerror}.")
            for parts, exc in seen.unreadable
        ]
        deleted: list[str] = []
        directories = [entry for entry in reversed(chosen) if entry.kind == "directory"]  # the deeper ones first
        for entry in (*(text for text in chosen if text.kind != "directory"), *directories):
            spot = self._access.spot_at(top.path.joinpath(*entry.parts))
            try:
                if self._delete_one(spot, entry):
                    deleted.append(spot.shown)
            except (FileRefused, InvalidPath) as exc:
                if not isinstance(exc.__cause__, FileNotFoundError):  # files that are being replaced disappear by themselves
                    refused.append(NotDeleted(spot.shown, str(exc)))
        return FilesDeleted(tuple(deleted), tuple(refused), complete=seen.complete)

    def _write(
        self, spot: WorkspacePath, raw: bytes, *, append: bool = False, edited: os.stat_result | None = None
    ) -> FileWritten:
        """Write a file, or refuse it if the state is not that of the ``edited`` file."""
        with self._access.changing(spot, make=edited is None) as target:
            if edited is not None and (target.seen is None or _state(target.seen) != _state(edited)):
                raise FileRefused(f"{spot.shown} has changed during the edit, and stays as it is: read it again.")
            if target.seen is not None:
                check_plain(target.seen, spot)
            if target.seen is not None and (append or spot.root.single):
                size = _written_on(target, spot, raw, append=append)
            else:
                size = _replace(target, raw)
        # After an append to a file the rest of it is still unread.
        if target.seen is None or not append:
            self.tracker.note([spot], created=target.seen is None)
        return FileWritten(spot.shown, size, created=target.seen is None)

    def _delete_one(self, spot: WorkspacePath, entry: WalkEntry) -> bool:
        """Delete a matched entry and return True. A directory with content stays, without a report."""
        if entry.kind != "directory" or is_critical(entry.parts[-1]):
            self._delete(spot, recursive=False)
            return True
        if self._access.contains_root(spot.path):
            return False
        with self._access.changing(spot) as target:
            try:
                os.rmdir(target.name, dir_fd=target.directory)
            except OSError as exc:
                if exc.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                return False
        return True

    def _delete(self, spot: WorkspacePath, *, recursive: bool) -> None:
        self._check(spot)
        with self._access.changing(spot) as target:
            if target.seen is None:
                raise system_error(errno.ENOENT)
            if kind_of(target.seen) == "directory":
                self._delete_directory(spot, target, recursive=recursive)
            elif reason := self.tracker.reason_unread(spot, target.seen):
                raise FileRefused(reason)
            else:
                os.unlink(target.name, dir_fd=target.directory)
        self.tracker.forget(spot)

    def _check(self, spot: WorkspacePath) -> None:
        if not spot.parts:
            raise FileRefused(f"{spot.shown} is not deleted: it is the workspace or a context path.")
        if self._access.contains_root(spot.path):
            message = f"{spot.shown} is not deleted: it is, or contains, the workspace, a context path or a protected path."
            raise FileRefused(message)
        critical = next(filter(is_critical, spot.parts), None)
        if critical is not None:
            message = f"{spot.shown} is not deleted: a project may live by its {critical}. Do it by a command if it has to be."
            raise FileRefused(message)

    def _delete_directory(self, spot: WorkspacePath, target: Target, *, recursive: bool) -> None:
        with closing_fd(open_beneath(target.directory, target.name, LISTED)) as fd:
            seen = walk(fd, enters=lambda _: True)
            if seen.entries and not recursive:
                raise FileRefused(f"{spot.shown} is not empty: give recursive=True to delete it with all that is in it.")
            # Everything is checked before anything is deleted. Files that a cell creates from now on are deleted unread.
            if reason := self._against(spot, seen):
                raise FileRefused(reason)
            clear(fd, most=2 * len(seen.entries) + _NEW_ENTRIES)  # a cell may go on making directories
        try:
            os.rmdir(target.name, dir_fd=target.directory)
        except OSError as exc:
            if exc.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            message = f"{spot.shown} was emptied except for new files, or cannot be deleted: list it, and try again."
            raise FileRefused(message) from exc
        for entry in seen.entries:
            self.tracker.forget(self._access.spot_at(spot.path.joinpath(*entry.parts)))

    def _against(self, spot: WorkspacePath, seen: WalkResult) -> str | None:
        """Return the first reason against deleting the entries of a directory, or None."""
        fixed = self._access.rights()
        for entry in seen.entries:
            if is_critical(entry.parts[-1]) or (entry.seen.st_dev, entry.seen.st_ino) in fixed:
                held = (spot / "/".join(entry.parts)).shown
                return f"{spot.shown} is not deleted: it contains {held}, which stays. Delete the other entries one by one."
        if not seen.complete:
            return f"{spot.shown} holds more than {len(seen.entries)} entries: delete parts of it, or do it by a command."
        for parts, exc in seen.unreadable:
            return f"{spot.shown} is not deleted: {(spot / '/'.join(parts)).shown} cannot be looked into: {exc.strerror}."
        return self.tracker.unread_among(spot, seen.entries)


def _entry(spot: WorkspacePath, seen: os.stat_result) -> FileEntry:
    return FileEntry(spot.shown, kind_of(seen), seen.st_size, seen.st_mtime)


def _state(seen: os.stat_result) -> tuple[int, ...]:
    return seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns


def _page(path: str, raw: bytes, asked: tuple[int, int, int], size: int) -> FileText:
    """Return a piece of a file, in whole characters, from bytes that begin somewhat before the piece."""
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
    """Return the number of bytes from ``at`` on in a character that begins before."""
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
        raise InvalidRequest(f"{name}={value!r:.100}: must be a number of bytes, from {least} to {most}.")
    return value


def _encode(content: object, most: int) -> bytes:
    if not isinstance(content, str | bytes):
        raise InvalidRequest(f"content={content!r:.100}: must be text or bytes.")
    try:
        raw = content.encode() if isinstance(content, str) else content
    except UnicodeEncodeError as exc:
        message = f"content holds half a character at position {exc.start}, which is no UTF-8: give bytes, or leave it out."
        raise InvalidRequest(message) from exc
    _check_length(len(raw), most)
    return raw


def _check_length(size: int, most: int) -> None:
    if size > most:
        message = f"content has {size} bytes, and one call writes {most} at most: write the rest with append=True."
        raise InvalidRequest(message)


def _written_on(target: Target, spot: WorkspacePath, raw: bytes, *, append: bool) -> int:
    """Write into an existing file and return the new size. A disk without room for all bytes leaves the file unchanged."""
    fd = open_beneath(target.directory, target.name, _ON)
    with os.fdopen(fd, "wb", buffering=0) as file:
        before = os.fstat(fd)
        check_plain(before, spot)
        offset = before.st_size if append else 0
        try:
            # Blocks first: after a partial write over the old content there would be no way back.
            with _ignore_unsupported():
                os.posix_fallocate(fd, offset, max(len(raw), 1))
            file.seek(offset)
            left = memoryview(raw)
            while left:
                left = left[file.write(left) :]
            file.truncate(offset + len(raw))
        except OSError:
            file.truncate(before.st_size)
            raise
        return offset + len(raw)


@contextmanager
def _ignore_unsupported() -> Iterator[None]:
    """Ignore the error of a file system without allocation. The write shows whether there is enough space."""
    try:
        yield
    except OSError as exc:
        if exc.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENODEV):
            raise
    except AttributeError:  # not on every Unix
        return


def _replace(target: Target, raw: bytes) -> int:
    """Replace a file by a new file with the same rights. Readers see the new file as a whole or not at all."""
    mode = None if target.seen is None else stat.S_IMODE(target.seen.st_mode) & 0o777
    replace_file(target.name, raw, mode=mode, dir_fd=target.directory, temporary=short_temporary_name())
    return len(raw)


def is_critical(name: str) -> bool:
    """Return whether files with a name are never deleted here."""
    plain = name.casefold()
    return plain in CRITICAL or plain.startswith(_CRITICAL_BEGINNING)


class Globs:
    """Alternative patterns, without slow matches. A pattern without a slash matches names in any directory, others whole paths.

    Args:
        patterns: one pattern, or several.
        name: the name of the parameter, for messages.

    Raises:
        InvalidRequest: a pattern is not text, empty, absolute, contains ``..`` or is too long; or there are too many.
    """

    def __init__(self, patterns: str | Iterable[str], name: str) -> None:
        texts = (patterns,) if isinstance(patterns, str) else tuple(patterns) if isinstance(patterns, Iterable) else (patterns,)
        if len(texts) > PATTERNS_MAX:
            raise InvalidRequest(f"{name}: {len(texts)} patterns are given, {PATTERNS_MAX} is the most: say it in fewer.")
        self._patterns = [_split(pattern, name) for pattern in texts]

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def matches(self, parts: Sequence[str]) -> bool:
        """Return whether a pattern matches a path, given as parts."""
        return any(_matches(pattern, parts, whole=True) for pattern in self._patterns)

    def covers(self, parts: Sequence[str]) -> bool:
        """Return whether a pattern matches a path or a directory above it."""
        return any(_matches(pattern, parts, whole=False) for pattern in self._patterns)


def _matches(pattern: Sequence[Sequence[str]], parts: Sequence[str], *, whole: bool) -> bool:
    """Return whether a pattern matches a path, or with ``whole=False`` the beginning of a path.

    The pieces between ``**`` are searched from left to right. The first match of each is enough, so the search never goes back.
    """
    first, *others = pattern
    if not _fits(first, parts, 0):
        return False
    begin = len(first)
    if not others:
        return not whole or begin == len(parts)
    for piece in others[:-1]:
        matching = (index for index in range(begin, len(parts)) if _fits(piece, parts, index))
        begin = next(matching, len(parts)) + len(piece)
    last = len(parts) - len(others[-1])
    if not others[-1]:  # the content of a directory, without the directory
        return begin < last
    return any(_fits(others[-1], parts, index) for index in range(max(begin, last) if whole else begin, last + 1))


def _fits(globs: Sequence[str], parts: Sequence[str], begin: int) -> bool:
    return len(parts) - begin >= len(globs) and all(map(fnmatchcase, parts[begin : begin + len(globs)], globs))


def _split(pattern: object, name: str) -> list[list[str]]:
    """Return the pieces of a pattern between ``**``, each as globs for the parts of a path."""
    if not isinstance(pattern, str) or not pattern.strip() or len(pattern) > PATTERN_CHARS:
        message = f"{name}={pattern!r:.100}: a pattern is text as in '*.tmp' or 'cache/**', {PATTERN_CHARS} characters at most."
        raise InvalidRequest(message)
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    if pattern.startswith("/") or ".." in parts or not parts:
        raise InvalidRequest(f"{name}={pattern!r:.100}: a pattern is relative to the directory, and has no '..'.")
    parts = parts if "/" in pattern else [_ANY, *parts]
    pieces: list[list[str]] = [[]]
    for before, part in pairwise(["", *parts]):
        if part != _ANY:
            pieces[-1].append(part)
        elif before != _ANY:  # a second "**" in a row has no effect
            pieces.append([])
    return pieces
