"""A sandbox for evaluations with Inspect: ``sandbox="kernelexec"`` gives each sample a session of its own."""

from __future__ import annotations

import base64
import shlex
import shutil
import threading
import uuid
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, overload

import yaml
from pydantic import BaseModel, ConfigDict, Field

from kernelexec.adapters.shared.commands import (
    UNLIMITED,
    CommandOutcome,
    TooLarge,
    await_result,
    call_in_thread,
    join_report,
    read_file,
    run_command,
    write_file,
)
from kernelexec.adapters.tools import make_answer
from kernelexec.config import override
from kernelexec.errors import InvalidRequest, KernelexecError
from kernelexec.executor.blocking import Executor, Session

try:
    from inspect_ai.model import ContentImage, ContentText
    from inspect_ai.tool import Tool, ToolResult, tool
    from inspect_ai.util import (
        ExecResult,
        OutputLimitExceededError,
        SandboxConnection,
        SandboxEnvironment,
        SandboxEnvironmentConfigType,
        SandboxEnvironmentLimits,
        SandboxUnavailableError,
        SandboxUserUnsupportedError,
        sandbox,
        sandboxenv,
    )
except ImportError as exc:
    raise ImportError("kernelexec.adapters.inspect_ai needs Inspect: pip install 'kernelexec[inspect-ai]'.") from exc

#: The exit code of a program that exists and cannot be executed.
_NOT_EXECUTABLE = 126
#: The sandbox's settings: the framework decides what runs, and its commands are no notebook.
_CONFIG = {
    "rules": {"dangers": False},
    "notebook": False,
    "journal": False,
    "quiet": True,
    "capacity": {"code_bytes": 16 * 1024 * 1024},
    "budgets": {"timeout": UNLIMITED},
}


class KernelSandboxConfig(BaseModel):
    """Configuration of the sandbox, for ``SandboxEnvironmentSpec("kernelexec", KernelSandboxConfig(...))`` or a YAML file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    isolation: Literal["container", "local", "bubblewrap", "container-host"] = "container"
    """Where commands run; see ``Executor``."""
    config: dict[str, Any] = Field(default_factory=dict)
    """The options of ``Config``, over those of the sandbox: no rules for dangerous commands, no notebook, no journal."""

    def __hash__(self) -> int:
        return hash(self.model_dump_json())


@sandboxenv(name="kernelexec")
class KernelSandboxEnvironment(SandboxEnvironment):
    """The sandbox of a sample: a session. Commands start in the workspace, and run one after the other.

    Args:
        session: an open session, which ``sample_cleanup`` closes.
    """

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,  # noqa: A002 - the framework's names
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,  # noqa: ARG002, FBT001, FBT002 - a session needs no retry
        concurrency: bool = True,  # noqa: ARG002, FBT001, FBT002 - the session's queue is the limit
    ) -> ExecResult[str]:
        """Run a program. A report about a refusal, an interruption, or a lost or restored state ends stderr.

        Raises:
            TimeoutError, PermissionError, OutputLimitExceededError: as the framework defines them.
            SandboxUserUnsupportedError: commands cannot run as ``user`` here.
            SandboxUnavailableError: the session is closed, or no kernel starts.
        """
        command = shlex.join(cmd)
        if cwd is not None:  # not as `work_dir`, which has to be inside of the workspace
            command = shlex.join(["/bin/sh", "-c", 'cd -- "$1" && shift && exec "$@"', "sh", cwd, *cmd])
        try:
            call = partial(
                run_command,
                command=command,
                limit_bytes=SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE,
                stdin=input.encode() if isinstance(input, str) else input,
                env=env,
                user=user,
                timeout=UNLIMITED if timeout is None else timeout,
            )
            outcome = await await_result(self.session, call)
        except InvalidRequest as exc:
            if user is not None and "user=" in str(exc):
                raise SandboxUserUnsupportedError(str(exc)) from exc
            raise
        except KernelexecError as exc:
            raise SandboxUnavailableError(str(exc)) from exc
        return _result(outcome, cmd, timeout)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Write a file and its missing directories; the errors are those of the operating system."""
        content = contents.encode() if isinstance(contents, str) else contents
        try:
            await await_result(self.session, lambda session: write_file(session, file, content))
        except KernelexecError as exc:
            raise SandboxUnavailableError(str(exc)) from exc

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...  # noqa: FBT002 - the framework's signature

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:  # noqa: FBT001, FBT002
        """Read a file; the errors are those of the operating system, of UTF-8, and ``OutputLimitExceededError``."""
        limit, limit_text = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE, SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR
        try:
            content = await await_result(self.session, lambda session: read_file(session, file, limit_bytes=limit))
        except TooLarge as exc:
            raise OutputLimitExceededError(limit_text, None) from exc
        except KernelexecError as exc:
            raise SandboxUnavailableError(str(exc)) from exc
        return content.decode() if text else content

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        """Return a command for a shell beside the sandbox's commands.

        Raises:
            ConnectionError: the session is closed, or its kernel has ended.
        """
        try:
            stats = await call_in_thread(self.session.stats)
        except KernelexecError as exc:
            raise ConnectionError(str(exc)) from exc
        directory = str(self.session.workspace_inside)
        if stats.container_name is None:
            return SandboxConnection(type="kernelexec", command=f"cd {shlex.quote(directory)} && exec bash")
        words = [
            "docker",
            "exec",
            "-it",
            *(["--user", user] if user else []),
            "-w",
            directory,
            stats.container_name,
            "bash",
            "-l",
        ]
        return SandboxConnection(type="kernelexec", command=shlex.join(words), container=stats.container_name)

    @classmethod
    async def sample_init(
        cls,
        task_name: str,  # noqa: ARG003 - the framework's signature
        config: SandboxEnvironmentConfigType | None,
        metadata: dict[str, str],  # noqa: ARG003 - the same
    ) -> dict[str, SandboxEnvironment]:
        """Open the session of a sample."""
        session = await call_in_thread(lambda: _executors.open_session(_read_config(config)))
        return {"default": cls(session)}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,  # noqa: ARG003 - the framework's signature
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,  # noqa: ARG003, FBT001 - the same
    ) -> None:
        """Close the session of a sample and remove the workspace."""
        for environment in environments.values():
            session = environment.as_type(cls).session
            await call_in_thread(lambda: _executors.close_session(_read_config(config), session))  # noqa: B023 - awaited

    @classmethod
    async def task_cleanup(
        cls,
        task_name: str,  # noqa: ARG003 - the framework's signature
        config: SandboxEnvironmentConfigType | None,
        cleanup: bool,  # noqa: ARG003, FBT001 - the same
    ) -> None:
        """End all remaining sessions of the configuration, with all their processes."""
        await call_in_thread(lambda: _executors.close(_read_config(config)))

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """Return the configuration of an evaluation's log."""
        return KernelSandboxConfig(**config)


