"""A stateful code executor for AutoGen: a component of autogen-core 0.7, for ``CodeExecutorAgent`` and code tools."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict

from kernelexec.adapters.blocks import Blocks, Outcome, drive_async
from kernelexec.adapters.functions import Functions, Told
from kernelexec.adapters.markdown import Block
from kernelexec.errors import KernelexecError
from kernelexec.executor import AsyncExecutor
from kernelexec.policy.decisions import Approver, Validator
from kernelexec.session import AsyncSession

try:
    from autogen_core import CancellationToken, Component
    from autogen_core.code_executor import CodeBlock, CodeResult
    from autogen_core.code_executor import CodeExecutor as BaseExecutor
except ImportError as exc:
    message = "kernelexec.adapters.autogen needs autogen-core: pip install 'kernelexec[autogen]'."
    raise ImportError(message) from exc


@dataclass
class Result(CodeResult):
    """``exit_code`` and ``output``, as AutoGen knows them, and the files that cells made, with their paths here."""

    output_files: list[Path]


class Settings(BaseModel):
    """The settings that ``dump_component`` writes: all but functions, validators and approvers, which are objects."""

    model_config = ConfigDict(extra="forbid")

    isolation: str | None = None
    use_docker: bool | str | list[str] | None = None
    workspace: str | None = None
    config: dict[str, Any] | None = None
    code_execution_config: dict[str, Any] | None = None
    execution_policies: dict[str, bool] | None = None


class CodeExecutor(Told, BaseExecutor, Component[Settings]):
    """Runs code blocks in one persistent session. ``async with``, or ``start()`` and ``stop()``.

    Args:
        isolation, use_docker, workspace, config, code_execution_config, validators, approver: see ``AsyncExecutor``; settings
            are plain values here, so that they can be written down.
        functions: functions that cells can import, as callables, as ``with_requirements`` makes them, or as source texts.
        functions_module: the module that holds them.
        execution_policies: for a language, whether its blocks run or are only saved; by default html and css are saved.

    Raises:
        ValueError: of ``functions`` or ``functions_module``.
        InvalidConfig: settings that do not fit.
        IsolationUnavailable: containers were asked for, by default they are, and there is no engine.
    """

    component_config_schema = Settings
    component_provider_override = "kernelexec.adapters.autogen.CodeExecutor"

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
        self._functions = Functions.of(functions, module=functions_module)
        self._settings = Settings(
            isolation=isolation,
            use_docker=use_docker,
            workspace=None if workspace is None else str(workspace),
            config=config,
            code_execution_config=code_execution_config,
            execution_policies=None if execution_policies is None else dict(execution_policies),
        )
        options = {name: getattr(self._settings, name) for name in Settings.model_fields if name != "execution_policies"}
        self._executor = AsyncExecutor(**options, validators=validators, approver=approver)
        self._session: AsyncSession | None = None
        self._blocks: Blocks | None = None
        self._opening = asyncio.Lock()

    async def start(self) -> None:
        """Open the session. A second call does nothing."""
        async with self._opening:
            if self._session is not None:
                return
            executor = await self._executor.__aenter__()
            try:
                session = await executor.session()
            except BaseException as exc:
                await executor.__aexit__(type(exc), exc, None)
                raise
            self._blocks = Blocks(session.workspace, self._functions, self._settings.execution_policies or {})
            self._session = session

    async def stop(self) -> None:
        """End all that was opened. A second call does nothing."""
        async with self._opening:
            if self._session is not None:
                self._session, self._blocks = None, None
                await self._executor.__aexit__(None, None, None)

    async def restart(self) -> None:
        """Replace the session's kernels: their state is lost, its files are still there."""
        await self._open().restart()

    async def execute_code_blocks(self, code_blocks: list[CodeBlock], cancellation_token: CancellationToken) -> Result:
        """Run blocks in their order, up to the first that fails.

        ``exit_code`` is that of the block that failed, 124 after a timeout, -1 where a rule refused it, and else 0. Cancelled,
        its own cell is interrupted, or taken off the queue; those of other calls go on.

        Raises:
            asyncio.CancelledError: the token was cancelled.
            RuntimeError: it is not started.
            ValueError: the functions cannot be imported, or their packages cannot be installed.
            KernelStartFailed, QueueFull: see ``AsyncSession.execute``.
        """
        session = self._open()
        parsed = [Block(block.code, block.language) for block in code_blocks]
        work = asyncio.ensure_future(self._run(session, parsed))
        cancellation_token.link_future(work)
        done = await work
        return Result(done.exit_code, done.output, [Path(file) for file in done.files])

    @property
    def session(self) -> AsyncSession:
        """Return the session in which blocks run.

        Raises:
            RuntimeError: it is not started.
        """
        return self._open()

    def _to_config(self) -> Settings:
        return self._settings

    @classmethod
    def _from_config(cls, config: Settings) -> Self:
        return cls(**config.model_dump())

    def _open(self) -> AsyncSession:
        if self._session is None:
            raise RuntimeError("The executor is not started: use it as `async with`, or call start().")
        return self._session

    async def _run(self, session: AsyncSession, code_blocks: Sequence[Block]) -> Outcome:
        assert self._blocks is not None
        return await drive_async(self._blocks.run(session, code_blocks), taken=lambda call: _ending(session, call))


async def _ending(session: AsyncSession, call: Awaitable[Any]) -> Any:  # noqa: ANN401 - as the call
    """Return the answer of a call to the session; its execution ends if the waiting task is cancelled."""
    sending = _Sending(session, call)
    try:
        return await sending
    except asyncio.CancelledError:
        if sending.execution_id is not None:
            with suppress(KernelexecError):
                await asyncio.shield(session.interrupt(sending.execution_id))
        raise


class _Sending:
    """A call to a session that knows the id of the execution it sends, also while that waits for its turn.

    It is the one that is new after a step of the call's: nobody else takes a step meanwhile.
    """

    def __init__(self, session: AsyncSession, call: Awaitable[Any]) -> None:
        self.execution_id: str | None = None
        self._session = session
        self._call = call

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._call.__await__()
        failure: BaseException | None = None
        while True:
            known = self._session.executions()
            try:
                awaited = next(steps) if failure is None else steps.throw(failure)
            except StopIteration as end:
                return end.value
            if new := [each for each in self._session.executions() if each not in known]:
                self.execution_id = new[-1]
            failure = None
            try:
                yield awaited
            except BaseException as exc:  # noqa: BLE001 - it goes to the call, and on from there
                failure = exc
