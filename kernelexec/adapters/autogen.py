"""A stateful code executor for AutoGen: a component of autogen-core 0.7, for ``CodeExecutorAgent`` and code tools."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict

from kernelexec.adapters.shared.blocks import BlockRunner, run_steps_async
from kernelexec.adapters.shared.functions import FunctionPrompt, Functions
from kernelexec.adapters.shared.markdown import MarkdownBlock
from kernelexec.errors import KernelexecError
from kernelexec.executor import AsyncExecutor
from kernelexec.policy.decisions import Approver, Validator
from kernelexec.session import AsyncSession

try:
    from autogen_core import CancellationToken, Component
    from autogen_core.code_executor import CodeBlock, CodeResult
    from autogen_core.code_executor import CodeExecutor as BaseExecutor
except ImportError as exc:
    raise ImportError("kernelexec.adapters.autogen needs autogen-core: pip install 'kernelexec[autogen]'.") from exc


@dataclass
class AutogenCodeResult(CodeResult):
    """AutoGen's ``exit_code`` and ``output``, and the paths of the files that cells created."""

    output_files: list[Path]


class AutogenExecutorConfig(BaseModel):
    """The settings that ``dump_component`` writes: all except functions, validators and approvers, which are objects."""

    model_config = ConfigDict(extra="forbid")

    isolation: str | None = None
    use_docker: bool | str | list[str] | None = None
    workspace: str | None = None
    config: dict[str, Any] | None = None
    code_execution_config: dict[str, Any] | None = None
    execution_policies: dict[str, bool] | None = None


class AutogenCodeExecutor(FunctionPrompt, BaseExecutor, Component[AutogenExecutorConfig]):
    """An executor of code blocks in one persistent session. Use ``async with``, or ``start()`` and ``stop()``.

    Args:
        isolation, use_docker, workspace, config, code_execution_config, validators, approver: see ``AsyncExecutor``; settings
            must be plain values, so that they can be serialized.
        functions: functions that cells can import: callables, results of ``with_requirements``, or source texts.
        functions_module: the name of the module with these functions.
        execution_policies: for each language, whether blocks run (True) or are only saved; html and css are saved by default.

    Raises:
        ValueError: ``functions`` or ``functions_module`` is invalid.
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
    ) -> None:
        self._functions = Functions.from_callables(functions, module=functions_module)
        self._settings = AutogenExecutorConfig(
            isolation=isolation,
            use_docker=use_docker,
            workspace=None if workspace is None else str(workspace),
            config=config,
            code_execution_config=code_execution_config,
            execution_policies=None if execution_policies is None else dict(execution_policies),
        )
        options = self._settings.model_dump(exclude={"execution_policies"})
        self._executor = AsyncExecutor(**options, validators=validators, approver=approver)
        self._session: AsyncSession | None = None
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
            self._blocks = BlockRunner(session.workspace, self._functions, self._settings.execution_policies or {})
            self._session = session

    async def stop(self) -> None:
        """Close the session and its executor. A second call does nothing."""
        async with self._opening:
            if self._session is not None:
                self._session, self._blocks = None, None
                await self._opened.aclose()

    async def restart(self) -> None:
        """Restart the session's kernels: variables are lost, files are kept."""
        await self.session.restart()

    async def execute_code_blocks(
        self, code_blocks: list[CodeBlock], cancellation_token: CancellationToken
    ) -> AutogenCodeResult:
        """Run blocks in order, up to the first failure.

        ``exit_code`` is the exit code of the failed block: 124 after a timeout, -1 if a rule refused it; without a failure 0.
        Cancellation interrupts this call's cell or removes it from the queue; other calls are not affected.

        Raises:
            asyncio.CancelledError: the token was cancelled.
            RuntimeError: the executor is not started.
            ValueError: the functions cannot be imported, or their packages cannot be installed.
            KernelStartFailed, QueueFull: see ``AsyncSession.execute``.
        """
        session = self.session
        parsed = [MarkdownBlock(block.code, block.language) for block in code_blocks]
        assert self._blocks is not None
        steps = self._blocks.run(session, parsed)
        work = asyncio.ensure_future(run_steps_async(steps, wrap=lambda call: _interrupt_on_cancel(session, call)))
        cancellation_token.link_future(work)
        done = await work
        return AutogenCodeResult(done.exit_code, done.output, [Path(file) for file in done.files])

    @property
    def session(self) -> AsyncSession:
        """Return the session in which blocks run.

        Raises:
            RuntimeError: the executor is not started.
        """
        if self._session is None:
            raise RuntimeError("The executor is not started: use it as `async with`, or call start().")
        return self._session

    def _to_config(self) -> AutogenExecutorConfig:
        return self._settings

    @classmethod
    def _from_config(cls, config: AutogenExecutorConfig) -> Self:
        return cls(**config.model_dump())


async def _interrupt_on_cancel(session: AsyncSession, call: Awaitable[Any]) -> Any:  # noqa: ANN401 - as the call
    """Await a call to the session, and interrupt its execution if this task is cancelled."""
    sending = _TrackedCall(session, call)
    try:
        return await sending
    except asyncio.CancelledError:
        if sending.execution_id is not None:
            with suppress(KernelexecError):
                await asyncio.shield(session.interrupt(sending.execution_id))
        raise


class _TrackedCall:
    """A call to a session that records the id of its execution, also while that waits in the queue.

    The id is the one that is new after a step of the call, because no other task runs during the step.
    """

    def __init__(self, session: AsyncSession, call: Awaitable[Any]) -> None:
        self.execution_id: str | None = None
        self._session = session
        self._call = call

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._call.__await__()
        failure: BaseException | None = None
        while True:
            earlier_ids = self._session.executions()
            try:
                awaited = next(steps) if failure is None else steps.throw(failure)
            except StopIteration as end:
                return end.value
            if new := [each for each in self._session.executions() if each not in earlier_ids]:
                self.execution_id = new[-1]
            failure = None
            try:
                yield awaited
            except BaseException as exc:  # noqa: BLE001 - raised in the call
                failure = exc
