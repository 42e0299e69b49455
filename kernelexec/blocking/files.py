"""The blocking facade of a session's files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelexec.blocking.methods import make_blocking
from kernelexec.blocking.portal import Portal
from kernelexec.config import FileBounds
from kernelexec.imports import explain_attribute
from kernelexec.imports.other_names import FILES
from kernelexec.session.features.session_files import AsyncFiles
from kernelexec.workspace.agent_files.tracking import ReadTracker


class Files:
    """``AsyncFiles`` for blocking callers."""

    if not TYPE_CHECKING:  # type checkers would accept any name
        __getattr__ = explain_attribute(FILES)

    def __init__(self, portal: Portal, files: AsyncFiles) -> None:
        self._portal = portal
        self._target = files
        self.tracker: ReadTracker = files.tracker
        self.bounds: FileBounds = files.bounds

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
