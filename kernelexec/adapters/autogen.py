"""A stateful code executor for AutoGen: a component of autogen-core 0.7, for ``CodeExecutorAgent`` and code tools."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import tempfile
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

from pydantic import BaseModel, ConfigDict

from kernelexec.adapters.shared.blocks import BlockRunner, BlocksResult, merge_policies
from kernelexec.adapters.shared.conventions import (
    PYTHON_KERNEL,
    Conventions,
    FrameworkExecutor,
    Functions,
    is_current_directory,
    optional_path,
    warn_about_restart,
)
from kernelexec.adapters.shared.markdown import MarkdownBlock
from kernelexec.executor.executor import AsyncExecutor
from kernelexec.rules.policy.decisions import Approver, Validator
from kernelexec.session import AsyncSession
from kernelexec.session.cells.queue import interrupting_cells

try:
    from autogen_core import CancellationToken, Component
    from autogen_core.code_executor import CodeBlock, CodeResult
    from autogen_core.code_executor import CodeExecutor as BaseExecutor
except ImportError as exc:
    raise ImportError("kernelexec.adapters.autogen needs autogen-core: pip install 'kernelexec[autogen]'.") from exc

#: The settings that are options of the executor itself.
_EXECUTOR_OPTIONS = {"isolation", "use_docker", "workspace", "code_execution_config"}
#: The exit code of a cancelled call.
_CANCELLED = 125


@dataclass
class AutogenCodeResult(CodeResult):
    """AutoGen's ``exit_code`` and ``output``, with the paths of displays and of created files."""

    output_files: list[Path] = field(default_factory=list)
    code_file: str | None = None
    """The file in which the code of the first block was saved, if it was."""


class AutogenExecutorConfig(BaseModel):
    """The settings in the output of ``dump_component``: all except functions, validators and approvers, which are objects."""

    model_config = ConfigDict(extra="forbid")

    isolation: str | None = None
    use_docker: bool | str | list[str] | None = None
    workspace: str | None = None
    config: dict[str, Any] | None = None
    code_execution_config: dict[str, Any] | None = None
    execution_policies: dict[str, bool] | None = None
    timeout: float | None = None
    work_dir: str | None = None
    output_dir: str | None = None
    kernel_name: str = PYTHON_KERNEL
    functions_module: str = "functions"
    cleanup_temp_files: bool = False


