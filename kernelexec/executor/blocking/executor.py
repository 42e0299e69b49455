"""The blocking facade of an executor. The modules of sessions are imported with the first session."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from kernelexec.config import Config
from kernelexec.errors import Closed, InvalidRequest
from kernelexec.executor import blocking as facades  # in annotations, which are resolvable and import nothing until then
from kernelexec.executor.blocking.portal import CallerThread, Portal, call_at_end, cancel_at_end, documented_as
from kernelexec.executor.executor import AsyncExecutor, ExecutorKeywords
from kernelexec.imports import EXECUTOR, SESSION_KEYWORDS, explain_attribute, explain_keywords
from kernelexec.results import ExecutionResult


@documented_as(AsyncExecutor)
class Executor:
    """``AsyncExecutor`` for blocking callers, with the same arguments and errors. Leaving the block ends everything."""

    if not TYPE_CHECKING:  # type checkers would accept any name
        __getattr__ = explain_attribute(EXECUTOR)

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
        portal = Portal(self._executor)
        try:
            self._set_portal(portal)
            portal.open()
        except BaseException:
            if self._portal is portal:
                self._portal = None
            raise
        return self  # no signal handler runs between the end of ``open`` and the block

    def _set_portal(self, portal: Portal) -> None:
        with self._changing:
            if self._portal is not None:
                raise InvalidRequest("The executor is already open: enter it once and pass the object on.")
            self._portal = portal

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
        """Open the executor without a block, as in a notebook, until ``close`` or the end of the process.

        Errors are those of ``with``.
        """
        self.__enter__()
        try:
            call_at_end(id(self), self.close)
        except BaseException:  # an interrupt
            self.close()
            raise
        return self

    def close(self) -> None:
        """End all sessions and the executor, which can be opened again."""
        cancel_at_end(id(self))
        self.__exit__(None, None, None)

    @explain_keywords(SESSION_KEYWORDS)
    def session(
        self,
        name: str = "default",
        *,
        work_dir: str | os.PathLike[str] | None = None,
        notebook: str | os.PathLike[str] | None = None,
        repeat_unsafe: bool = False,
    ) -> facades.Session:
        """See ``AsyncExecutor.session``."""
        portal = self._open_portal()
        call = partial(self._executor.session, name, work_dir=work_dir, notebook=notebook, repeat_unsafe=repeat_unsafe)
        return facades.Session(portal, portal.call(call))

    def map(
        self,
        function: Callable[[Any], Any] | str,
        inputs: Iterable[Any],
        *,
        sessions: int = 4,
        timeout: float | None = None,
    ) -> list[ExecutionResult]:
        """See ``AsyncExecutor.map``."""
        caller = CallerThread()  # an iterator belongs to the thread of its caller
        is_read_once = isinstance(inputs, Iterable) and not isinstance(inputs, Collection)
        items = caller.iterate(inputs) if is_read_once else inputs
        call = partial(self._executor.map, function, items, sessions=sessions, timeout=timeout)
        return self._open_portal().call_or_cancel(call, caller)

    def __repr__(self) -> str:
        return f"<Executor {self._executor.summary}>"

    def sessions(self) -> tuple[str, ...]:
        """See ``AsyncExecutor.sessions``."""
        return self._executor.sessions()

    def open_session(self, name: str) -> facades.Session | None:
        """See ``AsyncExecutor.open_session``."""
        portal, session = self._open_portal(), self._executor.open_session(name)
        return None if session is None else facades.Session(portal, session)

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
            raise Closed("The executor is not open: use it as `with Executor(...) as executor:`, or call `open()`.")
        return self._portal
