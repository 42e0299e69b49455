r"""A stateful code executor for AG2's agents, of its protocol ``autogen.coding.CodeExecutor``, as of AG2 0.9.

>>> from kernelexec.adapters.ag2 import CodeExecutor
>>> with CodeExecutor(code_execution_config={"use_docker": False, "timeout": 30}) as executor:
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
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

from kernelexec.adapters.blocks import Blocks, Outcome, drive
from kernelexec.adapters.functions import Functions, Told
from kernelexec.adapters.markdown import Block, blocks
from kernelexec.blocking import Executor, Session
from kernelexec.config.messages import check_known, mapping_wanted
from kernelexec.config.types import is_count
from kernelexec.errors import Disabled, InvalidConfig
from kernelexec.executor import ExecutorOptions

if TYPE_CHECKING:
    from autogen.coding import CodeBlock
    from autogen.coding.base import CodeExecutor as Protocol
    from autogen.coding.base import IPythonCodeResult

#: The name of this executor in a ``code_execution_config``.
NAME = "kernelexec"
#: Keys that AG2 refuses beside an executor.
_BESIDE = ("use_docker", "work_dir", "timeout")


class Extractor:
    """The extractor of code blocks from messages; see ``kernelexec.adapters.markdown``."""

    def extract_code_blocks(self, message: object) -> list[CodeBlock]:
        """Return the code blocks of a message, as AG2's."""
        from autogen.coding import CodeBlock  # noqa: PLC0415 - the framework is imported where it is used

        return [CodeBlock(code=block.code, language=block.language) for block in blocks(message)]


