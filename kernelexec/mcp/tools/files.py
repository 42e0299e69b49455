"""The tools of a session's files: what a model can do with them without running code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

from fastmcp.exceptions import ToolError
from fastmcp.tools import ToolResult

from kernelexec.mcp.calls.sessions import Calls
from kernelexec.mcp.content.answers import fitted
from kernelexec.mcp.tools.code import SessionName, refusing, told
from kernelexec.results import FilesDeleted

#: How many entries one answer shows.
_SHOWN = 500
_PIECE_BYTES, _PIECE_MOST = 20_000, 100_000

FilePath = Annotated[str, "The file: relative to the workspace, or absolute as code in the session sees it."]
Patterns = Annotated[
    list[str] | None,
    "Patterns of files to delete, as '*.tmp' (anywhere) or 'cache/**' (by the whole path). Instead of path.",
]


@dataclass(frozen=True, slots=True)
class FileRow:
    """One entry of a directory."""

    path: str
    kind: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class FileRows:
    """What a directory holds; ``total`` counts those too that are not shown. Where not complete, there may be more."""

    entries: list[FileRow]
    total: int
    complete: bool


@dataclass(frozen=True, slots=True)
class Kept:
    """A file that was not deleted, and why."""

    path: str
    why: str


@dataclass(frozen=True, slots=True)
class Deleted:
    """What was deleted and what was not, at most 500 of each, and how many that are. Where not complete, call again."""

    deleted: list[str]
    deleted_total: int
    refused: list[Kept]
    refused_total: int
    complete: bool


class FileTools:
    """The tools, one method each, for one executor's sessions."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def list_files(
        self,
        path: Annotated[str, "The directory: relative to the workspace, or absolute as code in the session sees it."] = ".",
        *,
        recursive: Annotated[bool, "Whether what is in its directories is listed too."] = False,
        pattern: Annotated[str | None, "Only what matches, as '*.py' (anywhere) or 'data/**/*.csv'."] = None,
        session: SessionName = "default",
    ) -> FileRows:
        """List a directory."""
        with refusing():
            opened = await self._calls.session(session)
            found = await opened.files.list(path, recursive=recursive, pattern=pattern)
        rows = [FileRow(opened.mask(entry.path), entry.kind, entry.size_bytes) for entry in found.entries[:_SHOWN]]
        return fitted(lambda shown: FileRows(rows[:shown], len(found), found.complete), _SHOWN)

    async def read_file(
        self,
        path: FilePath,
        offset: Annotated[int, "Where to begin, in bytes."] = 0,
        limit: Annotated[int, "How much at most, in bytes; 100,000 is the most."] = _PIECE_BYTES,
        session: SessionName = "default",
    ) -> ToolResult:
        """Read a piece of a file."""
        with refusing():
            opened = await self._calls.session(session)
            most = min(limit, _PIECE_MOST, opened.files.bounds.read_bytes)
            read = await opened.files.read(path, offset=offset, limit=most)
        follows = "this is the end" if read.next_offset is None else f"read on with offset={read.next_offset}"
        odd = "; bytes that are no UTF-8 are shown as \N{REPLACEMENT CHARACTER}" if read.lossy else ""
        read = replace(read, path=opened.mask(read.path), text=opened.mask(read.text))
        last = f"[{read.path}, from byte {read.offset} of {read.total_bytes}; {follows}{odd}]"
        return told(f"{read.text or '(nothing)'}\n{last}", "kernelexec/file", read)

    async def write_file(
        self,
        path: FilePath,
        content: Annotated[str, "The text of the file, all of it; with append what is added."],
        *,
        append: Annotated[bool, "Whether it is added to what is there, instead of taking its place."] = False,
        session: SessionName = "default",
    ) -> ToolResult:
        """Write a file."""
        with refusing():
            opened = await self._calls.session(session)
            written = await opened.files.write(path, content, append=append)
        written = replace(written, path=opened.mask(written.path))
        done = "made" if written.created else "added to" if append else "replaced"
        return told(f"{written.path} was {done}: {written.size_bytes} bytes.", "kernelexec/file", written)

    async def delete_files(
        self,
        path: Annotated[str | None, "One file or directory to delete. Instead of include."] = None,
        *,
        recursive: Annotated[bool, "Whether a directory is deleted with all that is in it."] = False,
        include: Patterns = None,
        exclude: Annotated[list[str] | None, "Patterns of files that stay though include matches them."] = None,
        session: SessionName = "default",
    ) -> Deleted:
        """Delete files."""
        if (path is None) == (include is None) or (path is not None and exclude is not None):
            raise ToolError("Give either path, or include with or without exclude: nothing was deleted.")
        if include is not None and recursive:
            raise ToolError("recursive goes with path: a pattern that matches a directory matches all in it anyway.")
        with refusing():
            opened = await self._calls.session(session)
            if path is not None:
                done = await opened.files.delete(path, recursive=recursive)
            else:
                done = await opened.files.delete_many(include or [], exclude or [])
        return fitted(partial(_told, done, opened.mask), _SHOWN)


def _told(done: FilesDeleted, mask: Callable[[str], str], shown: int) -> Deleted:
    deleted = [mask(path) for path in done.deleted[:shown]]
    refused = [Kept(mask(one.path), mask(one.why)) for one in done.refused[:shown]]
    return Deleted(deleted, len(done.deleted), refused, len(done.refused), done.complete)