class AutogenCodeExecutor(FrameworkExecutor, BaseExecutor, Component[AutogenExecutorConfig]):
    """An executor of code blocks in a single persistent session. Use ``async with``, or ``start()`` and ``stop()``.

    Args:
        isolation, use_docker, workspace, config, code_execution_config, validators, approver: see ``AsyncExecutor``. Settings
            must be plain values, because ``dump_component`` serializes them.
        functions: functions for cells to import: callables, results of ``with_requirements``, or source texts.
        functions_module: the name of the module with these functions.
        execution_policies: for each language, whether blocks run (True) or are only saved; html and css are saved by default.
        timeout: the time limit of a block, in seconds; the configuration's by default.
        work_dir: the directory to work in, created if missing. Without ``work_dir`` and ``workspace`` the executor works in a
            temporary directory, which ``stop`` removes. With ``work_dir`` the executor behaves like AutoGen's command line
            executors: each block is saved there as a file, which ``cleanup_temp_files`` deletes after the run; the first block
            opens the session; and a cancelled call returns the exit code 125.
        output_dir: the directory for images and HTML, created if missing. Results are then as in AutoGen's Jupyter executor:
            the text has all outputs, displays are files in the directory, and a timeout raises ``TimeoutError``.
        kernel_name: the kernelspec whose kernel runs Python blocks.
        virtual_env_context: a virtual environment for cells, as returned by ``venv.EnvBuilder.ensure_directories``; not
            serialized.

    Raises:
        ValueError: an argument is invalid, or the kernel is not installed.
        FileNotFoundError: the parent directory of ``work_dir`` does not exist.
        InvalidConfig: a setting is invalid.
        IsolationUnavailable: containers are chosen, as by default, and no engine is available.
    """

    component_config_schema = AutogenExecutorConfig
    component_provider_override = "kernelexec.adapters.autogen.AutogenCodeExecutor"

    def __init__(
        self,
        isolation: str | None = None,
        *,
        use_docker: bool | str | list[str] | None = None,
        workspace: str | Path | None = None,
        config: dict[str, Any] | None = None,
        code_execution_config: dict[str, Any] | None = None,
        validators: Sequence[Validator] = (),
        approver: Approver | None = None,
        functions: Iterable[Any] = (),
        functions_module: str = "functions",
        execution_policies: Mapping[str, bool] | None = None,
        timeout: float | None = None,
        work_dir: str | Path | None = None,
        output_dir: str | Path | None = None,
        kernel_name: str = PYTHON_KERNEL,
        cleanup_temp_files: bool = False,
        virtual_env_context: SimpleNamespace | None = None,
    ) -> None:
        self._functions = Functions.from_callables(functions, module=functions_module)
        self._settings = AutogenExecutorConfig(
            isolation=isolation,
            use_docker=use_docker,
            workspace=None if workspace is None else str(workspace),
            config=config,
            code_execution_config=code_execution_config,
            execution_policies=None if execution_policies is None else dict(execution_policies),
            timeout=timeout,
            work_dir=None if work_dir is None else str(work_dir),
            output_dir=None if output_dir is None else str(output_dir),
            kernel_name=kernel_name,
            functions_module=functions_module,
            cleanup_temp_files=cleanup_temp_files,
        )
        self._conventions = Conventions(
            timeout, optional_path(work_dir), optional_path(output_dir), kernel_name, virtual_env_context, cleanup_temp_files
        )
        if work_dir is not None and is_current_directory(work_dir):
            warnings.warn("Using the current directory as work_dir is deprecated.", DeprecationWarning, stacklevel=2)
        options = self._settings.model_dump(include=_EXECUTOR_OPTIONS)
        options["config"] = self._conventions.configure(config)
        self._temporary: Path | None = None
        """The directory of the session, which is removed when the executor stops."""
        if workspace is None and not _has_directory(options["config"]) and not _has_directory(code_execution_config):
            self._temporary = Path(tempfile.gettempdir()) / f"kernelexec-{secrets.token_hex(8)}"
            options["config"] = {"notebook": False, "journal": False, **options["config"], "work_dir": self._temporary}
        self._executor = AsyncExecutor(**options, validators=validators, approver=approver)
        self._conventions.check_kernel(self._executor.config.isolation)
        self._session: AsyncSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._blocks: BlockRunner | None = None
        self._opening, self._opened = asyncio.Lock(), AsyncExitStack()

    async def start(self) -> None:
        """Open the session. A second call does nothing."""
        async with self._opening:
            if self._session is not None:
                return
            async with AsyncExitStack() as opened:
                session = await (await opened.enter_async_context(self._executor)).session()
                self._opened = opened.pop_all()
            policies = merge_policies(self._settings.execution_policies)
            self._blocks = BlockRunner(session.workspace, self._functions, policies, self._conventions)
            self._session, self._loop = session, asyncio.get_running_loop()

    async def stop(self) -> None:
        """Close the executor with the session. A second call does nothing."""
        async with self._opening:
            if self._session is not None:
                self._session, self._blocks = None, None
                await self._opened.aclose()
            if self._temporary is not None:
                await asyncio.to_thread(shutil.rmtree, self._temporary, ignore_errors=True)

    async def restart(self) -> None:
        """Restart the session's kernels: variables are lost, files are kept.

        Before the start there is nothing to restart, and a UserWarning says so.
        """
        if self._session is None:
            warn_about_restart()
        else:
            await self._session.restart()
            assert self._blocks is not None
            self._blocks.is_restarted = True

    async def execute_code_blocks(
        self, code_blocks: list[CodeBlock], cancellation_token: CancellationToken
    ) -> AutogenCodeResult:
        """Run blocks in order, up to the first failure.

        ``exit_code`` is 0, or the exit code of the failed block: 124 after a timeout, -1 if a rule refused the block.
        Cancellation interrupts the running cell of this call or removes a queued cell; other calls are not affected. Calls from
        another event loop are possible while the loop of ``start`` runs.

        Raises:
            asyncio.CancelledError: the token was cancelled, and there is no ``work_dir``.
            TimeoutError: a block was over its time, and there is an ``output_dir``.
            RuntimeError: the executor is not started.
            ValueError: the functions cannot be imported, or their packages cannot be installed.
            KernelStartFailed, QueueFull: see ``AsyncSession.execute``.
        """
        if self._session is None and self._conventions.saves_code:
            await self.start()
        session = self.session
        parsed = [MarkdownBlock(block.code, block.language) for block in code_blocks]
        work = asyncio.ensure_future(self._run_in_own_loop(session, parsed))
        cancellation_token.link_future(work)
        try:
            done = await work
        except asyncio.CancelledError:
            if not (self._conventions.saves_code and cancellation_token.is_cancelled()):
                raise
            return AutogenCodeResult(_CANCELLED, "\nCancelled: Code execution was cancelled.")
        if done.timed_out and self._conventions.output_dir is not None:
            raise TimeoutError(done.output)
        return AutogenCodeResult(done.exit_code, done.output, [Path(file) for file in done.files], done.code_file)

    async def _run_in_own_loop(self, session: AsyncSession, code_blocks: Sequence[MarkdownBlock]) -> BlocksResult:
        """Run blocks in the event loop of ``start``, which may run in another thread."""
        assert self._blocks is not None
        # A context variable: `run_coroutine_threadsafe` copies this context into the other loop, so it holds there too.
        with interrupting_cells():
            running = self._blocks.run(session, code_blocks)
            if self._loop is None or self._loop is asyncio.get_running_loop() or not self._loop.is_running():
                return await running
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(running, self._loop))

    @property
    def timeout(self) -> float:
        """Return the time limit of a block, in seconds."""
        return self._conventions.timeout or self._executor.config.budgets.timeout

    @property
    def work_dir(self) -> Path:
        """Return the chosen ``work_dir``; without a choice a temporary directory, which ``stop`` removes.

        Raises:
            RuntimeError: a ``workspace`` was chosen, and the executor is not started.
        """
        if self._temporary is not None:
            self._temporary.mkdir(mode=0o700, exist_ok=True)
            return self._temporary
        return self._conventions.work_dir or self.session.workspace

    @property
    def output_dir(self) -> Path | None:
        """Return the chosen directory for the files of displays."""
        if self._conventions.output_dir is not None and is_current_directory(self._conventions.output_dir):
            warnings.warn("Using the current directory as output_dir is deprecated.", DeprecationWarning, stacklevel=2)
        return self._conventions.output_dir

    @property
    def cleanup_temp_files(self) -> bool:
        """Return whether the file of a block is deleted after the run."""
        return self._conventions.deletes_code

    @property
    def session(self) -> AsyncSession:
        """Return the session in which blocks run.

        Raises:
            RuntimeError: the executor is not started.
        """
        if self._session is None:
            raise RuntimeError(
                "Executor must be started before executing cells: it is not started. Use it as `async with`, or call start()."
            )
        return self._session

    def _to_config(self) -> AutogenExecutorConfig:
        return self._settings

    @classmethod
    def _from_config(cls, config: AutogenExecutorConfig) -> Self:
        return cls(**config.model_dump())


def _has_directory(options: Mapping[str, Any] | None) -> bool:
    """Return whether options choose the directory of sessions."""
    return any((options or {}).get(name) is not None for name in ("work_dir", "workspace"))
