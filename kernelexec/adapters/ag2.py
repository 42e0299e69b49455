r"""A stateful code executor for AG2's agents: the protocol ``autogen.coding.CodeExecutor`` of AG2 0.9.

>>> from kernelexec.adapters.ag2 import Ag2CodeExecutor
>>> with Ag2CodeExecutor(code_execution_config={"use_docker": False, "timeout": 30}) as executor:
...     user = {"code_execution_config": executor.code_execution_config}  # for ConversableAgent or UserProxyAgent
...     print(executor.reply([{"role": "user", "content": "```python\nprint(6 * 7)\n```"}]))
exitcode: 0 (execution succeeded)
Code output: 42
<BLANKLINE>
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

from kernelexec.adapters.shared.blocks import BlockRunner, BlocksResult, merge_policies
from kernelexec.adapters.shared.conventions import (
    PYTHON_KERNEL,
    Conventions,
    FrameworkExecutor,
    Functions,
    optional_path,
    warn_about_restart,
)
from kernelexec.adapters.shared.markdown import MarkdownBlock, find_blocks
from kernelexec.config.types import check_known, is_count, mapping_error
from kernelexec.errors import Disabled, InvalidConfig
from kernelexec.executor.blocking import Executor, Session, call_target
from kernelexec.executor.executor import ExecutorOptions

if TYPE_CHECKING:
    from autogen.coding import CodeBlock
    from autogen.coding.base import CodeExecutor as Protocol
    from autogen.coding.base import IPythonCodeResult

    class Ag2CodeResult(IPythonCodeResult):
        """AG2's result of IPython blocks, with ``code_file`` as in its result of commands."""

        code_file: str | None


#: The name of this executor in a ``code_execution_config``.
NAME = "kernelexec"
#: Keys that AG2 rejects together with an executor.
_CONFLICTING_KEYS = ("use_docker", "work_dir", "timeout")


class CodeBlockExtractor:
    """The extractor of code blocks from messages; see ``kernelexec.adapters.shared.markdown``."""

    def extract_code_blocks(self, message: object) -> list[CodeBlock]:
        """Return the code blocks of a message as AG2's type."""
        from autogen.coding import CodeBlock  # noqa: PLC0415 - the framework is imported where it is used

        return [CodeBlock(code=block.code, language=block.language) for block in find_blocks(message)]


