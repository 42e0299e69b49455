"""A session's directory: where its code runs, what it changed there, and where its displays are saved."""

from __future__ import annotations

from kernelexec.workspace.changes import Watch
from kernelexec.workspace.directory import Workspace
from kernelexec.workspace.displays import DisplayFiles
from kernelexec.workspace.spill import SpillFile

__all__ = ["DisplayFiles", "SpillFile", "Watch", "Workspace"]
