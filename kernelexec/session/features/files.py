"""What a session's caller can do with its files, without a cell: list, read, write and delete, by paths of the workspace."""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

import anyio
import anyio.to_thread

from kernelexec.config import Config
from kernelexec.errors import InvalidRequest, Refused
from kernelexec.events import Event, FilesTouched
from kernelexec.provisioning import file_roots
from kernelexec.results import FileBytes, FileList, FilesDeleted, FileText, FileWritten
from kernelexec.session.behind import Behind
from kernelexec.session.cells.masking import Secrecy
from kernelexec.session.lifecycle import Life
from kernelexec.text import clean_text
from kernelexec.workspace import FileOperations
from kernelexec.workspace.agent_files.access import Access

_T = TypeVar("_T", FileList, FileText, FileBytes, FileWritten, FilesDeleted)
_PATH_CHARS = 200
_making = threading.Lock()


class AsyncFiles:
    """The files of one session. Paths are relative to its workspace, or absolute, as kernels see them or as they are here.

    Every path is opened when it is used, and no link is followed in any part of it; only plain files are read and written.
    Operations run one after the other, also while a cell runs. What comes back has paths as they are; hooks, and messages of
    errors, have names of secrets in the place of their values.

    Args:
        session: its name, for the hooks.
        life: while it lasts there are operations.
        operations: what is done, in a thread.
        tell: what tells the hooks.
        mask: what puts names of secrets in the place of their values.
        before: awaited before anything is changed.
    """

    def __init__(
        self,
        session: str,
        life: Life,
        operations: FileOperations,
        tell: Callable[[Event], None],
        mask: Callable[[str], str],
        before: Callable[[], Awaitable[None]],
    ) -> None:
        self.tracker = operations.tracker
        self.bounds = operations.bounds
        self._session = session
        self._life = life
        self._operations = operations
        self._tell = tell
        self._mask = mask
        self._before = before
        self._turn = anyio.CapacityLimiter(1)

    async def list(
        self, path: str | os.PathLike[str] = ".", *, recursive: bool = False, pattern: str | None = None
    ) -> FileList:
        """What a directory holds, or with ``recursive`` all directories in it too; of a file its own entry.

        Directories that tools fill by themselves, as ``.git`` or ``node_modules``, are not entered.

        Args:
            path: the directory.
            recursive: whether what is in its directories is listed too.
            pattern: only what matches: ``*.py`` anywhere, ``data/**/*.csv`` by the whole path from the directory on.

        Raises:
            InvalidRequest, InvalidPath, InvalidWorkDir, Closed: the path or the pattern is none, or nothing is there.
            FileRefused: it is behind a link, or cannot be read.
        """
        return await self._called(partial(self._operations.list, path, recursive=recursive, pattern=pattern))

    async def read(self, path: str | os.PathLike[str], *, offset: int = 0, limit: int | None = None) -> FileText:
        """A piece of a file as text: whole characters, from the byte ``offset`` on, ``limit`` bytes at most.

        ``next_offset`` of what comes back is where to read on. The file counts as read; see ``tracker``.

        Raises:
            InvalidRequest, InvalidPath, InvalidWorkDir, Closed: an argument makes no sense, or nothing is there.
            FileRefused: it is no plain file, a link, has a second name, or cannot be read.
        """
        call = partial(self._operations.read, path, offset=offset, limit=limit)
        return await self._done("read", path, call, lambda read: ((read.path,), ()))

    async def read_bytes(self, path: str | os.PathLike[str], *, offset: int = 0, limit: int | None = None) -> FileBytes:
        """A piece of a file as it is, pictures too: ``limit`` bytes at most, from the byte ``offset`` on.

        ``next_offset`` of what comes back is where to read on. The file counts as read; see ``tracker``.

        Raises:
            InvalidRequest, InvalidPath, InvalidWorkDir, Closed: an argument makes no sense, or nothing is there.
            FileRefused: it is no plain file, a link, has a second name, or cannot be read.
        """
        call = partial(self._operations.read_bytes, path, offset=offset, limit=limit)
        return await self._done("read", path, call, lambda read: ((read.path,), ()))

    async def write(self, path: str | os.PathLike[str], content: str | bytes, *, append: bool = False) -> FileWritten:
        """Write a file as a whole, at once: a reader sees the old one or the new one. With ``append`` add to what is there.

        Directories that are missing are made.

        Raises:
            InvalidRequest, InvalidPath, InvalidWorkDir, Closed: an argument makes no sense; nothing was written.
            FileRefused: it can only be read, is no plain file, a link, has a second name, or cannot be written.
        """
        call = partial(self._operations.write, path, content, append=append)
        return await self._done("write", path, call, lambda written: ((written.path,), ()))

    async def delete(self, path: str | os.PathLike[str], *, recursive: bool = False) -> FilesDeleted:
        """Delete a file, a link itself, an empty directory, or with ``recursive`` a directory with all that is in it.

        What was neither read nor made by these operations stays, unless tools make it again, or
        ``Config(files={"read_before_delete": False})``; so do the workspace itself, and ``.git``, ``.env`` and the like.

        Raises:
            InvalidPath, InvalidWorkDir, Closed: it is not there, or nowhere that may be named.
            FileRefused: it stays, and the message says why.
        """
        call = partial(self._operations.delete, path, recursive=recursive)
        return await self._done("delete", path, call, _deleted)

    async def delete_many(self, include: str | Iterable[str], exclude: str | Iterable[str] = ()) -> FilesDeleted:
        """Delete what patterns match, as ``["*.tmp", "cache"]``: each file by itself, by the rules of ``delete``.

        A pattern that matches a directory matches all in it. What comes back says what was deleted, and what not and why.

        Raises:
            InvalidRequest, InvalidWorkDir, Closed: a pattern is none; nothing was deleted.
        """
        call = partial(self._operations.delete_many, include, exclude)
        return await self._done("delete", include, call, _deleted)

    async def _done(
        self,
        operation: Literal["read", "write", "delete"],
        named: object,
        call: Callable[[], _T],
        touched: Callable[[_T], tuple[Iterable[str], Iterable[str]]],
    ) -> _T:
        """Do it, and have the hooks told of the paths that were touched and of why others were not, or why all was refused."""
        try:
            if operation != "read":
                self._life.check_open()
                await self._before()
            found = await self._called(call)
        except (InvalidRequest, Refused) as exc:
            why = f"{clean_text(self._mask(str(named))[:_PATH_CHARS])}: {exc}"
            self._tell(FilesTouched(self._session, operation, (), (why,)))
            raise
        paths, refused = (tuple(map(self._mask, texts)) for texts in touched(found))
        self._tell(FilesTouched(self._session, operation, paths, refused))
        return found

    async def _called(self, call: Callable[[], _T]) -> _T:
        """What a call gives that runs in a thread, one after the other; what it raises quotes no secret."""
        self._life.check_open()
        try:
            return await anyio.to_thread.run_sync(call, limiter=self._turn)
        except (InvalidRequest, Refused) as exc:
            exc.args = tuple(self._mask(str(arg)) for arg in exc.args)
            raise


def _deleted(done: FilesDeleted) -> tuple[Iterable[str], Iterable[str]]:
    return done.deleted, (one.why for one in done.refused)


class Filing(Behind, Secrecy):
    """The part of a session that concerns its files. Whoever derives from it gives it its life and its place."""

    name: str
    life: Life
    workspace: Path
    _config: Config
    _tell: Callable[[Event], None]
    _inside: Callable[[str], str]
    _files: AsyncFiles | None = None

    @property
    def files(self) -> AsyncFiles:
        """What can be done with its files without a cell."""
        with _making:  # callers may be in any thread
            if self._files is None:
                access = Access(file_roots(self._config, self.workspace, self._inside))
                operations = FileOperations(access, self._config.files)
                self._files = AsyncFiles(self.name, self.life, operations, self._tell, self.mask, self._caught_up)
            return self._files
