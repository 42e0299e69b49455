"""A sandbox for AG2 1.x, behind its shell and code tools: one session, whose variables, ``cd`` and ``export`` last."""

from __future__ import annotations

import asyncio
import shlex
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Self, Unpack

from kernelexec.blocking import Executor, Session
from kernelexec.config import SHORTEST_TIMEOUT
from kernelexec.errors import InvalidRequest, Refused
from kernelexec.executor import ExecutorOptions
from kernelexec.results import ExecutionResult, remarks

try:
    from ag2.tools.sandbox import ExecResult
except ImportError as exc:
    message = (
        "kernelexec.adapters.sandbox needs AG2 1.x: pip install 'ag2>=1.2,<2'. For AG2 0.9 there is kernelexec.adapters.ag2."
    )
    raise ImportError(message) from exc

_PYTHONS, _SHELLS = frozenset({"python", "python3"}), frozenset({"sh", "bash"})
_INLINE = 3


class Sandbox:
    """AG2's ``Sandbox`` protocol. ``async with``; or it opens at the first call and is closed by ``aclose()``.

    ``["python", "-c", code]``, as AG2's code tool calls it, is a cell of the session's kernel, and ``["sh", "-c", command]``,
    as its shell tool does, a command of the session: what one defines the next one finds. Any other program runs as it is. It
    may be used from any event loop. Its calls take turns.

    Args:
        isolation: see ``Executor``.
        options: see ``ExecutorOptions``.

    Raises:
        InvalidConfig: settings that do not fit.
        IsolationUnavailable: containers were asked for, by default they are, and there is no engine.
    """

    def __init__(self, isolation: str | None = None, **options: Unpack[ExecutorOptions]) -> None:
        self._executor = Executor(isolation, **options)
        self._session: Session | None = None
        self._closed = False
        self._opening = threading.Lock()

    @property
    def workdir(self) -> PurePosixPath:
        """Return the directory in which commands begin, as they see it; it opens the session."""
        return PurePosixPath(self._open().workspace_inside)

    @property
    def host_workdir(self) -> Path:
        """Return the same directory on this machine."""
        return self._open().workspace

    async def exec(self, argv: list[str], *, env: dict[str, str] | None = None, timeout: float | None = None) -> ExecResult:
        """Run a program, or what it stands for; exit code 124 after a timeout, 127 where there is no such program.

        ``env`` counts for this call only: a cell that has one is a program by itself, and defines nothing for others.
        """
        if not argv:
            return ExecResult(output="", exit_code=2)
        session = await asyncio.to_thread(self._open)
        beginning = asyncio.ensure_future(asyncio.to_thread(_begin, session, argv, env or {}, timeout))
        try:
            begun = await asyncio.shield(beginning)
            return begun if isinstance(begun, ExecResult) else _told(await asyncio.to_thread(_ended, session, begun))
        except asyncio.CancelledError:
            begun = await beginning
            if isinstance(begun, str):
                await asyncio.to_thread(session.interrupt, begun)  # its own, whatever else runs; the state is kept
            raise

    async def put_file(self, path: PurePosixPath, content: bytes) -> None:
        """Write a file of the workspace, by a relative path.

        Raises:
            ValueError: the path is absolute, or leads out of the workspace.
        """
        session = await asyncio.to_thread(self._open)
        try:
            await asyncio.to_thread(session.files.write, _relative(path), content)
        except (InvalidRequest, Refused) as exc:
            raise ValueError(str(exc)) from exc

    async def remove_file(self, path: PurePosixPath) -> None:
        """Remove a file that was put there; what is not there, or may not be removed, is no failure.

        Raises:
            ValueError: the path is absolute.
        """
        session = await asyncio.to_thread(self._open)
        await asyncio.to_thread(session.files.delete_many, _relative(path))

    async def aclose(self) -> None:
        """End the session, and all that it started. A second call does nothing."""
        await asyncio.to_thread(self._close)

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._open)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __deepcopy__(self, _: object) -> Self:
        """Return the sandbox itself: tools copy their arguments, and a session cannot be copied."""
        return self

    def _open(self) -> Session:
        with self._opening:  # several calls may be the first
            if self._closed:
                raise RuntimeError("The sandbox was closed.")
            if self._session is None:
                self._executor.__enter__()
                try:
                    self._session = self._executor.session("sandbox")
                except BaseException as exc:
                    self._executor.__exit__(type(exc), exc, None)
                    raise
            return self._session

    def _close(self) -> None:
        with self._opening:
            self._closed = True
            session, self._session = self._session, None
            if session is not None:
                self._executor.__exit__(None, None, None)


def _begin(session: Session, argv: Sequence[str], env: Mapping[str, str], timeout: float | None) -> str | ExecResult:
    """Send the cell or command for a program; return its execution's id, or the reason why it cannot run."""
    program, inline = PurePosixPath(argv[0]).name, len(argv) == _INLINE and argv[1] == "-c" and not env
    try:
        if inline and program in _PYTHONS:
            return session.execute(argv[2], timeout=timeout, wait=SHORTEST_TIMEOUT).execution_id
        assigned = [f"{name}={value}" for name, value in env.items()]
        whole = shlex.join([*(["env", *assigned] if env else []), *argv])
        command = argv[2] if inline and program in _SHELLS else whole
        return session.execute_command(command, timeout=timeout, wait=SHORTEST_TIMEOUT).execution_id
    except (InvalidRequest, Refused) as exc:
        return ExecResult(output=str(exc), exit_code=2)


def _ended(session: Session, execution_id: str) -> ExecutionResult:
    result = session.wait_for(execution_id).result
    assert result is not None
    return result


def _told(result: ExecutionResult) -> ExecResult:
    text = "\n".join(part for part in (result.text.strip(), *(() if result.ok else remarks(result))) if part)
    return ExecResult(output=text, exit_code=result.exit_code if result.exit_code is not None else 1)


def _relative(path: PurePosixPath) -> str:
    if path.is_absolute():
        message = f"{path}: it is a path relative to the workspace."
        raise ValueError(message)
    return str(path)
