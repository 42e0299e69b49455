"""The same names for callers without an event loop: every call goes through one anyio portal. No logic of its own."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from anyio.from_thread import BlockingPortal, start_blocking_portal

from kernelexec.config import Config
from kernelexec.errors import Closed
from kernelexec.executor import AsyncExecutor
from kernelexec.hooks import Hook
from kernelexec.results import ExecutionResult, OutputPage, Progress
from kernelexec.session import AsyncSession
from kernelexec.session.session import PAGE_BYTES
from kernelexec.session.turn import OnOutput


class Session:
    """``AsyncSession`` for blocking callers; ``on_output`` is called in the portal's thread."""

    def __init__(self, portal: BlockingPortal, session: AsyncSession) -> None:
        self._portal = portal
        self._session = session
        self.name = session.name
        self.workspace: Path = session.workspace
        self.notebook: Path | None = session.notebook

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
        on_output: OnOutput | None = None,
    ) -> ExecutionResult:
        """See ``AsyncSession.execute``."""
        return self._portal.call(partial(self._session.execute, code, timeout=timeout, wait=wait, on_output=on_output))

    def execute_command(
        self,
        command: str,
        *,
        timeout: float | None = None,
        work_dir: str | os.PathLike[str] | None = None,
        stdin: str | None = None,
        wait: float | None = None,
        on_output: OnOutput | None = None,
    ) -> ExecutionResult:
        """See ``AsyncSession.execute_command``."""
        call = partial(self._session.execute_command, command, timeout=timeout, work_dir=work_dir)
        return self._portal.call(partial(call, stdin=stdin, wait=wait, on_output=on_output))

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
        return self._portal.call(self._session.interrupt, execution_id)

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
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None

    @property
    def config(self) -> Config:
        """See ``AsyncExecutor``."""
        return self._executor.config

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._portal = stack.enter_context(start_blocking_portal("asyncio"))
            stack.enter_context(self._portal.wrap_async_context_manager(self._executor))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        self._portal = None
        self._stack.close()

    def session(self, name: str = "default", *, work_dir: str | os.PathLike[str] | None = None) -> Session:
        """See ``AsyncExecutor.session``."""
        portal = self._open_portal()
        return Session(portal, portal.call(partial(self._executor.session, name, work_dir=work_dir)))

    def sessions(self) -> tuple[str, ...]:
        """See ``AsyncExecutor.sessions``."""
        return self._executor.sessions()

    def close_session(self, name: str) -> None:
        """See ``AsyncExecutor.close_session``."""
        self._open_portal().call(self._executor.close_session, name)

    def _open_portal(self) -> BlockingPortal:
        if self._portal is None:
            message = "The executor is not open: use it as `with Executor(...) as executor:`."
            raise Closed(message)
        return self._portal
