"""The shared state of one session's parts: its name, its configuration, its task scope, its queue and its kernels."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from kernelexec.cells import CodeCell
from kernelexec.config import Config, seconds
from kernelexec.errors import KernelError
from kernelexec.events import Event
from kernelexec.results import ExecutionResult
from kernelexec.session.cells.approval import Permission
from kernelexec.session.cells.cell_run import Turn
from kernelexec.session.cells.masking import ResultMasking
from kernelexec.session.cells.queue import Queue
from kernelexec.session.kernels.languages import Kernels
from kernelexec.session.lifecycle import Life
from kernelexec.workspace import Workspace


@dataclass(slots=True)
class SessionSettings:
    """The configuration in force: ``set_limits`` replaces it while the session lives."""

    config: Config


@dataclass(frozen=True, slots=True)
class SessionContext:
    """The state that the parts of one session share, and the calls that several of them need."""

    name: str
    isolation: str
    directory: Workspace
    """The workspace; ``workspace`` is its path on this machine."""
    runtime: Path
    """The session's private directory."""
    settings: SessionSettings
    scope: Life
    queue: Queue
    kernels: Kernels
    approval: Permission
    masking: ResultMasking
    dispatch: Callable[[Event], None]
    """Passes an event to all hooks."""

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self.settings.config

    @property
    def workspace(self) -> Path:
        """The workspace's path on this machine."""
        return self.directory.path

    def inside(self, path: str | Path) -> str:
        """Return a path of this machine as kernels see it."""
        return self.kernels.place.inside(str(path))

    def command_directory(self, work_dir: str | os.PathLike[str] | None) -> str | None:
        """Return the working directory of a command as kernels see it; None stands for the session's current one.

        Raises:
            InvalidWorkDir: the directory is missing, is none, or is outside of the workspace.
        """
        if work_dir is None:
            return None
        return self.inside(self.directory.directory(self.kernels.place.outside(work_dir)))

    async def call_launcher(self, source: str, timeout: float | None) -> dict[str, Any]:
        """Run a call of the launcher's in the session's turn, and return its answer, of which nothing is checked.

        Raises:
            InvalidTimeout, QueueFull, Closed: nothing ran.
            ExecutionFailed: the call failed, or was ended before it was done.
            KernelError: the launcher did not answer.
        """
        self.scope.check_open()
        budget = self.config.budgets.timeout if timeout is None else seconds(timeout, "timeout")
        turn = Turn(CodeCell(source), timeout=budget, own=True, isolation=self.isolation)
        self.queue.add(turn)
        try:
            result: ExecutionResult = await self.queue.outcome(turn, None)
        except anyio.get_cancelled_exc_class():
            turn.ask_interrupt()  # the call has no id by which a caller could take it up again
            raise
        answer = turn.said().get("answer")
        if not isinstance(answer, dict):
            result.raise_for_error()
            raise KernelError("The kernel did not say how its launcher's call ended: it may not be the one that was started.")
        return answer
