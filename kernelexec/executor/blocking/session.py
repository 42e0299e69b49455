"""The blocking facade of a session."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack, overload

from kernelexec.executor.blocking.parts import Checkpoint, Files, SavedState
from kernelexec.executor.blocking.portal import Portal, documented_as, iterate, make_blocking
from kernelexec.imports import SESSION, explain_attribute
from kernelexec.results import ExecutionResult, Output, Replay, Restored, Statistics
from kernelexec.session.features.saved_state.branches import BranchKeywords
from kernelexec.session.session import AsyncSession


@documented_as(AsyncSession)
class Session:
    """``AsyncSession`` for blocking callers; ``on_output`` is called in the executor's thread."""

    if not TYPE_CHECKING:  # type checkers would accept any name
        __getattr__ = explain_attribute(SESSION)

    def __init__(self, portal: Portal, session: AsyncSession) -> None:
        self._portal = portal
        self._target = session
        self.name = session.name
        self.workspace: Path = session.workspace
        self.workspace_inside = session.workspace_inside
        """The workspace as its kernels see it."""
        self.notebook: Path | None = session.notebook
        self.journal: Path | None = session.journal

    execute = make_blocking(AsyncSession.execute)
    execute_command = make_blocking(AsyncSession.execute_command)
    start_background = make_blocking(AsyncSession.start_background)
    background_commands = make_blocking(AsyncSession.background_commands)
    background = make_blocking(AsyncSession.background)
    background_output = make_blocking(AsyncSession.background_output)
    kill_background = make_blocking(AsyncSession.kill_background)
    wait_for = make_blocking(AsyncSession.wait_for)
    read_output = make_blocking(AsyncSession.read_output)
    save_notebook = make_blocking(AsyncSession.save_notebook)
    interrupt = make_blocking(AsyncSession.interrupt)
    variables = make_blocking(AsyncSession.variables)
    environment = make_blocking(AsyncSession.environment)
    complete = make_blocking(AsyncSession.complete)
    inspect = make_blocking(AsyncSession.inspect)
    is_complete = make_blocking(AsyncSession.is_complete)
    put = make_blocking(AsyncSession.put)
    get = make_blocking(AsyncSession.get)
    delete = make_blocking(AsyncSession.delete)
    snapshot = make_blocking(AsyncSession.snapshot)
    undo = make_blocking(AsyncSession.undo)
    promote = make_blocking(AsyncSession.promote)
    execute_with_retry = make_blocking(AsyncSession.execute_with_retry)
    run_tests = make_blocking(AsyncSession.run_tests)
    install = make_blocking(AsyncSession.install)
    rebuild = make_blocking(AsyncSession.rebuild)
    guidance = make_blocking(AsyncSession.guidance)
    debugging = make_blocking(AsyncSession.debugging)
    stats = make_blocking(AsyncSession.stats)
    set_limits = make_blocking(AsyncSession.set_limits)
    restart = make_blocking(AsyncSession.restart)
    close = make_blocking(AsyncSession.close)

    def __repr__(self) -> str:
        return f"<Session {self._target.summary}>"

    def checkpoint(self, name: str | None = None, *, files: bool = False, timeout: float | None = None) -> Checkpoint:
        """See ``AsyncSession.checkpoint``."""
        call = partial(self._target.checkpoint, name, files=files, timeout=timeout)
        return Checkpoint(self._portal, self._portal.call(call))

    def checkpoints(self) -> tuple[Checkpoint, ...]:
        """See ``AsyncSession.checkpoints``."""
        return tuple(Checkpoint(self._portal, checkpoint) for checkpoint in self._portal.call(self._target.checkpoints))

    @overload
    def branch(self, name: str | None = ..., *, n: None = ..., **options: Unpack[BranchKeywords]) -> Session: ...

    @overload
    def branch(self, name: str | None = ..., *, n: int, **options: Unpack[BranchKeywords]) -> tuple[Session, ...]: ...

    def branch(
        self, name: str | None = None, *, n: int | None = None, **options: Unpack[BranchKeywords]
    ) -> Session | tuple[Session, ...]:
        """See ``AsyncSession.branch``."""
        if n is None:
            return Session(self._portal, self._portal.call(partial(self._target.branch, name, **options)))
        several: Any = partial(self._target.branch, name, n=n, **options)
        return tuple(Session(self._portal, branch) for branch in self._portal.call(several))

    def restore(
        self,
        saved: SavedState,
        *,
        names: Iterable[str] | None = None,
        files: bool = False,
        timeout: float | None = None,
    ) -> Restored:
        """See ``AsyncSession.restore``."""
        target = saved._target if isinstance(saved, Checkpoint) else saved  # noqa: SLF001 - its own facade
        return self._portal.call(partial(self._target.restore, target, names=names, files=files, timeout=timeout))

    def stream(
        self, code: str, *, language: str = "python", stdin: str | None = None, timeout: float | None = None
    ) -> Iterator[Output | ExecutionResult]:
        """See ``AsyncSession.stream``."""
        outputs = self._target.stream(code, language=language, stdin=stdin, timeout=timeout)
        return iterate(self._portal, outputs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - any value
        return self.get(name)

    def __setitem__(self, name: str, value: Any) -> None:  # noqa: ANN401 - any value
        self.put(name, value)

    def __delitem__(self, name: str) -> None:
        self.delete(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __bool__(self) -> bool:
        return True

    def __contains__(self, name: object) -> bool:
        return name in self._target

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
        """The report of the replay at the session's start; None without a replay."""
        return self._target.replay

    @property
    def connection_file(self) -> Path | None:
        """See ``AsyncSession.connection_file``."""
        return self._target.connection_file

    @property
    def files(self) -> Files:
        """See ``AsyncSession.files``."""
        return Files(self._portal, self._target.files)
