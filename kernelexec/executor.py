"""The owner of sessions: names, capacity, private directories, hooks. The composition root; everything is wired here."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypedDict, Unpack
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread

from kernelexec import cache
from kernelexec.config import Config, isolation_help
from kernelexec.config.messages import check_known
from kernelexec.dialects.autogen_config import load
from kernelexec.errors import (
    Closed,
    Disabled,
    InvalidRequest,
    InvalidWorkDir,
    IsolationUnavailable,
    UnknownSession,
    nearest,
)
from kernelexec.events import Hook, checked
from kernelexec.executor_directories import Estates
from kernelexec.notices import tell_passing, tell_risk
from kernelexec.policy.decisions import Approver, Validator
from kernelexec.provisioning import unavailable
from kernelexec.provisioning.host.interpreters import check_venv
from kernelexec.provisioning.launch.envfile import variables_of
from kernelexec.records import log as containerlog
from kernelexec.replay import read_past, replay
from kernelexec.session import AsyncSession
from kernelexec.session.cells.approval import check_callables
from kernelexec.session.lifecycle import TaskScope
from kernelexec.session_registry import Roster
from kernelexec.workspace import Workspace
from kernelexec.workspace.directory import check_name

logger = logging.getLogger("kernelexec")


class ExecutorOptions(TypedDict, total=False):
    """The keywords of ``AsyncExecutor``, ``Executor`` and the adapters of agent frameworks, besides ``isolation``."""

    use_docker: bool | str | Sequence[str] | None
    """The choice of ``isolation`` in the words of other frameworks: False is ``isolation="local"``; True, an image, or a list
    of images of which the first that is there, or can be had, is taken, are containers."""
    workspace: str | os.PathLike[str] | None
    """The directory in which every session gets a directory of its own; ``./workspaces`` by default."""
    config: Config | Mapping[str, Any] | None
    """A ``Config``, or a mapping of its options."""
    code_execution_config: Mapping[str, Any] | Literal[False] | None
    """A dictionary as of other frameworks, with ``work_dir``, ``use_docker``, ``timeout``, ``last_n_messages``,
    ``docker_image``, ``docker_container_name``, ``docker_run_args``; False switches execution off."""
    hooks: Iterable[Hook]
    """Observers that receive the events of every session."""
    validators: Sequence[Validator]
    """Functions that decide about each cell before it runs, one after the other: see ``policy.decisions``."""
    approver: Approver | None
    """The function that is asked about cells as ``config.rules.ask`` says, and if a validator demands it."""


class AsyncExecutor:
    """Named sessions, each with a persistent kernel. Use it as ``async with``; leaving the block ends everything.

    Args:
        isolation: where code runs. Unset means containers; ``"local"`` is this machine, by explicit choice.
        options: see ``ExecutorOptions``.

    Raises:
        IsolationUnavailable, InvalidConfig: before anything ran.
    """

    def __init__(self, isolation: str | None = None, **options: Unpack[ExecutorOptions]) -> None:
        check_known(options, ("isolation", *ExecutorOptions.__annotations__))
        self.config = load(
            isolation,
            use_docker=options.get("use_docker"),
            workspace=options.get("workspace"),
            config=options.get("config"),
            code_execution_config=options.get("code_execution_config"),
        )
        if self.config.enabled and (cause := unavailable(self.config)) is not None:
            raise IsolationUnavailable(cause if self.config.isolation == "bubblewrap" else isolation_help(cause))
        if self.config.enabled:
            check_venv(self.config)
        variables_of(self.config.environment.env_file)
        if self.config.log_dir is not None:
            containerlog.check(self.config.log_dir, self.config.work_dir or self.config.workspaces)
        if self.config.cache.enabled:
            given = (one.path for one in self.config.context_paths if one.permission == "write")
            written = (self.config.work_dir or self.config.workspaces, *self.config.confinement.writable, *given)
            cache.check_directory(self.config.cache.results_directory, written)
        self._opening: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._scope: TaskScope | None = None
        self._estates = Estates(self.config)
        approver = options.get("approver")
        validators = check_callables(options.get("validators", ()), approver)
        self._roster = Roster(self.config, self._estates, checked(options.get("hooks", ())), validators, approver)

    async def __aenter__(self) -> Self:
        if self._scope is not None and not self._scope.stopped.is_set():
            self._scope.check_caller()
            raise InvalidRequest("The executor is open already: it is entered once; hand the object itself on.")
        if self.config.enabled:
            tell_risk(self.config.isolation)
            tell_passing(everything=self.config.environment.pass_all)
        self._estates.claim()
        scope = self._scope = TaskScope("The executor", self._close_sessions, self._remove)
        # The one task without a parent: it belongs to this object, so that the block may be left in another task.
        task = asyncio.create_task(scope.run(), name="kernelexec")
        task.add_done_callback(partial(_ended, scope))
        try:
            await scope.started.wait()
            scope.check_open()
            self._roster.begin(scope)
            await self._roster.adopt(scope)
            scope.tasks.start_soon(self._estates.sweep)
        except BaseException:
            try:
                await scope.stop_with_shield()
            finally:
                self._scope = None
                self._estates.remove()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        scope = self._scope
        if scope is None or scope.in_forked_child:
            return
        if not scope.stopped.is_set():
            scope.check_caller()
        try:
            await scope.stop_with_shield()
        finally:
            if self._scope is scope:
                self._scope = None
        if scope.failure is not None and exc is None:
            raise scope.failure

    async def session(
        self,
        name: str = "default",
        *,
        work_dir: str | os.PathLike[str] | None = None,
        notebook: str | os.PathLike[str] | None = None,
        repeat_unsafe: bool = False,
    ) -> AsyncSession:
        """The session of that name, made and its kernel started if it is new. Calls at once for one name make one.

        Args:
            name: 1 to 64 letters, digits, dots, dashes and underscores.
            work_dir: an existing directory to work in, instead of the configured one, or one of its own in the workspace.
            notebook: a notebook, a script or an earlier session's journal, whose cells are replayed in the new session first,
                in order; ``session.replay`` is the report. A cell gets the configured timeout, or twice what it took and 10 s.
            repeat_unsafe: replay also cells that send, delete, add or start something, as far as their text shows.

        Raises:
            InvalidRequest, InvalidWorkDir, CapacityReached, Disabled, Closed: before anything started.
            KernelStartFailed: no kernel came up.
        """
        if not self.config.enabled:
            raise Disabled("Code execution is switched off for this executor (code_execution_config=False): nothing runs here.")
        check_name(name)
        if not isinstance(repeat_unsafe, bool) or (repeat_unsafe and notebook is None):
            message = f"repeat_unsafe={repeat_unsafe!r}: it is True or False, and goes with a notebook to replay."
            raise InvalidRequest(message)
        async with self._opening.setdefault(name, asyncio.Lock()):
            scope = self._check_open()
            known = self._roster.sessions.get(name)
            if known is not None and known.scope.is_stopping:
                await known.close()
                scope, known = self._check_open(), None
            if known is None:
                return await self._open(name, work_dir, notebook, scope, repeat_unsafe=repeat_unsafe)
            if notebook is not None:
                message = f"Session {name!r} is open already: close it first, or leave notebook out."
                raise InvalidRequest(message)
            if work_dir is not None and Workspace.at(work_dir).path != known.workspace:
                message = f"Session {name!r} works in {known.workspace}, not in {work_dir}: close it, or take another name."
                raise InvalidWorkDir(message)
            return known

    def sessions(self) -> tuple[str, ...]:
        """The names of the open sessions."""
        return tuple(name for name, session in list(self._roster.sessions.items()) if not session.scope.is_stopping)

    @property
    def directory(self) -> Path:
        """Its private directory, this user's alone, in which its sessions have theirs; it is there while it is open.

        Raises:
            Closed: it is not.
        """
        self._check_open()
        return self._estates.own

    def open_session(self, name: str) -> AsyncSession | None:
        """The open session of that name, one that was adopted too; None where there is none, and none is made."""
        session = self._roster.sessions.get(name)
        return None if session is None or session.scope.is_stopping else session

    async def close_session(self, name: str) -> None:
        """End a session: its kernel, all that the kernel started, and its private files. Its workspace stays.

        Raises:
            UnknownSession: no session of that name is open.
        """
        session = self._roster.sessions.get(name) if isinstance(name, str) else None
        if session is None:
            message = f"No session {name!r} is open{nearest(str(name), self._roster.sessions)}."
            raise UnknownSession(message)
        await session.close()

    async def _open(
        self,
        name: str,
        work_dir: str | os.PathLike[str] | None,
        notebook: str | os.PathLike[str] | None,
        scope: TaskScope,
        *,
        repeat_unsafe: bool,
    ) -> AsyncSession:
        past = None
        if notebook is not None:
            past = await anyio.to_thread.run_sync(read_past, notebook, self.config)
        session = await self._roster.made(name, work_dir, scope)
        try:
            await session.open(replays=None if past is None else str(notebook))
            await session.preinstall()
            if past is not None:
                budget = self.config.budgets.timeout
                found = await replay(session, past, source=str(notebook), timeout=budget, repeat_unsafe=repeat_unsafe)
                session.report_replay(found, past)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await session.close()
            raise
        return session

    async def _close_sessions(self) -> None:
        """Called in the executor's task when it is to end."""
        self._estates.stop_sweeping()
        self._roster.ask_end()

    async def _remove(self) -> None:
        """Called in the executor's task when all sessions have ended."""
        self._roster.forget()
        await self._roster.end()
        self._estates.remove()

    def _check_open(self) -> TaskScope:
        if self._scope is None:
            raise Closed("The executor is not open: use it as `async with AsyncExecutor(...) as executor:`.")
        self._scope.check_open()
        return self._scope


def _ended(scope: TaskScope, _task: asyncio.Task[None]) -> None:
    """Whatever became of the executor's task, also if it was cancelled before it began: nobody waits for it in vain."""
    scope.mark_end()