class Ag2CodeExecutor(FrameworkExecutor):
    """An executor of the code blocks in AG2's messages, in a single persistent session.

    The first block or a ``with`` statement opens the executor. ``stop()`` or the end of the ``with`` block closes it. Any
    thread may call the methods.

    Args:
        session: an open session to use, which stays open. No other options of an executor are then allowed.
        isolation: see ``AsyncExecutor``.
        timeout: the time limit of a block, in seconds; the configuration's by default.
        work_dir: the directory to work in, created if missing. Each block is then saved there as a file.
        output_dir: the directory in which images and HTML of cells become files, which the text names.
        kernel_name: the kernelspec whose kernel runs Python blocks.
        virtual_env_context: a virtual environment for cells, as returned by AG2's ``create_virtual_env``.
        functions: functions for cells to import: callables, results of AG2's ``with_requirements``, or source texts.
        functions_module: the name of the module with these functions.
        execution_policies: for each language, whether blocks run (True) or are only saved; html and css are saved by default,
            and with a ``work_dir`` javascript too.
        options: see ``ExecutorOptions``; ``code_execution_config`` is the dictionary of agent frameworks.

    Raises:
        ValueError: an argument is invalid, the output directory does not exist, or the kernel is not installed.
        FileNotFoundError: the parent directory of ``work_dir`` does not exist.
        InvalidConfig: a setting is invalid.
        Disabled: execution is switched off.
        IsolationUnavailable: containers are chosen, as by default, and no engine is available.
    """

    def __init__(
        self,
        session: Session | None = None,
        *,
        isolation: str | None = None,
        timeout: float | None = None,
        work_dir: str | Path | None = None,
        output_dir: str | Path | None = None,
        kernel_name: str = PYTHON_KERNEL,
        virtual_env_context: SimpleNamespace | None = None,
        functions: Iterable[Any] = (),
        functions_module: str = "functions",
        execution_policies: Mapping[str, bool] | None = None,
        **options: Unpack[ExecutorOptions],
    ) -> None:
        self._functions = Functions.from_callables(functions, module=functions_module)
        self._policies = merge_policies(execution_policies, **({} if work_dir is None else {"javascript": False}))
        self._conventions = Conventions(
            timeout, optional_path(work_dir), optional_path(output_dir), kernel_name, virtual_env_context, is_ag2=True
        )
        # Programs for AG2's own Jupyter executors, its tests among them, read these names.
        self._timeout, self._kernel_name, self._output_dir = timeout, kernel_name, self._conventions.output_dir
        self._session = session
        self._blocks: BlockRunner | None = None
        self._opening, self._opened = threading.RLock(), ExitStack()
        arguments = {"timeout": timeout, "work_dir": work_dir, "virtual_env_context": virtual_env_context}
        all_options = {"isolation": isolation, **arguments, **options}
        present = [name for name, value in all_options.items() if value is not None and value != ()]
        if session is not None and present:
            raise InvalidConfig(
                f"{', '.join(present)}: must not be set together with a session, whose executor has these options."
            )
        self._executor: Executor | None = None
        if session is None:
            options["config"] = self._conventions.configure(options.get("config"))
            self._executor = Executor(isolation, **options)
            if not self._executor.config.enabled:
                raise Disabled("Execution is switched off: pass code_execution_config=False to the agent itself.")
            self._conventions.check_kernel(self._executor.config.isolation)

    @property
    def timeout(self) -> float | None:
        """Return the time limit of a block in seconds; None in an open session, whose executor decides."""
        return self._conventions.timeout or (None if self._executor is None else self._executor.config.budgets.timeout)

    @property
    def work_dir(self) -> Path | None:
        """Return the chosen ``work_dir``; without a choice the session's workspace, or None before the session is open."""
        return self._conventions.work_dir or (None if self._session is None else self._session.workspace)

    @property
    def execution_policies(self) -> dict[str, bool]:
        """Return for each language whether blocks run; unlisted languages run."""
        return dict(self._policies)

    @property
    def code_extractor(self) -> CodeBlockExtractor:
        """Return the extractor of code blocks."""
        return CodeBlockExtractor()

    @property
    def code_execution_config(self) -> dict[str, Any]:
        """Return an agent's ``code_execution_config``: this executor, and the number of messages to search."""
        return {"executor": self, "last_n_messages": self._last_n_messages}

    @property
    def session(self) -> Session:
        """Return the session of the blocks, opened if necessary."""
        with self._opening:  # several threads may be the first; reentrant, because `_run` holds the lock too
            if self._session is None:
                assert self._executor is not None
                with ExitStack() as opened:
                    self._session = opened.enter_context(self._executor).session()
                    self._opened = opened.pop_all()
            return self._session

    def execute_code_blocks(self, code_blocks: Sequence[CodeBlock]) -> Ag2CodeResult:
        """Run blocks in order, up to the first failure.

        ``exit_code`` is 0, or the exit code of the failed block: 124 after a timeout, -1 if a rule refused the block.
        ``output_files`` are pictures, other displays, and created or changed files of the workspace. ``code_file`` is the saved
        code of the first block, or None.

        Raises:
            ValueError: the functions cannot be imported, or their packages cannot be installed.
            KernelStartFailed, Closed, QueueFull: see ``AsyncSession.execute``.
        """
        done = self._run([MarkdownBlock(block.code, block.language) for block in code_blocks])
        result: Ag2CodeResult = _make_result_type()(
            exit_code=done.exit_code, output=done.output, output_files=list(done.files), code_file=done.code_file
        )
        return result

    def reply(
        self, messages: Sequence[Mapping[str, Any]], *, last_n_messages: int | Literal["auto"] | None = None
    ) -> str | None:
        """Return an agent's answer to messages with code: exit code and output; None without code.

        The newest message with code blocks among the newest ``last_n_messages`` is used. ``auto``, the default unless the
        configuration sets another value, searches the messages with the ``role`` ``user`` since the agent's own last message.

        Raises:
            ValueError: ``last_n_messages`` is neither a number >= 0 nor ``auto``; and see ``execute_code_blocks``.
        """
        count = self._last_n_messages if last_n_messages is None else last_n_messages
        if not is_count(count):
            raise ValueError(f"last_n_messages={count!r}: must be a number >= 0, or 'auto'.")
        for number, message in enumerate(reversed(messages)):
            if message.get("role") != "user" if count == "auto" else number >= count:
                return None
            if code_blocks := find_blocks(message.get("content")):
                done = self._run(code_blocks)
                verdict = "execution failed" if done.exit_code else "execution succeeded"
                return f"exitcode: {done.exit_code} ({verdict})\nCode output: {done.output}"
        return None

    def restart(self) -> None:
        """Restart the session's kernels: variables are lost, files are kept. AG2 calls this when an agent is reset.

        Before the first block there is nothing to restart, and a UserWarning says so.
        """
        if self._session is not None:
            self._session.restart()
            if self._blocks is not None:
                self._blocks.is_restarted = True
        else:
            warn_about_restart()

    def stop(self) -> None:
        """Close the executor with the session. The next use opens both again."""
        with self._opening:
            if self._executor is not None and self._session is not None:
                self._session, self._blocks = None, None
                self._opened.close()

    def __enter__(self) -> Self:
        _ = self.session
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def _last_n_messages(self) -> int | Literal["auto"]:
        return self._executor.config.last_n_messages if self._executor is not None else "auto"

    def _run(self, code_blocks: Sequence[MarkdownBlock]) -> BlocksResult:
        with self._opening:
            session = self.session
            if self._blocks is None:
                self._blocks = BlockRunner(session.workspace, self._functions, self._policies, self._conventions)
            runner = self._blocks
        # Outside of the lock: `stop` in another thread must not wait for a block that never ends.
        return call_target(session, lambda target: runner.run(target, code_blocks))


