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
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from kernelexec.adapters.blocks import Blocks, Outcome, drive
from kernelexec.adapters.functions import Functions, Told
from kernelexec.adapters.markdown import Block, blocks
from kernelexec.blocking import Executor, Session
from kernelexec.config import Config
from kernelexec.config.messages import check_known, mapping_wanted
from kernelexec.config.types import is_count
from kernelexec.errors import Disabled, InvalidConfig
from kernelexec.policy.decisions import Approver, Validator

if TYPE_CHECKING:
    from autogen.coding import CodeBlock
    from autogen.coding.base import CodeExecutor as Protocol
    from autogen.coding.base import IPythonCodeResult

#: The name of this executor in a ``code_execution_config``.
NAME = "kernelexec"
#: What AG2 lets nobody say beside an executor, since it would say it twice.
_BESIDE = ("use_docker", "work_dir", "timeout")


class Extractor:
    """Finds code blocks in messages; see ``kernelexec.adapters.markdown``."""

    def extract_code_blocks(self, message: object) -> list[CodeBlock]:
        """The code blocks of a message, as AG2's."""
        from autogen.coding import CodeBlock  # noqa: PLC0415 - the framework is imported where it is used

        return [CodeBlock(code=block.code, language=block.language) for block in blocks(message)]


class CodeExecutor(Told):
    """Runs the code blocks of AG2's messages in one persistent session.

    The executor opens at its first block or as ``with``; ``stop()`` or the end of the block ends everything. Its methods may
    be called from any thread.

    Args:
        session: an open session to use; it stays open. The other settings of an executor are then said where it was made.
        isolation, use_docker, workspace, config, validators, approver: see ``AsyncExecutor``.
        code_execution_config: the dictionary that agent frameworks know, taken literally; see ``AsyncExecutor``.
        functions: functions that cells can import, as callables, as AG2's ``with_requirements`` makes them, or as source texts.
        functions_module: the module that holds them.
        execution_policies: for a language, whether its blocks run or are only saved; by default html and css are saved.

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
        use_docker: bool | str | Sequence[str] | None = None,
        workspace: str | os.PathLike[str] | None = None,
        config: Config | Mapping[str, Any] | None = None,
        code_execution_config: Mapping[str, Any] | Literal[False] | None = None,
        validators: Sequence[Validator] = (),
        approver: Approver | None = None,
        functions: Iterable[Any] = (),
        functions_module: str = "functions",
        execution_policies: Mapping[str, bool] | None = None,
    ) -> None:
        self._functions = Functions.of(functions, module=functions_module)
        self._policies = dict(execution_policies or {})
        self._session = session
        self._blocks: Blocks | None = None
        self._opening = threading.RLock()
        settings: dict[str, Any] = {
            "isolation": isolation,
            "use_docker": use_docker,
            "workspace": workspace,
            "config": config,
            "code_execution_config": code_execution_config,
            "validators": validators,
            "approver": approver,
        }
        said = [name for name, value in settings.items() if value not in (None, ())]
        if session is not None and said:
            raise InvalidConfig(f"{', '.join(said)} beside a session: its executor has them already.")
        self._executor = Executor(**settings) if session is None else None
        if self._executor is not None and not self._executor.config.enabled:
            raise Disabled("Execution is switched off: give code_execution_config=False to the agent itself.")

    @property
    def code_extractor(self) -> Extractor:
        """What finds code blocks in messages."""
        return Extractor()

    @property
    def code_execution_config(self) -> dict[str, Any]:
        """What an agent takes as its ``code_execution_config``: this executor, and how many messages are looked at."""
        return {"executor": self, "last_n_messages": self._last_n_messages}

    @property
    def session(self) -> Session:
        """The session in which blocks run; it is opened if need be."""
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
        """What an agent answers to messages with code: its exit code and output; None where there is no code.

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
            if found := blocks(message.get("content")):
                done = self._run(found)
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

    def _run(self, given: Sequence[Block]) -> Outcome:
        with self._opening:
            session = self.session
            if self._blocks is None:
                self._blocks = Blocks(session.workspace, self._functions, self._policies)
            found = self._blocks
        return drive(found.run(session, given))


def create(code_execution_config: Mapping[str, Any]) -> Protocol:
    """The executor that a ``code_execution_config`` names: ``kernelexec``, an object, or one of AG2's own.

    The arguments of ``kernelexec`` stand under its name: ``{"executor": "kernelexec", "kernelexec": {"isolation": "local"}}``.

    Raises:
        ValueError: no such executor; or ``use_docker``, ``work_dir`` or ``timeout`` beside it.
        InvalidConfig: an argument that there is not, or that does not fit.
    """
    beside = [name for name in _BESIDE if name in code_execution_config]
    if beside:
        raise ValueError(f"{', '.join(beside)} beside an executor: say it as an argument of the executor.")
    if code_execution_config.get("executor") == NAME:
        given = code_execution_config.get(NAME, {})
        if not isinstance(given, Mapping):
            raise InvalidConfig(f"{NAME}: {mapping_wanted(given)}.")
        check_known(given, inspect.signature(CodeExecutor).parameters, f"{NAME}: ")
        return CodeExecutor(**given)
    from autogen.coding import CodeExecutorFactory  # noqa: PLC0415 - the framework is imported where it is used

    return CodeExecutorFactory.create(dict(code_execution_config))  # type: ignore[arg-type] # it says itself what does not fit
