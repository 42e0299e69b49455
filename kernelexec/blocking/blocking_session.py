"""The blocking session: it has no logic of its own."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from kernelexec.blocking.blocking_files import Files
from kernelexec.blocking.portal import Portal
from kernelexec.policy.decisions import Approver
from kernelexec.provisioning.launch.one_shot_task import Network
from kernelexec.results import (
    Attempts,
    BackgroundCommand,
    BackgroundOutput,
    CodeStatus,
    Completion,
    ExecutionResult,
    Installation,
    LimitsSet,
    OnInput,
    OutputPage,
    Progress,
    PythonEnvironment,
    Replay,
    Restored,
    Snapshot,
    Statistics,
    Stats,
    TestReport,
    Variables,
)
from kernelexec.results.variables import VARIABLES_MAX
from kernelexec.session import AsyncSession
from kernelexec.session.cells.cell_run import OnOutput
from kernelexec.session.features.executions import PAGE_BYTES
from kernelexec.session.features.inspection import INSPECTION_SECONDS
from kernelexec.session.features.retry import RETRIES, Between, Fix
from kernelexec.session.features.run_tests import CASE_SECONDS


class Session:
    """``AsyncSession`` for blocking callers; ``on_output`` is called in the executor's thread."""

    def __init__(self, portal: Portal, session: AsyncSession) -> None:
        self._portal = portal
        self._session = session
        self.name = session.name
        self.workspace: Path = session.workspace
        self.workspace_inside = session.workspace_inside
        """The workspace as its kernels see it."""
        self.notebook: Path | None = session.notebook
        self.journal: Path | None = session.journal

    @property
    def kernel_epoch(self) -> int:
        """See ``AsyncSession.kernel_epoch``."""
        return self._session.kernel_epoch

    @property
    def busy(self) -> bool:
        """See ``AsyncSession.busy``."""
        return self._session.busy

    @property
    def names(self) -> tuple[str, ...]:
        """See ``AsyncSession.names``."""
        return self._session.names

    @property
    def statistics(self) -> Statistics:
        """See ``AsyncSession.statistics``."""
        return self._session.statistics

    @property
    def replay(self) -> Replay | None:
        """See ``AsyncSession.replay``."""
        return self._session.replay

    @property
    def files(self) -> Files:
        """See ``AsyncSession.files``."""
        return Files(self._portal, self._session.files)

    def execute(
        self,
        code: str,
        *,
        language: str = "python",
        stdin: str | None = None,
        timeout: float | None = None,
        wait: float | None = None,
        request_id: str | None = None,
        on_output: OnOutput | None = None,
        approver: Approver | None = None,
        on_input: OnInput | None = None,
    ) -> ExecutionResult:
        """See ``AsyncSession.execute``."""
        call = partial(self._session.execute, code, language=language, stdin=stdin, timeout=timeout, on_input=on_input)
        return self._portal.call(partial(call, wait=wait, request_id=request_id, on_output=on_output, approver=approver))

    def execute_command(
        self,
        command: str,
        *,
        timeout: float | None = None,
        work_dir: str | os.PathLike[str] | None = None,
        stdin: str | None = None,
        wait: float | None = None,
        request_id: str | None = None,
        on_output: OnOutput | None = None,
        approver: Approver | None = None,
    ) -> ExecutionResult:
        """See ``AsyncSession.execute_command``."""
        call = partial(self._session.execute_command, command, timeout=timeout, work_dir=work_dir, stdin=stdin)
        return self._portal.call(partial(call, wait=wait, request_id=request_id, on_output=on_output, approver=approver))

    def start_background(
        self, command: str, *, work_dir: str | None = None, approver: Approver | None = None
    ) -> BackgroundCommand:
        """See ``AsyncSession.start_background``."""
        return self._portal.call(partial(self._session.start_background, command, work_dir=work_dir, approver=approver))

    def background_commands(self) -> tuple[BackgroundCommand, ...]:
        """See ``AsyncSession.background_commands``."""
        return self._portal.call(self._session.background_commands)

    def background(self, command_id: str) -> BackgroundCommand:
        """See ``AsyncSession.background``."""
        return self._portal.call(partial(self._session.background, command_id))

    def background_output(self, command_id: str, *, lines: int = 1000) -> BackgroundOutput:
        """See ``AsyncSession.background_output``."""
        return self._portal.call(partial(self._session.background_output, command_id, lines=lines))

    def kill_background(self, command_id: str) -> BackgroundCommand:
        """See ``AsyncSession.kill_background``."""
        return self._portal.call(partial(self._session.kill_background, command_id))

    def executions(self) -> tuple[str, ...]:
        """See ``AsyncSession.executions``."""
        return self._session.executions()

    def wait_for(self, execution_id: str, *, cursor: int = 0, wait: float | None = None) -> Progress:
        """See ``AsyncSession.wait_for``."""
        return self._portal.call(partial(self._session.wait_for, execution_id, cursor=cursor, wait=wait))

    def read_output(
        self, execution_id: str, *, offset: int = 0, limit: int = PAGE_BYTES, grep: str | None = None
    ) -> OutputPage:
        """See ``AsyncSession.read_output``."""
        return self._portal.call(partial(self._session.read_output, execution_id, offset=offset, limit=limit, grep=grep))

    def save_notebook(self) -> None:
        """See ``AsyncSession.save_notebook``."""
        self._portal.call(self._session.save_notebook)

    def interrupt(self, execution_id: str | None = None) -> ExecutionResult | None:
        """See ``AsyncSession.interrupt``."""
        return self._portal.call(partial(self._session.interrupt, execution_id))

    @property
    def connection_file(self) -> Path | None:
        """See ``AsyncSession.connection_file``."""
        return self._session.connection_file

    def variables(
        self, *, names: Iterable[str] | None = None, limit: int = VARIABLES_MAX, wait: float = INSPECTION_SECONDS
    ) -> Variables:
        """See ``AsyncSession.variables``."""
        return self._portal.call(partial(self._session.variables, names=names, limit=limit, wait=wait))

    def environment(self, *, wait: float = INSPECTION_SECONDS) -> PythonEnvironment:
        """See ``AsyncSession.environment``."""
        return self._portal.call(partial(self._session.environment, wait=wait))

    def complete(self, code: str, cursor: int | None = None, *, wait: float = INSPECTION_SECONDS) -> Completion:
        """See ``AsyncSession.complete``."""
        return self._portal.call(partial(self._session.complete, code, cursor, wait=wait))

    def inspect(self, code: str, cursor: int | None = None, *, detail: int = 0, wait: float = INSPECTION_SECONDS) -> str | None:
        """See ``AsyncSession.inspect``."""
        return self._portal.call(partial(self._session.inspect, code, cursor, detail=detail, wait=wait))

    def is_complete(self, code: str, *, wait: float = INSPECTION_SECONDS) -> tuple[CodeStatus, str]:
        """See ``AsyncSession.is_complete``."""
        return self._portal.call(partial(self._session.is_complete, code, wait=wait))

    def snapshot(self, names: Iterable[str] | None = None, *, timeout: float | None = None) -> Snapshot:
        """See ``AsyncSession.snapshot``."""
        return self._portal.call(partial(self._session.snapshot, names, timeout=timeout))

    def restore(self, snapshot: Snapshot, *, names: Iterable[str] | None = None, timeout: float | None = None) -> Restored:
        """See ``AsyncSession.restore``."""
        return self._portal.call(partial(self._session.restore, snapshot, names=names, timeout=timeout))

    def execute_with_retry(
        self,
        code: str,
        fix: Fix | None = None,
        *,
        max_retries: int = RETRIES,
        between: Between = "keep",
        language: str = "python",
        timeout: float | None = None,
        on_output: OnOutput | None = None,
        approver: Approver | None = None,
    ) -> Attempts:
        """See ``AsyncSession.execute_with_retry``."""
        call = partial(self._session.execute_with_retry, code, fix, max_retries=max_retries, between=between, language=language)
        return self._portal.call(partial(call, timeout=timeout, on_output=on_output, approver=approver))

    def run_tests(
        self, code: str, cases: Iterable[str], *, timeout: float = CASE_SECONDS, approver: Approver | None = None
    ) -> TestReport:
        """See ``AsyncSession.run_tests``."""
        return self._portal.call(partial(self._session.run_tests, code, cases, timeout=timeout, approver=approver))

    def install(
        self,
        packages: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        wheels: str | os.PathLike[str] | None = None,
        network: Network | None = None,
        timeout: float | None = None,
    ) -> Installation:
        """See ``AsyncSession.install``."""
        call = partial(self._session.install, packages, wheels=wheels, network=network, timeout=timeout)
        return self._portal.call(call)

    def rebuild(
        self,
        lock: str | os.PathLike[str] | None = None,
        *,
        wheels: str | os.PathLike[str] | None = None,
        network: Network | None = None,
        timeout: float | None = None,
    ) -> Installation:
        """See ``AsyncSession.rebuild``."""
        call = partial(self._session.rebuild, lock, wheels=wheels, network=network, timeout=timeout)
        return self._portal.call(call)

    def guidance(self, *, requirements: bool = False) -> str:
        """See ``AsyncSession.guidance``."""
        return self._portal.call(partial(self._session.guidance, requirements=requirements))

    def debugging(self, execution_id: str | None = None) -> str:
        """See ``AsyncSession.debugging``."""
        return self._portal.call(partial(self._session.debugging, execution_id))

    def mask(self, text: str) -> str:
        """See ``AsyncSession.mask``."""
        return self._session.mask(text)

    def stats(self) -> Stats:
        """See ``AsyncSession.stats``."""
        return self._portal.call(self._session.stats)

    def set_limits(
        self,
        profile: str | None = None,
        *,
        memory_bytes: int | None = None,
        cpus: float | None = None,
        timeout: float | None = None,
    ) -> LimitsSet:
        """See ``AsyncSession.set_limits``."""
        call = partial(self._session.set_limits, profile, memory_bytes=memory_bytes, cpus=cpus, timeout=timeout)
        return self._portal.call(call)

    def restart(self, *, language: str | None = None, fresh_venv: bool = False) -> None:
        """See ``AsyncSession.restart``."""
        self._portal.call(partial(self._session.restart, language=language, fresh_venv=fresh_venv))

    def close(self) -> None:
        """See ``AsyncSession.close``."""
        self._portal.call(self._session.close)
