"""The directories that are others for a branch of a kernel: its workspace, and the one for temporary files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ..processes.shell_session import ShellSession
from ..processes.working_directory import WorkingDirectory

#: Variables of the environment with a directory in which programs work.
_VARIABLES = ("PWD", "OLDPWD", "TMPDIR")


class MovedDirectories:
    """Pairs of a directory and the one in its place, the workspaces first."""

    def __init__(self, moves: Sequence[Sequence[str]]) -> None:
        self._moves = [(str(old), str(new)) for old, new in moves]

    def translate(self, path: str) -> str:
        """Return the path in the new place of the first directory that contains it; other paths stay."""
        for old, new in self._moves:
            if path == old or path.startswith(f"{old}/"):
                return new + path[len(old) :]
        return path

    def follow(self, directory: WorkingDirectory, shell: ShellSession) -> None:
        """Go on there: in the same directory, or in the workspace if that has no such one.

        Paths in variables of user code stay, and so does the home directory with the files that belong to the user.
        """
        if not self._moves:
            return
        present = None
        with suppress(OSError):
            present = self.translate(os.getcwd())  # noqa: PTH109 - text in, text out
        with suppress(OSError):
            os.chdir(self._moves[0][1])
            directory.move_to(self._moves[0][1])
        with suppress(OSError):
            os.chdir(present or ".")
        shell.move(self.translate)
        for name in _VARIABLES:
            if name in os.environ:
                os.environ[name] = self.translate(os.environ[name])
        module: Any = tempfile
        module.tempdir = None


NO_MOVES = MovedDirectories(())