@tool
def python_session(timeout: float | None = None) -> Tool:
    """Return a tool for Python code in the kernel of the sample's sandbox, whose variables last from call to call.

    Args:
        timeout: the time limit of a cell, in seconds; None is the limit of the sandbox's configuration.
    """

    async def execute(code: str) -> ToolResult:
        """Run Python code in a persistent kernel, as a notebook cell: variables last, the last expression's value is shown.

        Args:
            code: The code.
        """
        session = sandbox().as_type(KernelSandboxEnvironment).session
        try:
            result = await await_result(session, lambda target: target.execute(code, timeout=timeout))
        except KernelexecError as exc:
            return [ContentText(text=f"{type(exc).__name__}: {exc}")]
        answer = await call_in_thread(lambda: make_answer(result))
        urls = (f"data:{picture.mime};base64,{base64.b64encode(picture.content).decode()}" for picture in answer.pictures)
        return [ContentText(text=answer.text), *(ContentImage(image=url) for url in urls)]

    return execute


class _Executors:
    """The open executors by their configurations, each with a directory for workspaces."""

    def __init__(self) -> None:
        self._opened: dict[KernelSandboxConfig, tuple[Executor, ExitStack]] = {}
        self._opening = threading.Lock()

    def open_session(self, config: KernelSandboxConfig) -> Session:
        with self._opening:
            if config not in self._opened:
                with ExitStack() as opened:
                    directory = opened.enter_context(
                        TemporaryDirectory(prefix="kernelexec-inspect-", ignore_cleanup_errors=True)
                    )
                    Path(directory).chmod(0o755)
                    executor = Executor(config.isolation, workspace=directory, config=override(_CONFIG, config.config))
                    self._opened[config] = opened.enter_context(executor), opened.pop_all()
        return self._opened[config][0].session(f"sample-{uuid.uuid4().hex[:12]}")

    def close_session(self, config: KernelSandboxConfig, session: Session) -> None:
        if (opened := self._opened.get(config)) is not None:
            opened[0].close_session(session.name)
            shutil.rmtree(session.workspace, ignore_errors=True)

    def close(self, config: KernelSandboxConfig) -> None:
        with self._opening:
            _, opened = self._opened.pop(config, (None, ExitStack()))
        opened.close()


_executors = _Executors()


def _read_config(config: SandboxEnvironmentConfigType | None) -> KernelSandboxConfig:
    """Return the given configuration, or the configuration in a YAML file."""
    match config:
        case None:
            return KernelSandboxConfig()
        case KernelSandboxConfig():
            return config
        case str():
            return KernelSandboxConfig.model_validate(yaml.safe_load(Path(config).read_text(encoding="utf-8")) or {})
    raise TypeError(f"{type(config).__name__}: must be KernelSandboxConfig, or the path of a YAML file.")


def _result(outcome: CommandOutcome, cmd: list[str], timeout: int | None) -> ExecResult[str]:
    stdout, stderr = outcome.streams.stdout, outcome.streams.stderr
    if outcome.result.interrupted == "timeout":
        raise TimeoutError(f"{cmd[0]}: took more than {timeout} s.")
    if outcome.streams.is_cut:
        raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, stdout or stderr)
    if outcome.exit_code == _NOT_EXECUTABLE and "Permission denied" in stderr:
        raise PermissionError(f"{cmd[0]}: permission denied.")
    return ExecResult(outcome.exit_code == 0, outcome.exit_code, stdout, join_report(stderr, outcome.report))
