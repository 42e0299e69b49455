"""The directory of a session: files, changes by cells, saved displays, and an agent's operations on files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelexec.imports import make_getattr

if TYPE_CHECKING:
    from kernelexec.workspace.agent_files.operations import FileOperations as FileOperations
    from kernelexec.workspace.agent_files.tracking import ReadTracker as ReadTracker
    from kernelexec.workspace.agent_files.transfers import FileTransfers as FileTransfers
    from kernelexec.workspace.cell_files import DisplayFiles as DisplayFiles
    from kernelexec.workspace.cell_files import FileChanges as FileChanges
    from kernelexec.workspace.directory import Workspace as Workspace
    from kernelexec.workspace.file_watch import FileWatcher as FileWatcher
    from kernelexec.workspace.spill import SpillFile as SpillFile

_MODULES = {
    "DisplayFiles": "cell_files",
    "FileChanges": "cell_files",
    "FileOperations": "agent_files.operations",
    "FileTransfers": "agent_files.transfers",
    "FileWatcher": "file_watch",
    "ReadTracker": "agent_files.tracking",
    "SpillFile": "spill",
    "Workspace": "directory",
}
__all__ = sorted(_MODULES)  # noqa: PLE0605 - the names of the table

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__ = make_getattr(__name__, _MODULES)
