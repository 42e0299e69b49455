"""The executor: the owner of named sessions and the composition root of the package."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, Unpack
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread

import kernelexec as package  # in annotations, which are resolvable and import nothing until then
from kernelexec.cancellation import await_to_end
from kernelexec.config import Config, isolation_help, short_options
from kernelexec.config.dialects.autogen_config import load
from kernelexec.config.short_options import ShortOptions
from kernelexec.config.types import check_known
from kernelexec.errors import (
    Closed,
    Disabled,
    InvalidRequest,
    InvalidWorkDir,
    IsolationUnavailable,
    Refused,
    UnknownSession,
    did_you_mean,
)
from kernelexec.executor.notices import warn_about_environment, warn_about_isolation
from kernelexec.imports import EXECUTOR, SESSION_KEYWORDS, explain_attribute, explain_keywords
from kernelexec.provisioning import platform
from kernelexec.provisioning.launch.environment import read_env_file
from kernelexec.results.one_line import count_things, join_parts, list_some
from kernelexec.rules.policy.decisions import Approver, Validator, check_callables
from kernelexec.session.lifecycle import TaskScope
from kernelexec.text import escape_line
from kernelexec.workspace.directory import TEMPORARY, Workspace, check_name, new_temporary_workspace
from kernelexec.workspace.rmtree import remove_tree

if TYPE_CHECKING:
    from kernelexec.executor.control.control_socket import ServerCommands
    from kernelexec.executor.directories import ExecutorDirectories
    from kernelexec.executor.registry import SessionRegistry
    from kernelexec.provisioning import ForkServers
    from kernelexec.session.features.saved_state.branches import BranchOptions, SessionBranches

logger = logging.getLogger("kernelexec")
#: The module that imports all parts of sessions, which takes a tenth of a second: it is imported in a thread when an executor
#: is entered, while a fork server starts.
_PARTS = "kernelexec.executor.registry"
_CONTROL = "kernelexec.executor.control.control_socket"
#: The smallest limit with which a kernel starts, and the free descriptors with which an executor opens: with 64 and 40 a first
#: session works, with 48 its kernel ends while it starts, and with 32 libraries wait for ever (measured 2026-11-26).
LIMIT_MIN, FREE_MIN = 64, 40


class ExecutorOptions(TypedDict, total=False):
    """The keywords of the adapters of agent frameworks, besides ``isolation``, and of executors."""

    use_docker: bool | str | Sequence[str] | None
    """The choice of ``isolation`` as in other frameworks: False is ``isolation="local"``; True, an image, or a list of images,
    of which the first available one is used, is ``isolation="container"``."""
    workspace: str | os.PathLike[str] | None
    """The directory in which every session gets a directory of its own; ``./workspaces`` by default. ``"temporary"`` is one
    that exists as long as the executor is open."""
    config: Config | Mapping[str, Any] | None
    """A ``Config``, or a mapping of its options."""
    quiet: bool
    """``Config.quiet``: whether no line is printed about where code runs."""
    code_execution_config: Mapping[str, Any] | Literal[False] | None
    """A dictionary as of other frameworks, with ``work_dir``, ``use_docker``, ``timeout``, ``last_n_messages``,
    ``docker_image``, ``docker_container_name``, ``docker_run_args``; False switches execution off."""
    hooks: Iterable[package.Hook]
    """Observers that receive the events of every session."""
    validators: Sequence[Validator]
    """Functions that decide about each cell before it runs, one after the other: see ``policy.decisions``."""
    approver: Approver | None
    """The function that approves cells: those that ``config.rules.ask`` selects, and those that a validator passes on."""


class ExecutorKeywords(ExecutorOptions, ShortOptions, total=False):
    """The keywords of ``AsyncExecutor`` and ``Executor``, besides ``isolation``.

    Those of ``ShortOptions``, such as ``image``, ``memory``, ``timeout`` and ``mounts``, are short for options of ``Config``.
    """


class AsyncExecutor:
    """Named sessions, each with a persistent kernel. Use as ``async with``; leaving the block ends everything.

    Args:
        isolation: the environment of code. The default is containers; ``"local"`` is this machine.
        options: see ``ExecutorOptions``. ``image``, ``memory``, ``cpus``, ``network``, ``timeout``, ``env`` and ``packages``
            are short for options of ``Config``: ``memory="2g"`` for ``container.memory_bytes``.

    Raises:
        IsolationUnavailable, InvalidConfig: nothing ran.
        Refused: the limit of open files is too low.
    """

    if not TYPE_CHECKING:  # type checkers would accept any name
        __getattr__ = explain_attribute(EXECUTOR)

    def __init__(self, isolation: str | None = None, **options: Unpack[ExecutorKeywords]) -> None:
        self._temporary_workspace: Path | None = None
        if options.get("workspace") == TEMPORARY:
            options["workspace"] = self._temporary_workspace = new_temporary_workspace()
        check_known(options, ("isolation", *ExecutorKeywords.__annotations__))
        self.config = load(
            isolation,
            use_docker=options.get("use_docker"),
            workspace=options.get("workspace"),
            config=options.get("config"),
            code_execution_config=options.get("code_execution_config"),
            short=short_options.pick(options),
        )
        _check_surroundings(self.config)
        # One lock for each name, for as long as a caller holds it or waits for it.
        self._opening_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._adoption_lock = anyio.Lock()
        self._scope: TaskScope | None = None
        self._control: anyio.CancelScope | None = None
        self._commands: ServerCommands | None = None
        self._approver = options.get("approver")
        self._validators = check_callables(options.get("validators", ()), self._approver)
        self._hooks = _check_hooks(options["hooks"]) if "hooks" in options else ()

    @cached_property
    def _directories(self) -> ExecutorDirectories:
        from kernelexec.executor.directories import ExecutorDirectories

        return ExecutorDirectories(self.config)

    @cached_property
    def _registry(self) -> SessionRegistry:
        from kernelexec.executor.registry import SessionRegistry

        options = self._hooks, self._validators, self._approver
        return SessionRegistry(self.config, self._directories, self._forks, *options, open_branch=self._open_branch)

    @cached_property
    def _forks(self) -> ForkServers | None:
        if not (self.config.enabled and self.config.uses_fork_server and platform.PLATFORM.has_fork_server):
            return None
        from kernelexec.provisioning.host.fork_servers import ForkServers

        return ForkServers(self.config)

    async def __aenter__(self) -> Self:
        try:
            asyncio.get_running_loop()
        except RuntimeError as exc:
            raise InvalidRequest(
                "AsyncExecutor needs an event loop of asyncio, such as uvloop: in others use Executor."
            ) from exc
        if self._scope is not None and not self._scope.stopped.is_set():
            self._scope.check_caller()
            raise InvalidRequest("The executor is already open: enter it once and pass the object on.")
        if self.config.enabled:
            warn_about_isolation(self.config.isolation, quiet=self.config.quiet)
            warn_about_environment(everything=self.config.environment.pass_all, quiet=self.config.quiet)
        self._directories.claim()
        scope = self._scope = TaskScope("The executor", self._close_sessions, self._remove)
        # The one task without a parent: it belongs to this object, so that the block may be left in another task.
        task = asyncio.create_task(scope.run(), name="kernelexec")
        task.add_done_callback(lambda _: scope.mark_end())  # also if it was cancelled before it started
        try:
            await scope.started.wait()
            scope.check_open()
            if self._forks is not None and self.config.fork_server is True:  # it starts while the parts are imported
                scope.tasks.start_soon(self._forks.prepare_ahead, self._directories.root)
            if self._temporary_workspace is not None:
                self._temporary_workspace.mkdir(mode=0o700)
            if _PARTS not in sys.modules:
                await anyio.to_thread.run_sync(import_module, _PARTS)
            scope.check_open()
            self._registry.start(scope)
            await self._registry.adopt_orphans(scope)
            if self._registry.sessions:
                self.start_control()
            scope.tasks.start_soon(self._directories.sweep)
        except BaseException:
            try:
                await scope.stop_with_shield()
            finally:
                self._scope = None
                self._directories.remove()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        scope = self._scope
        if scope is None or scope.in_forked_child:  # kernels, directories and the task belong to the parent process
            return
        if not scope.stopped.is_set():
            scope.check_caller()
        try:
            await scope.stop_with_shield()
        finally:
            if self._scope is scope:  # another task may have opened the executor again
                self._scope = None
        if scope.failure is not None and exc is None:
            raise scope.failure

    async def open(self) -> Self:
        """Open the executor without a block, as in a notebook, until ``close``. Errors are those of ``async with``."""
        return await self.__aenter__()

    async def close(self) -> None:
        """End all sessions and the executor, which can be opened again."""
        await self.__aexit__(None, None, None)

    @explain_keywords(SESSION_KEYWORDS)
    async def session(
        self,
        name: str = "default",
        *,
        work_dir: str | os.PathLike[str] | None = None,
        notebook: str | os.PathLike[str] | None = None,
        repeat_unsafe: bool = False,
    ) -> package.AsyncSession:
        """Return the session of this name, or create a session and start its kernel. Concurrent calls create a single session.

        Args:
            name: 1 to 64 letters, digits, dots, dashes and underscores.
            work_dir: an existing working directory, instead of the configured or the session's own directory in the workspace.
            notebook: a notebook, a script or a journal of an earlier session, whose cells are first replayed in the new
                session, in order; ``session.replay`` is the report. The timeout of a cell is the configured timeout, or twice
                the recorded duration and 10 s if longer.
            repeat_unsafe: replay also cells whose text shows a side effect: to send, delete, add or start something.

        Raises:
            InvalidRequest, InvalidWorkDir, CapacityReached, Disabled, Closed: nothing was started.
            KernelStartFailed: no kernel started.
        """
        if not self.config.enabled:
            raise Disabled("Code execution is switched off for this executor (code_execution_config=False): nothing runs here.")
        check_name(name)
        if not isinstance(repeat_unsafe, bool) or (repeat_unsafe and notebook is None):
            message = f"repeat_unsafe={repeat_unsafe!r}: must be True or False, and True requires a notebook to replay."
            raise InvalidRequest(message)
        async with self._opening_locks.setdefault(name, asyncio.Lock()):
            scope = self._check_open()
            existing = self._registry.sessions.get(name)
            if existing is not None and existing.scope.is_stopping:
                await existing.close()  # the name is free after its end, and the executor may have ended meanwhile
                scope, existing = self._check_open(), None
            if existing is None:
                return await self._open_session(name, work_dir, notebook, scope, repeat_unsafe=repeat_unsafe)
            if notebook is not None:
                raise InvalidRequest(f"Session {name!r} is open already: close it first, or leave notebook out.")
            if work_dir is not None and Workspace.at(work_dir).path != existing.workspace:
                message = f"Session {name!r} works in {existing.workspace}, not in {work_dir}: close it, or take another name."
                raise InvalidWorkDir(message)
            return existing

    async def map(
        self,
        function: Callable[[Any], Any] | str,
        inputs: Iterable[Any] | AsyncIterable[Any],
        *,
        sessions: int = 4,
        timeout: float | None = None,
    ) -> list[package.ExecutionResult]:
        """Run a function or code once for each input, in several new sessions at the same time; return results in order.

        The result of a failed call is in its place, and the others go on; ``result.value`` is a call's value. If ``map``
        is cancelled or fails, all sessions are closed and running cells end.

        Args:
            function: a function defined by ``def``, whose source is sent, so only the argument and the function's own imports
                are visible; or the text of a cell.
            inputs: the arguments, of types supported by ``session.put``; for a text, a mapping of names to values each. A
                list or another collection is checked before anything runs. Other iterators are read whenever a session is
                free; the result of an invalid input is ``aborted``, with the error.
            sessions: how many sessions are open at most; they are closed at the end.
            timeout: seconds of each call; the configuration's by default.

        Raises:
            InvalidRequest, InvalidTimeout: the function, ``sessions`` or an input of a collection is invalid; nothing ran.
            CapacityReached, Disabled, Closed, KernelStartFailed: a session cannot be opened.
            ExecutionFailed: the definition of the function failed.
        """
        from kernelexec.session.parallel_map import map_inputs

        scope = self._check_open()
        return await map_inputs(
            function,
            inputs,
            count=sessions,
            timeout=timeout,
            limit_bytes=self.config.capacity.value_bytes,
            open_session=self.session,
            wait_for_end=scope.wait_for_request,
        )

    @property
    def summary(self) -> str:
        """A line with the isolation, the open sessions and the workspace."""
        if self._scope is None or self._scope.is_stopping:
            return f"{self.config.isolation} · not open"
        names = self.sessions()
        sessions = list_some(count_things("session", len(names)), names)
        return join_parts(self.config.isolation, sessions, escape_line(str(self.config.workspace)))

    def __repr__(self) -> str:
        return f"<AsyncExecutor {self.summary}>"

    def sessions(self) -> tuple[str, ...]:
        """Return the names of the open sessions."""
        return tuple(name for name, session in list(self._registry.sessions.items()) if not session.scope.is_stopping)

    @property
    def directory(self) -> Path:
        """The executor's private directory, for this user only, with the sessions' directories; ``Closed`` if not open."""
        self._check_open()
        return self._directories.root

    def open_session(self, name: str) -> package.AsyncSession | None:
        """Return the open session of this name, also if adopted; None if not open. Creates nothing."""
        session = self._registry.sessions.get(name)
        return None if session is None or session.scope.is_stopping else session

    def mask(self, text: str) -> str:
        """Return a text with the names of secrets in place of all secret values passed to kernels so far."""
        return self._registry.mask(text) if self.config.secrets else text

    async def adopt_sessions(self) -> tuple[str, ...]:
        """Adopt sessions of this workspace whose executor has ended since the opening of this executor; return the names.

        Only containers outlive their executor, so for any other ``isolation`` the result is empty, without a wait.
        """
        async with self._adoption_lock:
            scope, before = self._check_open(), set(self.sessions())
            await self._registry.adopt_orphans(scope)
        return tuple(name for name in self.sessions() if name not in before)

    async def close_session(self, name: str) -> None:
        """Close a session with all processes and private files; the workspace stays. Raise ``UnknownSession`` if not open."""
        session = self._registry.sessions.get(name) if isinstance(name, str) else None
        if session is None:
            raise UnknownSession(f"No session {name!r} is open{did_you_mean(str(name), self._registry.sessions)}.")
        await session.close()

    async def _open_session(
        self,
        name: str,
        work_dir: str | os.PathLike[str] | None,
        notebook: str | os.PathLike[str] | None,
        scope: TaskScope,
        *,
        repeat_unsafe: bool,
        within: Path | None = None,
        notes: Sequence[str] = (),
    ) -> package.AsyncSession:
        history = None
        if notebook is not None:
            from kernelexec.executor.replay import read_history, replay

            history = await anyio.to_thread.run_sync(read_history, notebook, self.config)
            history = replace(history, notes=(*notes, *history.notes))
        session = await self._registry.create(name, work_dir, scope, within=within, is_replay=history is not None)
        try:
            self.start_control()
            await session.open(replays=None if history is None else str(notebook))
            await session.preinstall()
            if history is not None:
                timeout = self.config.budgets.timeout
                report = await replay(session, history, source=str(notebook), timeout=timeout, repeat_unsafe=repeat_unsafe)
                session.report_replay(report, history)
        except BaseException:
            await await_to_end(session.close())
            raise
        return session

    async def _open_branch(self, parent: SessionBranches, name: str, options: BranchOptions) -> package.AsyncSession:
        """Open a branch of an open session; see ``AsyncSession.branch``."""
        check_name(name)
        async with self._opening_locks.setdefault(name, asyncio.Lock()):
            scope = self._check_open()
            if options.kernel == "replay":
                return await self._replay_branch(parent, name, options, scope)
            session = await self._registry.create_branch(parent, name, options, scope)
            try:
                await session.open()
            except BaseException:
                await await_to_end(session.close())
                raise
            return session

    async def _replay_branch(
        self, parent: SessionBranches, name: str, options: BranchOptions, scope: TaskScope
    ) -> package.AsyncSession:
        """Open a branch without a copied kernel: the parent's cells run again in a new session."""
        self._registry.check_name_is_free(name)
        start = await parent.prepare_replay(name, options)
        return await self._open_session(
            name, start.workspace, parent.source, scope, repeat_unsafe=False, within=start.within, notes=start.notes
        )

    def start_control(self, commands: ServerCommands | None = None) -> None:
        """Let other processes of this user see and use the sessions, unless they can already: see ``kernelexec.attach``.

        Called with the first session; by a server at the start, with the ``commands`` of the operator.
        """
        scope = self._check_open()
        self._commands = commands or self._commands
        if self._control is None:
            self._control = anyio.CancelScope()
            scope.tasks.start_soon(self._serve_control, self._control, self.directory)

    async def _serve_control(self, until: anyio.CancelScope, directory: Path) -> None:
        with until:
            await anyio.to_thread.run_sync(import_module, _CONTROL)
            from kernelexec.executor.control.control_socket import ControlSocket

            await ControlSocket(self, directory, lambda: self._commands).serve()

    async def _close_sessions(self) -> None:
        """Ask all sessions to end; called in the executor's task."""
        if self._control is not None:
            self._control.cancel()
            self._control = None
        self._directories.stop_sweeping()
        if self._forks is not None:
            self._forks.cancel_preparation()
        self._registry.request_stop()

    async def _remove(self) -> None:
        """Remove the sessions and directories; called in the executor's task when all sessions have ended."""
        self._registry.clear()
        async with anyio.create_task_group() as ends:
            ends.start_soon(self._registry.stop_watching)
            if self._forks is not None:
                ends.start_soon(self._forks.stop)
        self._directories.remove()  # after the fork servers, whose sockets are there
        if self._temporary_workspace is not None:
            await anyio.to_thread.run_sync(remove_tree, self._temporary_workspace)

    def _check_open(self) -> TaskScope:
        if self._scope is None:
            raise Closed("The executor is not open: use it as `async with AsyncExecutor(...) as executor:`, or await `open()`.")
        self._scope.check_open()
        return self._scope


