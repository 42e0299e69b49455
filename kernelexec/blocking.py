"""The same names for callers without an event loop: every call goes through one anyio portal. No logic of its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import CancelledError, Future
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from kernelexec.config import Config
from kernelexec.errors import Closed, InvalidRequest
from kernelexec.executor import AsyncExecutor
from kernelexec.hooks import Hook
from kernelexec.results import CodeStatus, Completion, ExecutionResult, OutputPage, Progress, Variables
from kernelexec.results.variables import VARIABLES_MAX
from kernelexec.session import AsyncSession
from kernelexec.session.executions import PAGE_BYTES
from kernelexec.session.lookout import LOOK_SECONDS
from kernelexec.session.turn import OnOutput

_T = TypeVar("_T")
_CLOSED = "The executor is closed: open it anew, and ask it for a session."


class Portal:
    """The thread in which an executor lives, and the one way to call into it. Any number of threads may call at once."""

    def __init__(self, executor: AsyncExecutor) -> None:
        self._executor = executor
        self._opened: Future[BlockingPortal] = Future()
        self._failure: BaseException | None = None
        self._calling = threading.Lock()
        self._stopped = False
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="kernelexec", daemon=True)

    @property
    def inherited(self) -> bool:
        """Whether this is a forked child of the process that has the thread."""
        return os.getpid() != self._pid

    def open(self) -> None:
        """Start the thread and enter the executor; what that raises is raised here."""
        self._thread.start()
        try:
            self._opened.result()
        except BaseException:
            self.close(failed=True)
            raise

    def call(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Make a call in the executor's thread and wait for what becomes of it.

        Raises:
            Closed: the executor is not open any more; and what ``check_here`` raises.
        """
        self.check_here()
        with self._calling:
            if self._stopped:
                raise Closed(_CLOSED)
            try:
                future = self._opened.result().start_task_soon(call)
            except RuntimeError as exc:  # what anyio says where the loop broke down
                raise Closed(_CLOSED) from exc
        try:
            return future.result()
        except CancelledError as exc:
            raise Closed(_CLOSED) from exc

    def check_here(self) -> None:
        """Refuse a caller that would wait for ever.

        Raises:
            Closed: it is in a forked child of the process that has the thread.
            InvalidRequest: it is in the executor's own thread.
        """
        if self.inherited:
            message = "The executor belongs to the process that this one was forked from: open an executor here."
            raise Closed(message)
        if threading.get_ident() == self._thread.ident:
            message = "Hooks and on_output run in the executor's thread: make blocking calls from another one."
            raise InvalidRequest(message)

    def close(self, *, failed: bool) -> None:
        """Leave the executor and wait for the thread's end; unless the block ``failed``, what that raises is raised here."""
        with self._calling:  # what was called before has reached the loop, and what comes after is refused
            if not self._stopped and self._opened.exception() is None:
                self._opened.result().start_task_soon(self._opened.result().stop)
            self._stopped = True
        self._thread.join()
        if self._failure is not None and not failed:
            raise self._failure

    def _run(self) -> None:
        try:
            anyio.run(self._serve)
        except BaseException as exc:  # noqa: BLE001 - given to who opens or closes
            self._failure = exc
        self._stopped = True
        if not self._opened.done():
            self._opened.set_exception(self._failure or Closed(_CLOSED))

    async def _serve(self) -> None:
        async with BlockingPortal() as portal:
            try:
                async with self._executor:
                    self._opened.set_result(portal)
                    await portal.sleep_until_stopped()
            except Exception as exc:  # noqa: BLE001 - the same, and as itself
                self._failure = exc


