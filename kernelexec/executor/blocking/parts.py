"""The blocking facades of a session's files and checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from kernelexec.executor.blocking.portal import Portal, make_blocking
from kernelexec.imports import FILES, explain_attribute
from kernelexec.results import Snapshot
from kernelexec.session.features.saved_state.checkpoints import AsyncCheckpoint
from kernelexec.session.features.session_files import AsyncFiles
from kernelexec.workspace.agent_files.tracking import ReadTracker


class Checkpoint:
    """``AsyncCheckpoint`` for blocking callers."""

    def __init__(self, portal: Portal, checkpoint: AsyncCheckpoint) -> None:
        self._portal = portal
        self._target = checkpoint
        self.number = checkpoint.number
        self.name = checkpoint.name
        self.cell = checkpoint.cell
        self.seconds = checkpoint.seconds

    drop = make_blocking(AsyncCheckpoint.drop)

    def __repr__(self) -> str:
        return repr(self._target)


SavedState: TypeAlias = Snapshot | Checkpoint | str | int


class Files:
    """``AsyncFiles`` for blocking callers."""

    if not TYPE_CHECKING:  # type checkers would accept any name
        __getattr__ = explain_attribute(FILES)

    def __init__(self, portal: Portal, files: AsyncFiles) -> None:
        self._portal = portal
        self._target = files
        self.tracker: ReadTracker = files.tracker

    list = make_blocking(AsyncFiles.list)
    read = make_blocking(AsyncFiles.read)
    read_bytes = make_blocking(AsyncFiles.read_bytes)
    write = make_blocking(AsyncFiles.write)
    delete = make_blocking(AsyncFiles.delete)
    edit = make_blocking(AsyncFiles.edit)
    exists = make_blocking(AsyncFiles.exists)
    upload = make_blocking(AsyncFiles.upload, cancels=True)
    download = make_blocking(AsyncFiles.download, cancels=True)
    delete_many = make_blocking(AsyncFiles.delete_many)
