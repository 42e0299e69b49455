"""A session's directory: its files, the changes of cells in it, saved displays, and an agent's operations on files."""

from __future__ import annotations

from kernelexec.workspace.agent_files.operations import FileOperations
from kernelexec.workspace.agent_files.tracking import ReadTracker
from kernelexec.workspace.directory import Workspace
from kernelexec.workspace.displays import DisplayFiles
from kernelexec.workspace.file_changes import FileChanges
from kernelexec.workspace.file_watch import FileWatcher
from kernelexec.workspace.spill import SpillFile

__all__ = ["DisplayFiles", "FileChanges", "FileOperations", "FileWatcher", "ReadTracker", "SpillFile", "Workspace"]
