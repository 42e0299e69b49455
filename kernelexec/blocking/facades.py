"""The blocking facades of executor, session and files: each call makes the asynchronous call of its name through the portal."""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from functools import partial, update_wrapper
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from kernelexec.blocking import interpreter_end
from kernelexec.blocking.portal import Portal
from kernelexec.config import Config, FileBounds
from kernelexec.errors import Closed, InvalidRequest
from kernelexec.executor import AsyncExecutor, ExecutorKeywords
from kernelexec.results import ExecutionResult, Output, Replay, Statistics
from kernelexec.session.features.session_files import AsyncFiles
from kernelexec.session.session import AsyncSession
from kernelexec.workspace.agent_files.tracking import ReadTracker

_P = ParamSpec("_P")
_R = TypeVar("_R")
_C = TypeVar("_C")


def _blocking(
    method: Callable[Concatenate[Any, _P], Coroutine[Any, Any, _R]],
) -> Callable[Concatenate[Files | Session, _P], _R]:
    """Return a blocking method, with the signature and docstring of an asynchronous one, that calls it through the portal."""

    def call(facade: Files | Session, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return facade._portal.call(partial(method, facade._target, *args, **kwargs))  # noqa: SLF001 - a method of the facade

    update_wrapper(call, method)
    vars(call)["__signature__"] = inspect.signature(method)
    del vars(call)["__wrapped__"]  # with it, tools would show a coroutine function
    return call


def _documented_as(asynchronous: type) -> Callable[[type[_C]], type[_C]]:
    """Return a decorator that replaces references to the asynchronous class by its docstrings, where ``help`` shows them."""

    def copy(facade: type[_C]) -> type[_C]:
        for name, member in vars(facade).items():
            if str(getattr(member, "__doc__", "")).startswith(f"See ``{asynchronous.__name__}.{name}``"):
                member.__doc__ = getattr(asynchronous, name).__doc__
        return facade

    return copy


class Files:
    """``AsyncFiles`` for blocking callers."""

    def __init__(self, portal: Portal, files: AsyncFiles) -> None:
        self._portal = portal
        self._target = files
        self.tracker: ReadTracker = files.tracker
        self.bounds: FileBounds = files.bounds

    list = _blocking(AsyncFiles.list)
    read = _blocking(AsyncFiles.read)
    read_bytes = _blocking(AsyncFiles.read_bytes)
    write = _blocking(AsyncFiles.write)
    delete = _blocking(AsyncFiles.delete)
    edit = _blocking(AsyncFiles.edit)
    delete_many = _blocking(AsyncFiles.delete_many)


@_documented_as(AsyncSession)
class Session:
    """``AsyncSession`` for blocking callers; ``on_output`` is called in the executor's thread."""

    def __init__(self, portal: Portal, session: AsyncSession) -> None:
        self._portal = portal
        self._target = session
        self.name = session.name
        self.workspace: Path = session.workspace
        self.workspace_inside = session.workspace_inside
        """The workspace as its kernels see it."""
        self.notebook: Path | None = session.notebook
        self.journal: Path | None = session.journal

    execute = _blocking(AsyncSession.execute)
    execute_command = _blocking(AsyncSession.execute_command)
    start_background = _blocking(AsyncSession.start_background)
    background_commands = _blocking(AsyncSession.background_commands)
    background = _blocking(AsyncSession.background)
    background_output = _blocking(AsyncSession.background_output)
    kill_background = _blocking(AsyncSession.kill_background)
    wait_for = _blocking(AsyncSession.wait_for)
    read_output = _blocking(AsyncSession.read_output)
    save_notebook = _blocking(AsyncSession.save_notebook)
    interrupt = _blocking(AsyncSession.interrupt)
    variables = _blocking(AsyncSession.variables)
    environment = _blocking(AsyncSession.environment)
    complete = _blocking(AsyncSession.complete)
    inspect = _blocking(AsyncSession.inspect)
    is_complete = _blocking(AsyncSession.is_complete)
    put = _blocking(AsyncSession.put)
    get = _blocking(AsyncSession.get)
    snapshot = _blocking(AsyncSession.snapshot)
    restore = _blocking(AsyncSession.restore)
    execute_with_retry = _blocking(AsyncSession.execute_with_retry)
    run_tests = _blocking(AsyncSession.run_tests)
    install = _blocking(AsyncSession.install)
    rebuild = _blocking(AsyncSession.rebuild)
    guidance = _blocking(AsyncSession.guidance)
    debugging = _blocking(AsyncSession.debugging)
    stats = _blocking(AsyncSession.stats)
    set_limits = _blocking(AsyncSession.set_limits)
    restart = _blocking(AsyncSession.restart)
    close = _blocking(AsyncSession.close)

    def __repr__(self) -> str:
        return f"<Session {self._target.summary}>"

    def stream(
        self, code: str, *, language: str = "python", stdin: str | None = None, timeout: float | None = None
    ) -> Iterator[Output | ExecutionResult]:
        """See ``AsyncSession.stream``."""
        outputs = self._target.stream(code, language=language, stdin=stdin, timeout=timeout)
        try:
            with suppress(StopAsyncIteration):
                while True:
                    yield self._portal.call(outputs.__anext__)
        finally:
            with suppress(Closed):
                self._portal.call(outputs.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - any value
        return self.get(name)

    def __setitem__(self, name: str, value: Any) -> None:  # noqa: ANN401 - any value
        self.put(name, value)

    def executions(self) -> tuple[str, ...]:
        """See ``AsyncSession.executions``."""
        return self._target.executions()

    def mask(self, text: str) -> str:
        """See ``AsyncSession.mask``."""
        return self._target.mask(text)

    @property
    def kernel_epoch(self) -> int:
        """See ``AsyncSession.kernel_epoch``."""
        return self._target.kernel_epoch

    @property
    def busy(self) -> bool:
        """See ``AsyncSession.busy``."""
        return self._target.busy

    @property
    def names(self) -> tuple[str, ...]:
        """See ``AsyncSession.names``."""
        return self._target.names

    @property
    def start_notes(self) -> tuple[str, ...]:
        """See ``AsyncSession.start_notes``."""
        return self._target.start_notes

    @property
    def statistics(self) -> Statistics:
        """See ``AsyncSession.statistics``."""
        return self._target.statistics

    @property
    def replay(self) -> Replay | None:
        """The report of the replay that the session began with; None without one."""
        return self._target.replay

    @property
    def connection_file(self) -> Path | None:
        """See ``AsyncSession.connection_file``."""
        return self._target.connection_file

    @property
    def files(self) -> Files:
        """See ``AsyncSession.files``."""
        return Files(self._portal, self._target.files)


@_documented_as(AsyncExecutor)
class Executor:
    """``AsyncExecutor``, with its arguments and errors, for blocking callers. Leaving its ``with`` block ends everything."""

    def __init__(self, isolation: str | None = None, **options: Unpack[ExecutorKeywords]) -> None:
        self._executor = AsyncExecutor(isolation, **options)
        self._changing = threading.Lock()
        self._portal: Portal | None = None

    @property
    def config(self) -> Config:
        """All settings."""
        return self._executor.config

    def __enter__(self) -> Self:
        if self._portal is not None:
            self._portal.check_thread()
        with self._changing:
            if self._portal is not None:
                raise InvalidRequest("The executor is already open: enter it once and pass the object on.")
            self._portal = Portal(self._executor)
            try:
                self._portal.open()
            except BaseException:
                self._portal = None
                raise
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        portal = self._portal
        if portal is None or portal.in_forked_child:
            return
        portal.check_thread()
        with self._changing:
            if self._portal is portal:
                try:
                    portal.close(failed=exc is not None)
                finally:
                    self._portal = None

    def open(self) -> Self:
        """Open the executor without a block, as a notebook does; ``close``, or the end of the process, ends it.

        Errors are those of ``with``.
        """
        self.__enter__()
        interpreter_end.call_at_end(id(self), self.close)
        return self

    def close(self) -> None:
        """End all sessions and the executor; a closed one can be opened again."""
        interpreter_end.cancel(id(self))
        self.__exit__(None, None, None)

    def session(
        self,
        name: str = "default",
        *,
        work_dir: str | os.PathLike[str] | None = None,
        notebook: str | os.PathLike[str] | None = None,
        repeat_unsafe: bool = False,
    ) -> Session:
        """See ``AsyncExecutor.session``."""
        portal = self._open_portal()
        call = partial(self._executor.session, name, work_dir=work_dir, notebook=notebook, repeat_unsafe=repeat_unsafe)
        return Session(portal, portal.call(call))

    def __repr__(self) -> str:
        return f"<Executor {self._executor.summary}>"

    def sessions(self) -> tuple[str, ...]:
        """See ``AsyncExecutor.sessions``."""
        return self._executor.sessions()

    def open_session(self, name: str) -> Session | None:
        """See ``AsyncExecutor.open_session``."""
        portal, session = self._open_portal(), self._executor.open_session(name)
        return None if session is None else Session(portal, session)

    def mask(self, text: str) -> str:
        """See ``AsyncExecutor.mask``."""
        return self._executor.mask(text)

    def adopt_sessions(self) -> tuple[str, ...]:
        """See ``AsyncExecutor.adopt_sessions``."""
        return self._open_portal().call(self._executor.adopt_sessions)

    def close_session(self, name: str) -> None:
        """See ``AsyncExecutor.close_session``."""
        self._open_portal().call(partial(self._executor.close_session, name))

    def _open_portal(self) -> Portal:
        if self._portal is None:
            raise Closed("The executor is not open: use it as `with Executor(...) as executor:`.")
        return self._portal