def _check_hooks(hooks: object) -> tuple[package.Hook, ...]:
    """Return the hooks, whose module is imported with the parts of sessions if there are none."""
    from kernelexec.events import check_hooks

    return check_hooks(hooks)


def _check_surroundings(config: Config) -> None:
    """Check the settings against the machine: engine, interpreters, files, limits. Only needed checks import their modules.

    Raises:
        IsolationUnavailable, InvalidConfig, Refused: see ``AsyncExecutor``.
    """
    if config.enabled:
        if config.isolation != "local":
            from kernelexec.provisioning import explain_unavailable

            if (cause := explain_unavailable(config)) is not None:
                raise IsolationUnavailable(cause if config.isolation == "bubblewrap" else isolation_help(cause))
        if config.programs.venv is not None:
            from kernelexec.provisioning.host.interpreters import check_venv

            check_venv(config)
        check_descriptor_limit()
    read_env_file(config.environment.env_file)
    if config.log_dir is not None:
        from kernelexec.records import log as containerlog

        containerlog.check(config.log_dir, config.work_dir or config.absolute_workspace)
    if config.cache is not None:
        from kernelexec.session.cells.result_cache import check_directory

        context_paths = (path.path for path in config.context_paths if path.permission == "write")
        writable = (config.work_dir or config.absolute_workspace, *config.confinement.writable, *context_paths)
        check_directory(config.cache, writable)
    if config.enabled:
        _ = config.absolute_workspace  # refuses a relative one if the current directory is gone


def check_descriptor_limit() -> None:
    """Check that this process and its kernels may open enough files.

    Raises:
        Refused: the limit, or the number of free descriptors, is too low.
    """
    limit = platform.open_files_limit()
    if limit is None:
        return
    used = 0
    with suppress(OSError):  # a system without /proc
        used = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - an interrupt within leaves nothing open
    if limit < LIMIT_MIN or limit - used < FREE_MIN:
        needed = max(LIMIT_MIN, used + FREE_MIN)
        raise Refused(f"The limit of open files is {limit}, and {used} are open: {needed} are needed. Raise it by `ulimit -n`.")
