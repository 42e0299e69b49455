"""The owner of sessions: names, capacity, private directories, hooks. The composition root; everything is wired here."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from weakref import WeakValueDictionary

import anyio
from anyio.abc import TaskGroup

from kernelexec.config import Config, load
from kernelexec.errors import CapacityReached, Closed, InvalidWorkDir, UnknownSession, nearest
from kernelexec.hooks import Hook
from kernelexec.provisioning import new_root
from kernelexec.recorder import Recorder
from kernelexec.session import AsyncSession
from kernelexec.workspace import Workspace
from kernelexec.workspace.directory import check_name

_RISK = (
    "kernelexec: isolation=local: code runs on this machine with your own rights; it can read and change your files. "
    "The environment is scrubbed of what looks like secrets. Use containers for code that you do not trust.\n"
)
_told_risk = False


class AsyncExecutor:
    """Named sessions, each with a persistent kernel. Use it as ``async with``; leaving the block ends everything.

    Args:
        isolation: where code runs. Unset means containers; ``"local"`` is this machine, by explicit choice.
        use_docker: the same choice in the words of other frameworks: False is ``isolation="local"``.
        workspace: the directory in which every session gets a directory of its own; ``./workspaces`` by default.
        config: a ``Config``, or a mapping of its options.
        hooks: observers that are told what happens in every session.

    Raises:
        IsolationUnavailable, InvalidConfig: before anything ran.
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
        self.config = load(isolation, use_docker=use_docker, workspace=workspace, config=config)
        self._hooks = tuple(hooks)
        self._sessions: dict[str, AsyncSession] = {}
        self._opening: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._tasks: TaskGroup | None = None
        self._runtime: Path | None = None

    async def __aenter__(self) -> Self:
        _tell_risk()
        self._runtime = new_root()
        self._tasks = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        tasks, self._tasks = self._tasks, None
        try:
            with anyio.CancelScope(shield=True):
                await self._close_sessions()
        finally:
            if tasks is not None:
                await tasks.__aexit__(None, None, None)
            if self._runtime is not None:
                shutil.rmtree(self._runtime, ignore_errors=True)
                self._runtime = None

    async def session(self, name: str = "default", *, work_dir: str | os.PathLike[str] | None = None) -> AsyncSession:
        """The session of that name, made and its kernel started if it is new. Calls at once for one name make one.

        Args:
            name: 1 to 64 letters, digits, dots, dashes and underscores.
            work_dir: an existing directory to work in, instead of one of its own in the executor's workspace.

        Raises:
            InvalidRequest, InvalidWorkDir, CapacityReached, Closed: before anything started.
            KernelStartFailed: no kernel came up.
        """
        check_name(name)
        async with self._opening.setdefault(name, asyncio.Lock()):
            self._check_open()
            known = self._sessions.get(name)
            if known is None:
                return await self._open(name, work_dir)
            if work_dir is not None and Workspace.at(work_dir).path != known.workspace:
                message = f"Session {name!r} works in {known.workspace}, not in {work_dir}: close it, or take another name."
                raise InvalidWorkDir(message)
            return known

    def sessions(self) -> tuple[str, ...]:
        """The names of the open sessions."""
        return tuple(self._sessions)

    async def close_session(self, name: str) -> None:
        """End a session: its kernel, all that the kernel started, and its private files. Its workspace stays.

        Raises:
            UnknownSession: no session of that name is open.
        """
        session = self._sessions.get(name) if isinstance(name, str) else None
        if session is None:
            message = f"No session {name!r} is open{nearest(str(name), self._sessions)}."
            raise UnknownSession(message)
        await session.close()

    async def _open(self, name: str, work_dir: str | os.PathLike[str] | None) -> AsyncSession:
        assert self._tasks is not None
        assert self._runtime is not None
        bound = self.config.capacity.sessions
        if len(self._sessions) >= bound:
            message = f"{len(self._sessions)} sessions are open, the limit is {bound}: close one first."
            raise CapacityReached(message)
        parent = self.config.workspace.expanduser().absolute()
        workspace = Workspace.make(parent, name) if work_dir is None else Workspace.at(work_dir)
        hooks: list[Hook] = list(self._hooks)
        notebook = free_path(workspace.path / f"{name}.ipynb") if self.config.notebook else None
        if notebook is not None:
            hooks.append(Recorder(notebook))
        runtime = free_path(self._runtime / name[:8].replace(".", "-"))
        runtime.mkdir(mode=0o700)
        session = AsyncSession(
            name, workspace, runtime, self.config, self._tasks, hooks, notebook=notebook, on_close=self._closed
        )
        self._sessions[name] = session
        try:
            await session.open()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await session.close()
            raise
        return session

    def _closed(self, session: AsyncSession) -> None:
        if self._sessions.get(session.name) is session:
            del self._sessions[session.name]

    async def _close_sessions(self) -> None:
        async with anyio.create_task_group() as closing:
            for session in list(self._sessions.values()):
                closing.start_soon(session.close)

    def _check_open(self) -> None:
        if self._tasks is None:
            message = "The executor is not open: use it as `async with AsyncExecutor(...) as executor:`."
            raise Closed(message)


def free_path(path: Path) -> Path:
    """The path, or the first numbered one beside it that is not taken: what is there is never written over."""
    candidate, number = path, 1
    while candidate.exists() or candidate.is_symlink():
        number += 1
        candidate = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return candidate


def _tell_risk() -> None:
    global _told_risk  # noqa: PLW0603 - once per process is what is promised
    if not _told_risk:
        _told_risk = True
        sys.stderr.write(_RISK)