@cache
def _make_result_type() -> Any:  # noqa: ANN401 - a type of the framework, which is imported here
    """Return AG2's result of IPython blocks, with the ``code_file`` of AG2's result of commands."""
    from autogen.coding.base import IPythonCodeResult  # noqa: PLC0415 - as above

    class CodeFileResult(IPythonCodeResult):
        code_file: str | None = None

    return CodeFileResult


def create_executor(code_execution_config: Mapping[str, Any]) -> Protocol:
    """Create the executor of a ``code_execution_config``: ``kernelexec``, an object, or an executor of AG2.

    The arguments of ``kernelexec`` are under this name: ``{"executor": "kernelexec", "kernelexec": {"isolation": "local"}}``.

    Raises:
        ValueError: the executor is unknown, or ``use_docker``, ``work_dir`` or ``timeout`` is set beside an executor.
        InvalidConfig: an argument is unknown or invalid.
    """
    conflicting = [name for name in _CONFLICTING_KEYS if name in code_execution_config]
    if conflicting:
        raise ValueError(f"{', '.join(conflicting)}: must be an argument of the executor.")
    if code_execution_config.get("executor") == NAME:
        options = code_execution_config.get(NAME, {})
        if not isinstance(options, Mapping):
            raise InvalidConfig(f"{NAME}: {mapping_error(options)}.")
        keywords = [name for name in inspect.signature(Ag2CodeExecutor).parameters if name != "options"]
        check_known(options, (*keywords, *ExecutorOptions.__annotations__), f"{NAME}: ")
        return Ag2CodeExecutor(**options)
    from autogen.coding import CodeExecutorFactory  # noqa: PLC0415 - the framework is imported where it is used

    return CodeExecutorFactory.create(dict(code_execution_config))  # type: ignore[arg-type] # AG2 reports invalid keys itself
