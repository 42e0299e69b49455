"""A sandbox for the shell and code tools of AG2 1.x: a session, whose variables, ``cd`` and ``export`` last."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import Self, Unpack

from kernelexec.adapters.shared.blocks import remove_start_notes
from kernelexec.adapters.shared.commands import await_result, call_in_thread
from kernelexec.errors import InvalidRequest, Refused
from kernelexec.executor.blocking import Executor, Session, await_target
from kernelexec.executor.executor import ExecutorOptions
from kernelexec.results import ExecutionResult, model_notes
from kernelexec.session import AsyncSession
from kernelexec.text import format_notes, quote_output

try:
    from ag2.tools.sandbox import ExecResult
except ImportError as exc:
    raise ImportError(
        "kernelexec.adapters.sandbox needs AG2 1.x: pip install 'ag2>=1.2,<2'. For AG2 0.9 there is kernelexec.adapters.ag2."
    ) from exc

_PYTHONS, _SHELLS = frozenset({"python", "python3"}), frozenset({"sh", "bash"})
_INLINE_WORDS = 3


class Sandbox:
    """AG2's ``Sandbox`` protocol. Use ``async with``; without that, the first call opens the sandbox and ``aclose()`` ends it.

    ``["python", "-c", code]``, the call of AG2's code tool, is a cell of the session's kernel; ``["sh", "-c", command]``, the
    call of the shell tool, is a command of the session: both keep their state. Any other program runs unchanged. Any event loop
    may use the sandbox. Calls take turns.

    Args:
        isolation: see ``Executor``.
        options: see ``ExecutorOptions``.

    Raises:
        InvalidConfig: a setting is invalid.
        IsolationUnavailable: containers are chosen, as by default, and no engine is available.
    """

    def __init__(self, isolation: str | None = None, **options: Unpack[ExecutorOptions]) -> None:
        self._executor = Executor(isolation, **options)
        self._session: Session | None = None
        self._closed = False
        self._opening, self._opened = threading.Lock(), ExitStack()

    @property
    def workdir(self) -> PurePosixPath:
        """Return the working directory as commands see it; opens the session."""
        return PurePosixPath(self._open().workspace_inside)

    @property
    def host_workdir(self) -> Path:
        """Return the path of the working directory on this machine."""
        return self._open().workspace

    async def exec(self, argv: list[str], *, env: dict[str, str] | None = None, timeout: float | None = None) -> ExecResult:
        """Run a program, or its equivalent in the session; exit code 124 after a timeout, 127 if the program does not exist.

        ``env`` applies to this call only: Python code then runs in a separate process and does not change the session.
        """
        if not argv:
            return ExecResult(output="", exit_code=2)
        session = await call_in_thread(self._open)
        try:
            result = await await_result(session, lambda target: _send(target, argv, env or {}, timeout))
        except (InvalidRequest, Refused) as exc:
            return ExecResult(output=str(exc), exit_code=2)
        notes = "" if result.ok else format_notes(model_notes(remove_start_notes(result, session)))
        text = "\n".join(part for part in (quote_output(result.text.strip()), notes) if part)
        return ExecResult(output=text, exit_code=result.exit_code if result.exit_code is not None else 1)

    async def put_file(self, path: PurePosixPath, content: bytes) -> None:
        """Write a file of the workspace, by a relative path.

        Raises:
            ValueError: the path is absolute, or outside of the workspace.
        """
        session = await call_in_thread(self._open)
        try:
            await await_target(session, lambda target: target.files.write(_check_relative(path), content))
        except (InvalidRequest, Refused) as exc:
            raise ValueError(str(exc)) from exc

    async def remove_file(self, path: PurePosixPath) -> None:
        """Remove a file of the workspace. Missing and protected files are ignored.

        Raises:
            ValueError: the path is absolute.
        """
        session = await call_in_thread(self._open)
        await await_target(session, lambda target: target.files.delete_many(_check_relative(path)))

    async def aclose(self) -> None:
        """Close the session and end all processes. A second call does nothing."""
        await call_in_thread(self._close)

    async def __aenter__(self) -> Self:
        await call_in_thread(self._open)
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
                with ExitStack() as opened:
                    self._session = opened.enter_context(self._executor).session("sandbox")
                    self._opened = opened.pop_all()
            return self._session

    def _close(self) -> None:
        with self._opening:
            self._closed, self._session = True, None
            self._opened.close()


async def _send(session: AsyncSession, argv: list[str], env: Mapping[str, str], timeout: float | None) -> ExecutionResult:
    """Send the cell or command for a program."""
    program, inline = PurePosixPath(argv[0]).name, len(argv) == _INLINE_WORDS and argv[1] == "-c" and not env
    if inline and program in _PYTHONS:
        return await session.execute(argv[2], timeout=timeout)
    assigned = [f"{name}={value}" for name, value in env.items()]
    command_line = shlex.join([*(["env", *assigned] if env else []), *argv])
    command = argv[2] if inline and program in _SHELLS else command_line
    return await session.execute_command(command, timeout=timeout)


def _check_relative(path: PurePosixPath) -> str:
    if path.is_absolute():
        raise ValueError(f"{path}: must be a path relative to the workspace.")
    return str(path)
