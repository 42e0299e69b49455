"""Tools for the files of a workspace; they run no code."""

from __future__ import annotations

import mimetypes
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from fastmcp.exceptions import ToolError
from fastmcp.tools import ToolResult

from kernelexec.errors import InvalidPath
from kernelexec.mcp.answers import ROOM_BYTES, InlinePictures, fit_answer, select_pictures
from kernelexec.mcp.sessions import SessionMethods
from kernelexec.mcp.tools.code_tools import make_quoting_answer, make_text_answer
from kernelexec.results import FileBytes, FilesDeleted, FileText, FileWritten, Image
from kernelexec.results.media import BEGINNING_BYTES, read_picture_type
from kernelexec.text import format_note, quote_line

if TYPE_CHECKING:
    from kernelexec.session import AsyncSession
    from kernelexec.session.features.session_files import AsyncFiles

#: Entries that one answer shows.
_SHOWN = 500
_PIECE_BYTES, _PIECE_MOST = 20_000, 100_000
#: The largest picture that is read, in bytes.
_PICTURE_MOST = 16 * 2**20
#: A text has at most one character of so many that is no UTF-8.
_FEW_INVALID = 10
#: A run of characters of base64 that no model reads, from its beginning: so a text is searched in linear time.
_BASE64 = re.compile(r"(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{201,}={0,2}")


@dataclass(frozen=True, slots=True)
class FileRow:
    """An entry of a directory."""

    path: str
    kind: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class DirectoryListing:
    """Entries of a directory; ``total`` includes those not shown. If not complete, there may be more."""

    entries: list[FileRow]
    total: int
    complete: bool


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A file that was not deleted, and the reason."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class DeletedFiles:
    """Deleted and refused files, at most 500 of each, with the total numbers. If not complete, call again."""

    deleted: list[str]
    deleted_total: int
    refused: list[KeptFile]
    refused_total: int
    complete: bool


