"""A session for agents of Pydantic-AI: a toolset, and a workspace in which a run's commands and files are."""

from __future__ import annotations

import shlex
import threading
import uuid
from collections.abc import Mapping
from functools import partial
from typing import Any

from kernelexec.adapters.shared.commands import UNLIMITED, await_result, call_in_thread, join_report, run_command
from kernelexec.adapters.tools import TEXT_BYTES, FunctionTool, ToolAnswer, function_tools
from kernelexec.errors import Closed, KernelexecError
from kernelexec.executor.blocking import Executor, Session, call_target

try:
    from pydantic_ai.messages import BinaryContent
    from pydantic_ai.tools import Tool
    from pydantic_ai.toolsets import FunctionToolset
    from pydantic_ai.workspaces import (
        CommandResult,
        WorkspaceCommand,
        WorkspaceError,
        WorkspaceOutputLimitError,
        WorkspaceRef,
        WorkspaceTimeoutError,
        WorkspaceUnavailableError,
    )
except ImportError as exc:
    raise ImportError("kernelexec.adapters.pydantic_ai needs Pydantic-AI: pip install 'kernelexec[pydantic-ai]'.") from exc

_PROVIDER = "kernelexec"
#: The limit of each stream of a workspace's command, in bytes.
OUTPUT_BYTES = 16 * 1024 * 1024


class SessionToolset(FunctionToolset[Any]):
    """The tools ``execute_code``, ``execute_command`` and ``read_output`` for ``Agent(toolsets=[...])``.

    Variables, ``cd`` and ``export`` last from call to call and from run to run. Pictures of a cell are ``BinaryContent``.

    Args:
        session: an open session, which the caller closes.
        text_bytes: the limit of text per call, in bytes.
        id: the toolset's id; durable runs need one.

    Raises:
        InvalidConfig: ``text_bytes`` is not such a number.
    """

    def __init__(self, session: Session, *, text_bytes: int = TEXT_BYTES, id: str | None = None) -> None:  # noqa: A002 - Pydantic-AI's name
        super().__init__([_make_tool(tool) for tool in function_tools(session, text_bytes=text_bytes)], id=id)


class SessionWorkspace:
    """A ``WorkspaceBackend`` for commands: a session of its own, opened by the first operation.

    Each command is a process, which starts in the session's workspace. ``executor.session(ref.id)`` returns the session, so a
    ``SessionToolset`` can work on the same files. ``executor.close_session(ref.id)`` ends the session.

    Args:
        executor: an open executor, which the caller closes.
        ref: the reference of an earlier workspace of the executor, to continue there; None for a new workspace.
    """

    def __init__(self, executor: Executor, ref: WorkspaceRef | None = None) -> None:
        if ref is not None and ref.provider != _PROVIDER:
            raise WorkspaceUnavailableError(f"The workspace {ref.id!r} belongs to {ref.provider}, not to {_PROVIDER}.")
        self._executor = executor
        self._ref = ref
        self._session: Session | None = None
        self._directory = ""
        self._opening = threading.Lock()

    @property
    def ref(self) -> WorkspaceRef | None:
        """The reference of the workspace; None until the first operation."""
        return self._ref

    async def working_dir(self) -> str:
        """Return the directory in which commands start.

        Raises:
            WorkspaceUnavailableError: the session was closed.
        """
        await self._open()
        return self._directory

    async def run(
        self,
        command: WorkspaceCommand,
        *,
        shell: bool = False,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> CommandResult:
        """Run a program, or with ``shell`` a shell's command line, in a process of its own.

        A refused command has exit code 126; stderr contains the reason.

        Raises:
            TypeError: the command is text without ``shell``, or a list with ``shell``.
            ValueError: the timeout is not a positive number.
            WorkspaceTimeoutError, WorkspaceOutputLimitError: with the output so far.
            WorkspaceUnavailableError: the session was closed.
        """
        if isinstance(command, str) != shell:
            raise TypeError("command must be text with shell=True, else a list of words.")
        if timeout is not None and not 0 < timeout < UNLIMITED:
            raise ValueError(f"timeout={timeout}: must be a positive number of seconds.")
        words = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        session = await self._open()
        try:
            seconds = UNLIMITED if timeout is None else timeout
            call = partial(run_command, command=shlex.join(words), env=env, limit_bytes=OUTPUT_BYTES, timeout=seconds)
            outcome = await await_result(session, call)
        except Closed as exc:
            raise WorkspaceUnavailableError(str(exc)) from exc
        except KernelexecError as exc:
            raise WorkspaceError(str(exc)) from exc
        stdout, stderr = outcome.streams.stdout, outcome.streams.stderr
        if outcome.result.interrupted == "timeout":
            raise WorkspaceTimeoutError(f"The command took more than {timeout} s.", stdout=stdout, stderr=stderr)
        if outcome.streams.is_cut:
            message = f"The command wrote more than {OUTPUT_BYTES} bytes."
            raise WorkspaceOutputLimitError(message, limit=OUTPUT_BYTES, stdout=stdout, stderr=stderr)
        # Asked after the command, which may itself have removed the directory; its exit code says nothing about that.
        if session.workspace.exists():
            return CommandResult(exit_code=outcome.exit_code, stdout=stdout, stderr=join_report(stderr, outcome.report))
        raise WorkspaceUnavailableError(f"The workspace {session.name!r} no longer exists.")

    async def _open(self) -> Session:
        try:
            return await call_in_thread(self._open_session)
        except KernelexecError as exc:
            raise WorkspaceUnavailableError(str(exc)) from exc

    def _open_session(self) -> Session:
        with self._opening:  # several operations may be the first
            if self._session is None:
                name = f"workspace-{uuid.uuid4().hex[:12]}" if self._ref is None else self._ref.id
                # An earlier workspace is only looked up: a new and empty session must not pass for one with files.
                session = self._executor.session(name) if self._ref is None else self._executor.open_session(name)
                if session is None:
                    raise Closed(f"The workspace {name!r} was closed.")
                self._ref = WorkspaceRef(provider=_PROVIDER, id=name)
                outcome = call_target(session, partial(run_command, command="pwd -P", limit_bytes=OUTPUT_BYTES))
                self._directory = outcome.streams.stdout.rstrip("\n")
                self._session = session
            return self._session


def _make_tool(tool: FunctionTool) -> Tool[Any]:
    async def call(**arguments: Any) -> Any:  # noqa: ANN401 - a model's arguments, and an answer's content
        return _content(await tool.run_async(arguments))

    return Tool.from_schema(call, tool.name, tool.description, dict(tool.parameters), sequential=True)


def _content(answer: ToolAnswer) -> str | list[str | BinaryContent]:
    """Return an answer's text, with the pictures if there are any."""
    if not answer.pictures:
        return answer.text
    return [answer.text, *(BinaryContent(picture.content, media_type=picture.mime) for picture in answer.pictures)]