class Session:
    """``AsyncSession`` for blocking callers; ``on_output`` is called in the executor's thread."""

    def __init__(self, portal: Portal, session: AsyncSession) -> None:
        self._portal = portal
        self._session = session
        self.name = session.name
        self.workspace: Path = session.workspace
        self.notebook: Path | None = session.notebook
        self.journal: Path | None = session.journal

    @property
    def kernel_epoch(self) -> int:
        """See ``AsyncSession.kernel_epoch``."""
        return self._session.kernel_epoch

    @property
    def busy(self) -> bool:
        """See ``AsyncSession.busy``."""
        return self._session.busy

    def execute(
        self,
        code: str,
        *,
        timeout: float | None = None,
        wait: float | None = None,
        request_id: str | None = None,
        on_output: OnOutput | None = None,
    ) -> ExecutionResult:
        """See ``AsyncSession.execute``."""
        call = partial(self._session.execute, code, timeout=timeout, wait=wait, request_id=request_id)
        return self._portal.call(partial(call, on_output=on_output))

    def execute_command(
        self,
        command: str,
        *,
        timeout: float | None = None,
        work_dir: str | os.PathLike[str] | None = None,
        stdin: str | None = None,
        wait: float | None = None,
        request_id: str | None = None,
        on_output: OnOutput | None = None,
    ) -> ExecutionResult:
        """See ``AsyncSession.execute_command``."""
        call = partial(self._session.execute_command, command, timeout=timeout, work_dir=work_dir)
        return self._portal.call(partial(call, stdin=stdin, wait=wait, request_id=request_id, on_output=on_output))

    def executions(self) -> tuple[str, ...]:
        """See ``AsyncSession.executions``."""
        return self._session.executions()

    def wait_for(self, execution_id: str, *, cursor: int = 0, wait: float | None = None) -> Progress:
        """See ``AsyncSession.wait_for``."""
        return self._portal.call(partial(self._session.wait_for, execution_id, cursor=cursor, wait=wait))

    def read_output(
        self, execution_id: str, *, offset: int = 0, limit: int = PAGE_BYTES, grep: str | None = None
    ) -> OutputPage:
        """See ``AsyncSession.read_output``."""
        return self._portal.call(partial(self._session.read_output, execution_id, offset=offset, limit=limit, grep=grep))

    def interrupt(self, execution_id: str | None = None) -> ExecutionResult | None:
        """See ``AsyncSession.interrupt``."""
        return self._portal.call(partial(self._session.interrupt, execution_id))

    @property
    def connection_file(self) -> Path | None:
        """See ``AsyncSession.connection_file``."""
        return self._session.connection_file

    def variables(
        self, *, names: Iterable[str] | None = None, limit: int = VARIABLES_MAX, wait: float = LOOK_SECONDS
    ) -> Variables:
        """See ``AsyncSession.variables``."""
        return self._portal.call(partial(self._session.variables, names=names, limit=limit, wait=wait))

    def complete(self, code: str, cursor: int | None = None, *, wait: float = LOOK_SECONDS) -> Completion:
        """See ``AsyncSession.complete``."""
        return self._portal.call(partial(self._session.complete, code, cursor, wait=wait))

    def inspect(self, code: str, cursor: int | None = None, *, detail: int = 0, wait: float = LOOK_SECONDS) -> str | None:
        """See ``AsyncSession.inspect``."""
        return self._portal.call(partial(self._session.inspect, code, cursor, detail=detail, wait=wait))

    def is_complete(self, code: str, *, wait: float = LOOK_SECONDS) -> tuple[CodeStatus, str]:
        """See ``AsyncSession.is_complete``."""
        return self._portal.call(partial(self._session.is_complete, code, wait=wait))

    def restart(self) -> None:
        """See ``AsyncSession.restart``."""
        self._portal.call(self._session.restart)

    def close(self) -> None:
        """See ``AsyncSession.close``."""
        self._portal.call(self._session.close)


class Executor:
    """``AsyncExecutor`` for blocking callers. Use it as ``with``; leaving the block ends everything.

    Args and errors: see ``AsyncExecutor``.
    """

    def __init__(
        self,
        isolation: str | None = None,
        *,
        use_docker: bool | None = None,
        workspace: str | os.PathLike[str] | None = None,
        config: Config | Mapping[str, Any] | None = None,
        hooks: Iterable[Hook] = (),
    ) -> None:
        self._executor = AsyncExecutor(isolation, use_docker=use_docker, workspace=workspace, config=config, hooks=hooks)
        self._changing = threading.Lock()
        self._portal: Portal | None = None

    @property
    def config(self) -> Config:
        """See ``AsyncExecutor``."""
        return self._executor.config

    def __enter__(self) -> Self:
        if self._portal is not None:
            self._portal.check_here()
        with self._changing:
            if self._portal is not None:
                message = "The executor is open already: it is entered once; hand the object itself on."
                raise InvalidRequest(message)
            self._portal = Portal(self._executor)
            try:
                self._portal.open()
            except BaseException:
                self._portal = None
                raise
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        portal = self._portal
        if portal is None or portal.inherited:
            return
        portal.check_here()
        with self._changing:
            if self._portal is portal:
                try:
                    portal.close(failed=exc is not None)
                finally:
                    self._portal = None

    def session(self, name: str = "default", *, work_dir: str | os.PathLike[str] | None = None) -> Session:
        """See ``AsyncExecutor.session``."""
        portal = self._open_portal()
        return Session(portal, portal.call(partial(self._executor.session, name, work_dir=work_dir)))

    def sessions(self) -> tuple[str, ...]:
        """See ``AsyncExecutor.sessions``."""
        return self._executor.sessions()

    def close_session(self, name: str) -> None:
        """See ``AsyncExecutor.close_session``."""
        self._open_portal().call(partial(self._executor.close_session, name))

    def _open_portal(self) -> Portal:
        if self._portal is None:
            message = "The executor is not open: use it as `with Executor(...) as executor:`."
            raise Closed(message)
        return self._portal
