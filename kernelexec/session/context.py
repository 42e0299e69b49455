"""The shared state of one session's parts: its name, its configuration, its task scope, its queue and its kernels."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from kernelexec.cells import CodeCell
from kernelexec.config import Config, check_seconds
from kernelexec.errors import KernelError
from kernelexec.events import Event
from kernelexec.results import ExecutionResult
from kernelexec.session.cells.approval import CellApproval
from kernelexec.session.cells.cell_run import CellRun
from kernelexec.session.cells.masking import ResultMasking
from kernelexec.session.cells.queue import CellQueue
from kernelexec.session.kernels.languages import LanguageKernels
from kernelexec.session.lifecycle import TaskScope
from kernelexec.workspace import Workspace


@dataclass(slots=True)
class SessionSettings:
    """The current configuration of a session, which ``set_limits`` replaces."""

    config: Config


@dataclass(frozen=True, slots=True)
class SessionContext:
    """The state that the parts of one session share, and the operations that several parts need."""

    name: str
    isolation: str
    workspace: Workspace
    """The workspace; ``workspace`` is its path on this machine."""
    runtime_dir: Path
    """The session's private directory."""
    settings: SessionSettings
    scope: TaskScope
    queue: CellQueue
    kernels: LanguageKernels
    approval: CellApproval
    masking: ResultMasking
    dispatch: Callable[[Event], None]
    """Passes an event to all hooks."""

    @property
    def config(self) -> Config:
        """The current configuration."""
        return self.settings.config

    @property
    def workspace_path(self) -> Path:
        """The workspace's path on this machine."""
        return self.workspace.path

    def to_kernel_path(self, path: str | Path) -> str:
        """Return a path of this machine as kernels see it."""
        return self.kernels.backend.to_kernel_path(str(path))

    def resolve_work_dir(self, work_dir: str | os.PathLike[str] | None) -> str | None:
        """Return the working directory of a command as kernels see it; None stands for the session's current directory.

        Raises:
            InvalidWorkDir: the path is missing, is not a directory, or is outside of the workspace.
        """
        if work_dir is None:
            return None
        return self.to_kernel_path(self.workspace.directory(self.kernels.backend.to_host_path(work_dir)))

    async def call_launcher(self, source: str, timeout: float | None) -> dict[str, Any]:
        """Run a function of the launcher as an internal cell, and return its answer, which is not validated.

        Raises:
            InvalidTimeout, QueueFull, Closed: nothing ran.
            ExecutionFailed: the call failed, or was ended before it finished.
            KernelError: the launcher did not answer.
        """
        self.scope.check_open()
        budget = self.config.budgets.timeout if timeout is None else check_seconds(timeout, "timeout")
        run = CellRun(CodeCell(source), timeout=budget, internal=True, isolation=self.isolation)
        self.queue.add(run)
        try:
            result: ExecutionResult = await self.queue.wait_for_result(run, None)
        except anyio.get_cancelled_exc_class():
            run.request_interrupt()  # the caller has no id to wait for this call again
            raise
        answer = run.get_launcher_report().get("answer")
        if not isinstance(answer, dict):
            result.raise_for_error()
            raise KernelError(
                "The kernel did not report the result of the launcher's call: another program may have replaced the launcher."
            )
        return answer
