"""A session's files, without a cell: listed, read, written and deleted by paths of the workspace."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import Literal, TypeVar

import anyio
import anyio.to_thread

from kernelexec.errors import InvalidRequest, Refused
from kernelexec.events import FilesTouched
from kernelexec.provisioning import file_roots
from kernelexec.results import FileBytes, FileList, FilesDeleted, FileText, FileWritten
from kernelexec.session.context import SessionContext
from kernelexec.text import clean_text
from kernelexec.workspace import FileOperations
from kernelexec.workspace.agent_files.access import Access

_T = TypeVar("_T", FileList, FileText, FileBytes, FileWritten, FilesDeleted)
_PATH_CHARS = 200


class AsyncFiles:
    """The files of one session. Paths are relative to its workspace, or absolute, as kernels see them or as they are here.

    Every path is opened when it is used, and no link is followed in any part of it; only plain files are read and written.
    Operations run one after the other, also while a cell runs. Results have paths as they are; hooks, and messages of errors,
    have names of secrets in the place of their values.

    Raises:
        InvalidConfig: a context path is not there any more.
    """

    def __init__(self, context: SessionContext) -> None:
        access = Access(file_roots(context.config, context.workspace, context.inside))
        self._context = context
        self._operations = FileOperations(access, context.config.files)
        self.tracker = self._operations.tracker
        self.bounds = self._operations.bounds
        self._limiter = anyio.CapacityLimiter(1)

    async def list(
        self, path: str | os.PathLike[str] = ".", *, recursive: bool = False, pattern: str | None = None
    ) -> FileList:
        """Return a directory's entries, with ``recursive`` those of all directories in it too; for a file its own entry.

        Directories that tools fill by themselves, as ``.git`` or ``node_modules``, are not entered.

        Args:
            path: the directory.
            recursive: whether entries of its directories are listed too.
            pattern: only entries that match: ``*.py`` anywhere, ``data/**/*.csv`` by the whole path from the directory on.

        Raises:
            InvalidRequest, InvalidPath, InvalidWorkDir, Closed: the path or the pattern is none, or nothing is there.
            FileRefused: it is behind a link, or cannot be read.
        """
        return await self._call(partial(self._operations.list, path, recursive=recursive, pattern=pattern))

    async def read(self, path: str | os.PathLike[str], *, offset: int = 0, limit: int | None = None) -> FileText:
        """Return a piece of a file as text: whole characters, from the byte ``offset`` on, ``limit`` bytes at most.

        ``next_offset`` of the result is the offset of the next piece. The file counts as read; see ``tracker``.

        Raises:
            InvalidRequest, InvalidPath, InvalidWorkDir, Closed: an argument makes no sense, or nothing is there.
            FileRefused: it is no plain file, a link, has a second name, or cannot be read.
        """
        call = partial(self._operations.read, path, offset=offset, limit=limit)
        return await self._perform("read", path, call, lambda read: ((read.path,), ()))

    async def read_bytes(self, path: str | os.PathLike[str], *, offset: int = 0, limit: int | None = None) -> FileBytes:
        """Return a piece of a file as it is, pictures too: ``limit`` bytes at most, from the byte ``offset`` on.

        ``next_offset`` of the result is the offset of the next piece. The file counts as read; see ``tracker``.

        Raises:
            InvalidRequest, InvalidPath, InvalidWorkDir, Closed: an argument makes no sense, or nothing is there.
            FileRefused: it is no plain file, a link, has a second name, or cannot be read.
        """
        call = partial(self._operations.read_bytes, path, offset=offset, limit=limit)
        return await self._perform("read", path, call, lambda read: ((read.path,), ()))

    async def write(self, path: str | os.PathLike[str], content: str | bytes, *, append: bool = False) -> FileWritten:
        """Write a file as a whole, at once: a reader sees the old one or the new one. With ``append`` add to the old one.

        Missing directories are made.

        Raises:
            InvalidRequest, InvalidPath, InvalidWorkDir, Closed: an argument makes no sense; nothing was written.
            FileRefused: it can only be read, is no plain file, a link, has a second name, or cannot be written.
        """
        call = partial(self._operations.write, path, content, append=append)
        return await self._perform("write", path, call, lambda written: ((written.path,), ()))

    async def delete(self, path: str | os.PathLike[str], *, recursive: bool = False) -> FilesDeleted:
        """Delete a file, a link itself, an empty directory, or with ``recursive`` a directory with all its entries.

        A file that these operations neither read nor made stays, unless tools make it again, or
        ``Config(files={"read_before_delete": False})``; so do the workspace itself, and ``.git``, ``.env`` and the like.

        Raises:
            InvalidPath, InvalidWorkDir, Closed: there is no such file where these operations may be used.
            FileRefused: it stays, and the message says why.
        """
        call = partial(self._operations.delete, path, recursive=recursive)
        return await self._perform("delete", path, call, _deleted)

    async def delete_many(self, include: str | Iterable[str], exclude: str | Iterable[str] = ()) -> FilesDeleted:
        """Delete the files that patterns match, as ``["*.tmp", "cache"]``: each file by itself, by the rules of ``delete``.

        A pattern that matches a directory matches all in it. The result lists what was deleted, and why other files were not.

        Raises:
            InvalidRequest, InvalidWorkDir, Closed: a pattern is none; nothing was deleted.
        """
        call = partial(self._operations.delete_many, include, exclude)
        return await self._perform("delete", include, call, _deleted)

    async def _perform(
        self,
        operation: Literal["read", "write", "delete"],
        named: object,
        call: Callable[[], _T],
        touched: Callable[[_T], tuple[Iterable[str], Iterable[str]]],
    ) -> _T:
        """Perform an operation, and report to the hooks the touched paths and why others were refused."""
        context = self._context
        mask = context.masking.text
        try:
            result = await self._call(call)
        except (InvalidRequest, Refused) as exc:
            refusal = f"{clean_text(mask(str(named))[:_PATH_CHARS])}: {exc}"
            context.dispatch(FilesTouched(context.name, operation, (), (refusal,)))
            raise
        paths, refused = (tuple(map(mask, texts)) for texts in touched(result))
        context.dispatch(FilesTouched(context.name, operation, paths, refused))
        return result

    async def _call(self, call: Callable[[], _T]) -> _T:
        """Return the result of a call in a thread, one after the other; mask the errors that it raises."""
        self._context.scope.check_open()
        try:
            return await anyio.to_thread.run_sync(call, limiter=self._limiter)
        except (InvalidRequest, Refused) as exc:
            exc.args = tuple(self._context.masking.text(str(arg)) for arg in exc.args)
            raise


def _deleted(result: FilesDeleted) -> tuple[Iterable[str], Iterable[str]]:
    return result.deleted, (refusal.why for refusal in result.refused)
