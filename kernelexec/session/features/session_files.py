"""File operations of a session without a cell: list, read, write and delete paths of the workspace."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, Literal, TypeVar, cast

import anyio
import anyio.to_thread

from kernelexec.cancellation import CallerCalls, Outcome, await_with_stop
from kernelexec.errors import Closed, InvalidRequest, Refused
from kernelexec.events import FilesTouched
from kernelexec.imports import FILES, explain_attribute
from kernelexec.provisioning import file_roots
from kernelexec.results import FileBytes, FileList, FilesCopied, FilesDeleted, FileText, FileWritten
from kernelexec.session.context import SessionContext
from kernelexec.text import clean_text, escape_line
from kernelexec.workspace import FileOperations, FileTransfers
from kernelexec.workspace.agent_files.access import Access

_T = TypeVar("_T", FileList, FileText, FileBytes, FileWritten, FilesCopied, FilesDeleted)
_R = TypeVar("_R")
_PATH_CHARS = 200
_NOTEBOOK = ".ipynb"
logger = logging.getLogger("kernelexec")


class _Abandoned(Exception):
    """The caller of a copy was cancelled."""


class AsyncFiles:
    """The files of one session. Paths are relative to its workspace, or absolute, as kernels or this process see them.

    Every path is opened at its use, without following links in any part; only plain files are read and written. Operations run
    in sequence, also while a cell runs. Results contain unmasked paths; in events and error messages the names of secrets
    replace their values.

    Raises:
        InvalidConfig: a context path no longer exists.
    """

    if not TYPE_CHECKING:  # type checkers would accept any name
        __getattr__ = explain_attribute(FILES)

    def __init__(self, context: SessionContext) -> None:
        access = Access(file_roots(context.config, context.workspace_path, context.to_kernel_path))
        self._context = context
        self._operations = FileOperations(access, read_before_delete=context.config.read_before_delete)
        self.tracker = self._operations.tracker
        self._access = access
        self._transfers: dict[CallerCalls, str] = {}
        self._limiter, self._transfer_limiter = anyio.CapacityLimiter(1), anyio.CapacityLimiter(1)

    async def list(
        self, path: str | os.PathLike[str] = ".", *, recursive: bool = False, pattern: str | None = None
    ) -> FileList:
        """Return the entries of a directory, with ``recursive`` of all directories below it too; or the entry of a file.

        Directories that tools fill, such as ``.git`` and ``node_modules``, are listed without their content.

        Args:
            path: the directory.
            recursive: whether the entries of its directories are listed too.
            pattern: only matching entries: ``*.py`` at any depth, ``data/**/*.csv`` by the whole path from the directory on.

        Raises:
            InvalidRequest, InvalidPath, InvalidWorkDir, Closed: the path or the pattern is invalid, or the path is missing.
            FileRefused: the path contains a link, or cannot be read.
        """
        return await self._run(partial(self._operations.list, path, recursive=recursive, pattern=pattern), self._limiter)

    async def read(self, path: str | os.PathLike[str], *, offset: int = 0, limit: int | None = None) -> FileText:
        """Return a part of a file as text: whole characters, from the byte ``offset`` on, ``limit`` bytes at most.

        ``next_offset`` of the result is the offset of the next part. The file counts as read; see ``tracker``.

        Raises:
            InvalidRequest, InvalidPath, InvalidWorkDir, Closed: an argument is invalid, or the file is missing.
            FileRefused: the path is a link, not a plain file, a file with a second name, or cannot be read.
        """
        return await self._perform("read", path, partial(self._operations.read, path, offset=offset, limit=limit))

    async def read_bytes(self, path: str | os.PathLike[str], *, offset: int = 0, limit: int | None = None) -> FileBytes:
        """Return a part of a file as bytes: ``limit`` bytes at most, from the byte ``offset`` on. See ``read``."""
        return await self._perform("read", path, partial(self._operations.read_bytes, path, offset=offset, limit=limit))

    async def write(self, path: str | os.PathLike[str], content: str | bytes, *, append: bool = False) -> FileWritten:
        """Write a file atomically: a reader sees the old or the new content. With ``append`` extend the old content.

        Missing directories are created.

        Raises:
            InvalidRequest, InvalidPath, InvalidWorkDir, Closed: an argument is invalid; nothing was written.
            FileRefused: the path is read-only, a link, not a plain file, a file with a second name, or cannot be written.
        """
        return await self._perform("write", path, partial(self._operations.write, path, content, append=append))

    async def edit(self, path: str | os.PathLike[str], old: str, new: str, *, every: bool = False) -> FileWritten:
        """Replace a text in a file, atomically as ``write``. It must be in the file once, or ``every`` occurrence is replaced.

        Raises:
            InvalidRequest, InvalidPath, InvalidWorkDir, Closed: the file lacks the text, or contains the text more than once;
                or as ``write``.
            FileRefused: as ``write``.
        """
        return await self._perform("write", path, partial(self._operations.edit, path, old, new, every=every))

    async def exists(self, path: str | os.PathLike[str]) -> bool:
        """Return whether there is an entry of that path; a link counts as one, whatever it leads to.

        Raises:
            InvalidPath, InvalidWorkDir, Closed: the path is malformed, or outside of the permitted directories.
        """
        return await self._run(partial(self._make_transfers(CallerCalls()).exists, path), self._limiter)

    async def upload(
        self, source: str | os.PathLike[str] | BinaryIO, path: str | os.PathLike[str] | None = None
    ) -> FilesCopied:
        """Copy a file or a directory of this machine into the workspace, in pieces, without a cell.

        Existing files are replaced, each as a whole; missing directories are created, and a directory is merged into an
        existing directory. Links in a directory are not followed: the result lists them as refused. A cancelled caller or a
        closed session stops the copy, also during a blocked ``read``, and the unfinished file is removed.

        Args:
            source: the path of this machine; or a binary file that is open, of which the rest is copied.
            path: the path of the copy, as for ``write``; by default the source's name in the workspace. The copy of a file
                goes into a path that is a directory, and each copy into a path that ends in a slash.

        Raises:
            InvalidRequest: the source cannot be read, or has more than 10,000 entries or 16 GiB.
            InvalidPath, InvalidWorkDir, FileRefused, Closed: as ``write``.
        """
        name = path if path is not None else source if isinstance(source, str | os.PathLike) else "upload"
        call = partial(self._transfer, f"upload of {name}", lambda transfers: transfers.upload(source, path))
        return await self._report("write", name, call)

    async def download(
        self, path: str | os.PathLike[str], target: str | os.PathLike[str] | BinaryIO | None = None
    ) -> FilesCopied:
        """Copy a file or a directory out of the workspace, in pieces, without a cell: the counterpart of ``upload``.

        A copy stops as there, also during a ``write`` that does not return.

        Args:
            path: the path, as for ``read``. In a directory, what ``read`` would refuse is not copied; the result lists it.
            target: the path of the copy on this machine, by default the same name in the current directory; or a binary file
                that is open for writing.

        Raises:
            InvalidRequest: the target cannot be written, or the copy has more than 10,000 entries or 16 GiB.
            InvalidPath, InvalidWorkDir, FileRefused, Closed: as ``read``.
        """
        await self._context.queue.notebook_writer.flush()
        call = partial(self._transfer, f"download of {path}", lambda transfers: transfers.download(path, target))
        return await self._report("read", path, call)

    async def delete(self, path: str | os.PathLike[str], *, recursive: bool = False) -> FilesDeleted:
        """Delete a file, a link, an empty directory, or with ``recursive`` a directory with all its entries.

        Files that these operations neither read nor created are refused, except files that tools create again, and except
        with ``Config(read_before_delete=False)``. The workspace itself, ``.git``, ``.env`` and similar entries are
        always refused.

        Raises:
            InvalidPath, InvalidWorkDir, Closed: the path is missing or outside of the permitted directories.
            FileRefused: the deletion is refused; the message contains the reason.
        """
        return await self._perform("delete", path, partial(self._operations.delete, path, recursive=recursive))

    async def delete_many(self, include: str | Iterable[str], exclude: str | Iterable[str] = ()) -> FilesDeleted:
        """Delete the files that match patterns such as ``["*.tmp", "cache"]``, each by the rules of ``delete``.

        A pattern that matches a directory matches all its entries. The result lists deleted files, and refused files with
        their reasons.

        Raises:
            InvalidRequest, InvalidWorkDir, Closed: a pattern is invalid; nothing was deleted.
        """
        return await self._perform("delete", include, partial(self._operations.delete_many, include, exclude))

    async def _perform(
        self,
        operation: Literal["read", "write", "delete"],
        target: object,
        call: Callable[[], _T],
    ) -> _T:
        if operation == "read" and str(target).endswith(_NOTEBOOK):
            await self._context.queue.notebook_writer.flush()  # a reader expects the cells that have ended
        return await self._report(operation, target, partial(self._run, call, self._limiter))

    async def _report(
        self, operation: Literal["read", "write", "delete"], target: object, call: Callable[[], Awaitable[_T]]
    ) -> _T:
        """Perform an operation, and report paths and refusals to the hooks."""
        context = self._context
        mask = context.masking.mask_text
        try:
            result = await call()
        except (InvalidRequest, Refused) as exc:
            refusal = f"{clean_text(mask(str(target))[:_PATH_CHARS])}: {exc}"
            context.dispatch(FilesTouched(context.name, operation, (), (refusal,)))
            raise
        if isinstance(result, FilesDeleted):
            paths, refused = result.deleted, tuple(refusal.reason for refusal in result.refused)
        elif isinstance(result, FilesCopied):
            paths = result.files if operation == "write" else (os.fsdecode(os.fspath(cast("str", target))),)
            refused = tuple(f"{refusal.path}: {refusal.reason}" for refusal in result.refused)
        else:
            paths, refused = (result.path,), ()
        context.dispatch(FilesTouched(context.name, operation, tuple(map(mask, paths)), tuple(map(mask, refused))))
        return result

    def stop_transfers(self) -> None:
        """End the running copies with the session; their callers get ``Closed``."""
        for calls, name in self._transfers.items():
            logger.warning("kernelexec.copy_abandoned", extra={"session": self._context.name, "copy": name})
            calls.stop(Closed(f"Session {self._context.name!r} was closed during the {name}: nothing of that file was kept."))

    async def _transfer(self, name: str, copy: Callable[[FileTransfers], FilesCopied]) -> FilesCopied:
        """Make a copy in a thread, a single copy at a time. A cancelled caller or the session's end stops the copy soon."""
        context = self._context
        context.scope.check_open()
        async with self._transfer_limiter, context.scope.hold_open():
            with CallerCalls() as calls:
                self._transfers[calls] = clean_text(context.masking.mask_text(name)[:_PATH_CHARS])
                call = partial(self._call_masked, partial(copy, self._make_transfers(calls)))
                try:
                    running = anyio.to_thread.run_sync(Outcome.of, call, limiter=anyio.CapacityLimiter(1))
                    outcome = await await_with_stop(running, partial(calls.stop, _Abandoned()))
                finally:
                    del self._transfers[calls]
                return outcome.get()

    def _make_transfers(self, calls: CallerCalls) -> FileTransfers:
        return FileTransfers(self._access, self.tracker, calls)

    async def _run(self, call: Callable[[], _R], limiter: anyio.CapacityLimiter) -> _R:
        """Return the result of a call in a thread, a single call of a limiter at a time; mask the call's errors."""
        self._context.scope.check_open()
        return await anyio.to_thread.run_sync(self._call_masked, call, limiter=limiter)

    def _call_masked(self, call: Callable[[], _R]) -> _R:
        """Make a call; mask its errors, and keep each on a single line, whatever the names of files are."""
        # a cell can name a file with line breaks and terminal controls, and so forge lines of a log or of a model's input
        try:
            return call()
        except (InvalidRequest, Refused) as exc:
            exc.args = tuple(escape_line(self._context.masking.mask_text(str(arg))) for arg in exc.args)
            raise
