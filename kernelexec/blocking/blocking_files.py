"""The blocking file operations of a session: they have no logic of their own."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial

from kernelexec.blocking.portal import Portal
from kernelexec.config import FileBounds
from kernelexec.results import FileBytes, FileList, FilesDeleted, FileText, FileWritten
from kernelexec.session import AsyncFiles
from kernelexec.workspace import ReadTracker


class Files:
    """``AsyncFiles`` for blocking callers."""

    def __init__(self, portal: Portal, files: AsyncFiles) -> None:
        self._portal = portal
        self._files = files
        self.tracker: ReadTracker = files.tracker
        self.bounds: FileBounds = files.bounds

    def list(self, path: str | os.PathLike[str] = ".", *, recursive: bool = False, pattern: str | None = None) -> FileList:
        """See ``AsyncFiles.list``."""
        return self._portal.call(partial(self._files.list, path, recursive=recursive, pattern=pattern))

    def read(self, path: str | os.PathLike[str], *, offset: int = 0, limit: int | None = None) -> FileText:
        """See ``AsyncFiles.read``."""
        return self._portal.call(partial(self._files.read, path, offset=offset, limit=limit))

    def read_bytes(self, path: str | os.PathLike[str], *, offset: int = 0, limit: int | None = None) -> FileBytes:
        """See ``AsyncFiles.read_bytes``."""
        return self._portal.call(partial(self._files.read_bytes, path, offset=offset, limit=limit))

    def write(self, path: str | os.PathLike[str], content: str | bytes, *, append: bool = False) -> FileWritten:
        """See ``AsyncFiles.write``."""
        return self._portal.call(partial(self._files.write, path, content, append=append))

    def delete(self, path: str | os.PathLike[str], *, recursive: bool = False) -> FilesDeleted:
        """See ``AsyncFiles.delete``."""
        return self._portal.call(partial(self._files.delete, path, recursive=recursive))

    def delete_many(self, include: str | Iterable[str], exclude: str | Iterable[str] = ()) -> FilesDeleted:
        """See ``AsyncFiles.delete_many``."""
        return self._portal.call(partial(self._files.delete_many, include, exclude))
