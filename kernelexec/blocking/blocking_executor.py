"""The blocking executor: it has no logic of its own."""

from __future__ import annotations

import os
import threading
from functools import partial
from types import TracebackType
from typing import Self, Unpack

from kernelexec.blocking.blocking_session import Session
from kernelexec.blocking.portal import Portal
from kernelexec.config import Config
from kernelexec.errors import Closed, InvalidRequest
from kernelexec.executor import AsyncExecutor, ExecutorOptions


class Executor:
    """``AsyncExecutor`` for blocking callers. Use it as ``with``; leaving the block ends everything.

    Args and errors: see ``AsyncExecutor``.
    """

    def __init__(self, isolation: str | None = None, **options: Unpack[ExecutorOptions]) -> None:
        self._executor = AsyncExecutor(isolation, **options)
        self._changing = threading.Lock()
        self._portal: Portal | None = None

    @property
    def config(self) -> Config:
        """See ``AsyncExecutor``."""
        return self._executor.config

    def __enter__(self) -> Self:
        if self._portal is not None:
            self._portal.check_thread()
        with self._changing:
            if self._portal is not None:
                message = "The executor is already open: enter it once and pass the object on."
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
        if portal is None or portal.in_forked_child:
            return
        portal.check_thread()
        with self._changing:
            if self._portal is portal:
                try:
                    portal.close(failed=exc is not None)
                finally:
                    self._portal = None

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

    def sessions(self) -> tuple[str, ...]:
        """See ``AsyncExecutor.sessions``."""
        return self._executor.sessions()

    def open_session(self, name: str) -> Session | None:
        """See ``AsyncExecutor.open_session``."""
        portal, session = self._open_portal(), self._executor.open_session(name)
        return None if session is None else Session(portal, session)

    def close_session(self, name: str) -> None:
        """See ``AsyncExecutor.close_session``."""
        self._open_portal().call(partial(self._executor.close_session, name))

    def _open_portal(self) -> Portal:
        if self._portal is None:
            message = "The executor is not open: use it as `with Executor(...) as executor:`."
            raise Closed(message)
        return self._portal
