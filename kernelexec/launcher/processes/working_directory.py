"""The directory in which cells and commands run, while programs delete it, replace it or close it to the kernel."""

from __future__ import annotations

import os
import sys
from typing import Any

from ..protocol import DirectoryReport
from .shell_session import kernel_directory


class WorkingDirectory:
    """The kernel's directory at its start, the workspace: cells go on there when the current one cannot be used."""

    def __init__(self) -> None:
        self._workspace: str | None = None
        self._inode: tuple[int, int] | None = None
        self._reported: DirectoryReport | None = None
        if (directory := kernel_directory()) is not None:
            self.move_to(directory)

    def move_to(self, workspace: str) -> None:
        """Take another directory, which is the current one, as the workspace."""
        self._workspace, self._inode = workspace, _read_inode()
        multiprocessing: Any = sys.modules.get("multiprocessing.process")
        if multiprocessing is not None:  # a fork server has imported it elsewhere; its processes import from there
            multiprocessing.ORIGINAL_DIR = workspace

    def check(self) -> DirectoryReport | None:
        """Change to the workspace if the current directory cannot be used; return a report of that if it is new."""
        problem = _find_problem()
        report = None if problem is None else self._go_on(problem)
        is_new, self._reported = report != self._reported, report
        return report if is_new else None

    def _go_on(self, problem: str) -> DirectoryReport:
        report: DirectoryReport = {"problem": problem, "workspace": self._workspace, "is_new": False, "reason": None}
        if self._workspace is None:
            return report
        try:
            os.chdir(self._workspace)
        except OSError as exc:
            return {**report, "reason": exc.strerror}
        problem_there = _find_problem()
        return {**report, "is_new": _read_inode() != self._inode, "reason": problem_there and f"it {problem_there}"}


def _read_inode() -> tuple[int, int] | None:
    try:
        status = os.stat(".")  # noqa: PTH116 - as it is
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _find_problem() -> str | None:
    """Return why the current directory cannot be used; None if it can."""
    try:
        os.getcwd()  # noqa: PTH109 - before each cell
    except OSError:
        return "was deleted"
    return None if os.access(".", os.X_OK) else "cannot be entered"
