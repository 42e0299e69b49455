"""The files of checkpoints: copies of the workspace, put back when the session goes back with files."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kernelexec.errors import InvalidRequest
from kernelexec.provisioning import platform
from kernelexec.session.context import SessionContext
from kernelexec.session.kernels.starts import explain_failure
from kernelexec.workspace.directory import OURS
from kernelexec.workspace.rmtree import names_in, remove_within
from kernelexec.workspace.safe_files import open_directory_chain, open_top
from kernelexec.workspace.workspace_copies import (
    CopiedFiles,
    CopyDirectory,
    copy_workspace,
    make_copy_directory,
    put_back,
)

_COPIES = Path(OURS, "checkpoints")


@dataclass(frozen=True, slots=True)
class FilesCopy:
    """A copy of the workspace's files. A lock on the open descriptor of the directory marks the copy as used."""

    directory: CopyDirectory
    files: CopiedFiles
    notebooks: frozenset[str]
    """The notebooks written at that time. They are not in the copy."""


class CheckpointFiles:
    """The copies for the checkpoints of a session.

    Copies are in the workspace, where the file system may share blocks with the originals. A later owner of the session knows
    no copies; the next copy in the same workspace removes the copies of dead owners.
    """

    def __init__(self, context: SessionContext, list_notebooks: Callable[[], frozenset[str]]) -> None:
        self._context = context
        self._list_notebooks = list_notebooks
        self._lock = threading.Lock()
        self._copies: dict[tuple[Path, tuple[int, int] | None], FilesCopy] = {}
        """By the sockets of their checkpoints, with a mark against later sockets of the same name; under the lock."""

    async def copy(self) -> FilesCopy:
        """Copy the files, in the session's turn.

        Raises:
            InvalidRequest: the copy cannot be written.
        """
        await self._context.queue.notebook_writer.flush()
        try:
            return await self._context.read_in_thread(self._copy, self._list_notebooks())
        except OSError as exc:
            raise InvalidRequest(explain_failure("The files cannot be copied", exc)) from exc

    def keep(self, checkpoint: Path, copy: FilesCopy) -> None:
        """Keep a copy for the checkpoint with this socket, and remove the copies of missing checkpoints. For a thread."""
        with self._lock:
            self._copies[checkpoint, _mark(checkpoint)] = copy
        self.remove_unused()

    def remove_unused(self) -> None:
        """Remove the copies of missing checkpoints. For a thread."""
        with self._lock:
            unused = [(path, mark) for path, mark in self._copies if mark is None or _mark(path) != mark]
            copies = [self._copies.pop(key) for key in unused]
        # outside of the lock: a removal walks a whole tree
        for copy in copies:
            copy.directory.remove()

    def find(self, checkpoint: Path) -> FilesCopy | None:
        """Return the copy for the checkpoint with this socket, if any."""
        return self._copies.get((checkpoint, _mark(checkpoint)))

    async def put_back(self, copy: FilesCopy) -> CopiedFiles:
        """Make the files those of a copy again; return the changes."""
        stay = copy.notebooks | self._list_notebooks()
        call = partial(put_back, copy.directory.fd, self._context.workspace.path, copy.files, ignore=stay)
        return await self._context.read_in_thread(call)

    def remove_all(self) -> None:
        """Remove all copies, at the session's end. For a thread."""
        with self._lock:
            copies, self._copies = self._copies, {}
        for copy in copies.values():
            copy.directory.remove()
        with suppress(OSError), ExitStack() as opened:
            above = open_directory_chain(open_top(self._context.workspace.path), _COPIES.parent, opened)
            os.rmdir(_COPIES.name, dir_fd=above)

    def _copy(self, notebooks: frozenset[str]) -> FilesCopy:
        self._remove_left()
        workspace, name = self._context.workspace.path, self._context.name
        return FilesCopy(*make_copy(self._context, workspace, _COPIES / name, ignore=notebooks), notebooks)

    def _remove_left(self) -> None:
        """Remove the copies of dead owners. Their locks are free."""
        workspace = self._context.workspace.path
        with suppress(OSError), ExitStack() as opened:
            above = open_directory_chain(open_top(workspace), _COPIES, opened)
            for name in names_in(above):
                with suppress(OSError), ExitStack() as tried:
                    platform.lock(open_directory_chain(os.dup(above), Path(name), tried))
                    remove_within(workspace, _COPIES / name)


def make_copy(
    context: SessionContext, within: Path, directory: Path, *, ignore: frozenset[str]
) -> tuple[CopyDirectory, CopiedFiles]:
    """Copy a session's workspace, without some paths, into a new directory of a workspace. For a thread.

    Errors are those of ``copy_workspace``.
    """
    copy = make_copy_directory(within, directory.parent, directory.name)
    with ExitStack() as opened:
        opened.callback(copy.remove)
        with suppress(OSError):  # a file system without locks keeps what a killed owner leaves
            platform.lock(copy.fd, shared=True)
        files = copy_workspace(context.workspace.path, copy.fd, ignore=ignore)
        opened.pop_all()
    return copy, files


def _mark(socket: Path) -> tuple[int, int] | None:
    """Return a mark to tell a checkpoint's socket from a later socket of the same name; None without a socket."""
    # the inode alone is not enough: file systems reuse the number of a deleted file at once
    with suppress(OSError):
        status = socket.lstat()
        return status.st_ino, status.st_ctime_ns
    return None