class FileTools(SessionMethods):
    """Tools for files, with a method for each."""

    async def list_files(
        self,
        path: str = ".",
        *,
        recursive: bool = False,
        pattern: str | None = None,
        session: str = "default",
    ) -> DirectoryListing:
        """List a directory."""
        try:
            opened = await self._sessions.get_session_with_files(session)
        except InvalidPath:
            if path != ".":
                raise
            return DirectoryListing([], 0, complete=True)
        listing = await opened.files.list(path, recursive=recursive, pattern=pattern)
        rows = [FileRow(opened.mask(entry.path), entry.kind, entry.size_bytes) for entry in listing.entries[:_SHOWN]]
        return fit_answer(lambda shown: DirectoryListing(rows[:shown], len(listing), listing.complete), _SHOWN)

    async def read_file(
        self,
        path: str,
        offset: int = 0,
        limit: int = _PIECE_BYTES,
        session: str = "default",
    ) -> ToolResult:
        """Read a piece of a file."""
        opened = await self._sessions.get_session_with_files(session)
        most = min(limit, _PIECE_MOST)
        read = await opened.files.read(path, offset=offset, limit=most)
        if _is_binary(read.text):
            return await self._show_binary(opened.files, replace(read, path=opened.mask(read.path)), path)
        follows = "end of file" if read.next_offset is None else f"continue with offset={read.next_offset}"
        odd = "; bytes that are not UTF-8 are shown as \N{REPLACEMENT CHARACTER}" if read.lossy else ""
        read = replace(read, path=opened.mask(read.path), text=_BASE64.sub(_omit_base64, opened.mask(read.text)))
        where = f"{'empty; ' * (not read.text)}{read.path}, from byte {read.offset} of {read.total_bytes}; {follows}{odd}"
        return make_quoting_answer(read.text, where, "kernelexec/file", read)

    async def _show_binary(self, files: AsyncFiles, read: FileText, path: str) -> ToolResult:
        """Return the answer for a binary file: a picture, or type and size."""
        type_of_name, packing = mimetypes.guess_type(read.path)
        picture_type = read_picture_type((await files.read_bytes(path, limit=BEGINNING_BYTES)).content)
        pictures = InlinePictures([], [], [])
        if picture_type is not None and self._options.pictures != "files" and read.total_bytes <= _PICTURE_MOST:
            whole = await read_whole(files, path, _PICTURE_MOST)
            pictures = await select_pictures([Image(picture_type, whole.content)], ROOM_BYTES)
        kind = picture_type or packing or type_of_name or "a file of unknown type"
        how = ("; shown smaller" if pictures.smaller else "") if pictures.shown else "; no text in UTF-8, so read it with code"
        answer = make_text_answer(format_note(f"{read.path}: {kind}, {read.total_bytes} bytes{how}"), "kernelexec/file", read)
        answer.content += pictures.shown
        return answer

    async def write_file(
        self,
        path: str,
        content: str,
        *,
        append: bool = False,
        session: str = "default",
    ) -> ToolResult:
        """Write a file."""
        opened = await self._sessions.get_session(session)
        written = await opened.files.write(path, content, append=append)
        done = "created" if written.created else "added to" if append else "replaced"
        return _make_written_answer(opened, written, done)

    async def edit_file(
        self,
        path: str,
        old_text: str,
        new_text: str,
        *,
        replace_all: bool = False,
        session: str = "default",
    ) -> ToolResult:
        """Edit a file."""
        opened = await self._sessions.get_session_with_files(session)
        written = await opened.files.edit(path, old_text, new_text, every=replace_all)
        return _make_written_answer(opened, written, "edited")

    async def delete_files(
        self,
        path: str | None = None,
        *,
        recursive: bool = False,
        include: list[str] | None = None,
        exclude: list[str] | None = None,
        session: str = "default",
    ) -> DeletedFiles:
        """Delete files."""
        if (path is None) == (include is None) or (path is not None and exclude is not None):
            raise ToolError("Use either path, or include with or without exclude. Nothing was deleted.")
        if include is not None and recursive:
            raise ToolError("Use recursive only with path; a pattern of a directory includes its files. Nothing was deleted.")
        opened = await self._sessions.get_session_with_files(session)
        if path is not None:
            done = await opened.files.delete(path, recursive=recursive)
        else:
            done = await opened.files.delete_many(include or [], exclude or [])
        return fit_answer(partial(_make_answer, done, opened.mask), _SHOWN)


async def read_whole(files: AsyncFiles, path: str | os.PathLike[str], limit: int) -> FileBytes:
    """Return a file as bytes, in as many reads as needed; the content of a file larger than ``limit`` bytes is incomplete."""
    # A cell may be writing: the size of each read counts, not that of the first.
    read = await files.read_bytes(path)
    content = bytearray(read.content)
    while read.next_offset is not None and max(read.total_bytes, len(content)) <= limit:
        read = await files.read_bytes(path, offset=read.next_offset)
        content += read.content
    return replace(read, content=bytes(content), offset=0)


def _make_written_answer(opened: AsyncSession, written: FileWritten, done: str) -> ToolResult:
    written = replace(written, path=opened.mask(written.path))
    return make_text_answer(f"{quote_line(written.path)} was {done}: {written.size_bytes} bytes.", "kernelexec/file", written)


def _make_answer(done: FilesDeleted, mask: Callable[[str], str], shown: int) -> DeletedFiles:
    deleted = [mask(path) for path in done.deleted[:shown]]
    refused = [KeptFile(mask(file.path), mask(file.reason)) for file in done.refused[:shown]]
    return DeletedFiles(deleted, len(done.deleted), refused, len(done.refused), done.complete)


def _omit_base64(run: re.Match[str]) -> str:
    """Return the size of a run of base64 as a note; return other runs, such as digits or genes, unchanged."""
    text = run[0]
    return text if text in (text.lower(), text.upper()) or text.isalpha() else f"[... {len(text)} bytes of base64 ...]"


def _is_binary(text: str) -> bool:
    """Return whether a piece of a file is binary: with NUL, or with many characters that are not UTF-8."""
    return "\0" in text or text.count("\N{REPLACEMENT CHARACTER}") * _FEW_INVALID > len(text)