class CodeExecutor(Told):
    """Runs the code blocks of AG2's messages in one persistent session.

    The executor opens at its first block or as ``with``; ``stop()`` or the end of the block ends everything. Its methods may
    be called from any thread.

    Args:
        session: an open session to use; it stays open. The options of an executor then belong where it was made.
        isolation: see ``AsyncExecutor``.
        functions: functions that cells can import, as callables, as AG2's ``with_requirements`` makes them, or as source texts.
        functions_module: the module that holds them.
        execution_policies: for a language, whether its blocks run or are only saved; by default html and css are saved.
        options: see ``ExecutorOptions``; ``code_execution_config`` is the dictionary that agent frameworks know.

    Raises:
        ValueError: of ``functions`` or ``functions_module``.
        InvalidConfig, Disabled: settings that do not fit; execution is switched off.
        IsolationUnavailable: containers were asked for, by default they are, and there is no engine.
    """

    def __init__(
        self,
        session: Session | None = None,
        *,
        isolation: str | None = None,
        functions: Iterable[Any] = (),
        functions_module: str = "functions",
        execution_policies: Mapping[str, bool] | None = None,
        **options: Unpack[ExecutorOptions],
    ) -> None:
        self._functions = Functions.of(functions, module=functions_module)
        self._policies = dict(execution_policies or {})
        self._session = session
        self._blocks: Blocks | None = None
        self._opening = threading.RLock()
        present = [name for name, value in {"isolation": isolation, **options}.items() if value not in (None, ())]
        if session is not None and present:
            raise InvalidConfig(f"{', '.join(present)} beside a session: its executor has them already.")
        self._executor = Executor(isolation, **options) if session is None else None
        if self._executor is not None and not self._executor.config.enabled:
            raise Disabled("Execution is switched off: give code_execution_config=False to the agent itself.")

    @property
    def code_extractor(self) -> Extractor:
        """Return the object that finds code blocks in messages."""
        return Extractor()

    @property
    def code_execution_config(self) -> dict[str, Any]:
        """Return an agent's ``code_execution_config``: this executor, and how many messages are searched."""
        return {"executor": self, "last_n_messages": self._last_n_messages}

    @property
    def session(self) -> Session:
        """Return the session in which blocks run; it is opened if need be."""
        with self._opening:  # several threads may be the first
            if self._session is None:
                assert self._executor is not None
                self._executor.__enter__()
                try:
                    self._session = self._executor.session()
                except BaseException as exc:
                    self._executor.__exit__(type(exc), exc, None)
                    raise
            return self._session

    def execute_code_blocks(self, code_blocks: Sequence[CodeBlock]) -> IPythonCodeResult:
        """Run blocks in their order, up to the first that fails.

        ``exit_code`` is that of the block that failed, 124 after a timeout, -1 where a rule refused it, and else 0;
        ``output_files`` are pictures, other displays and whatever cells made or changed in the workspace.

        Raises:
            ValueError: the functions cannot be imported, or their packages cannot be installed.
            KernelStartFailed, Closed, QueueFull: see ``AsyncSession.execute``.
        """
        from autogen.coding.base import IPythonCodeResult  # noqa: PLC0415 - the framework is imported where it is used

        done = self._run([Block(block.code, block.language) for block in code_blocks])
        return IPythonCodeResult(exit_code=done.exit_code, output=done.output, output_files=list(done.files))

    def reply(
        self, messages: Sequence[Mapping[str, Any]], *, last_n_messages: int | Literal["auto"] | None = None
    ) -> str | None:
        """Return an agent's answer to messages with code: exit code and output; None if there is no code.

        Of the newest ``last_n_messages``, the newest that has code blocks counts; ``auto``, as by default unless the
        configuration says otherwise, takes those that came since the agent itself spoke, whose ``role`` is ``user``.

        Raises:
            ValueError: ``last_n_messages`` is neither a number, 0 or more, nor ``auto``; and see ``execute_code_blocks``.
        """
        count = self._last_n_messages if last_n_messages is None else last_n_messages
        if not is_count(count):
            raise ValueError(f"last_n_messages={count!r}: it is a number, 0 or more, or 'auto'.")
        for number, message in enumerate(reversed(messages)):
            if message.get("role") != "user" if count == "auto" else number >= count:
                return None
            if code_blocks := blocks(message.get("content")):
                done = self._run(code_blocks)
                verdict = "execution failed" if done.exit_code else "execution succeeded"
                return f"exitcode: {done.exit_code} ({verdict})\nCode output: {done.output}"
        return None

    def restart(self) -> None:
        """Replace the session's kernels: their state is lost, its files are still there. AG2 calls it at an agent's reset."""
        if self._session is not None:
            self._session.restart()

    def stop(self) -> None:
        """End what this executor opened. It opens anew when it is used again."""
        with self._opening:
            if self._executor is not None and self._session is not None:
                self._session, self._blocks = None, None
                self._executor.__exit__(None, None, None)

    def __enter__(self) -> Self:
        _ = self.session
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @property
    def _last_n_messages(self) -> int | Literal["auto"]:
        return self._executor.config.last_n_messages if self._executor is not None else "auto"

    def _run(self, code_blocks: Sequence[Block]) -> Outcome:
        with self._opening:
            session = self.session
            if self._blocks is None:
                self._blocks = Blocks(session.workspace, self._functions, self._policies)
            runner = self._blocks
        return drive(runner.run(session, code_blocks))


def create(code_execution_config: Mapping[str, Any]) -> Protocol:
    """Return the executor that a ``code_execution_config`` names: ``kernelexec``, an object, or one of AG2's own.

    The arguments of ``kernelexec`` stand under its name: ``{"executor": "kernelexec", "kernelexec": {"isolation": "local"}}``.

    Raises:
        ValueError: no such executor; or ``use_docker``, ``work_dir`` or ``timeout`` beside it.
        InvalidConfig: an argument that there is not, or that does not fit.
    """
    beside = [name for name in _BESIDE if name in code_execution_config]
    if beside:
        raise ValueError(f"{', '.join(beside)} beside an executor: say it as an argument of the executor.")
    if code_execution_config.get("executor") == NAME:
        options = code_execution_config.get(NAME, {})
        if not isinstance(options, Mapping):
            raise InvalidConfig(f"{NAME}: {mapping_wanted(options)}.")
        keywords = [name for name in inspect.signature(CodeExecutor).parameters if name != "options"]
        check_known(options, (*keywords, *ExecutorOptions.__annotations__), f"{NAME}: ")
        return CodeExecutor(**options)
    from autogen.coding import CodeExecutorFactory  # noqa: PLC0415 - the framework is imported where it is used

    return CodeExecutorFactory.create(dict(code_execution_config))  # type: ignore[arg-type] # it says itself what does not fit
