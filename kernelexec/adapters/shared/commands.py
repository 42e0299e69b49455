"""Calls of a blocking session for frameworks: from any event loop, with the exact output of commands, or of whole files.

A cancelled call interrupts its own execution only. The content of a file is the standard input or output of a command, as
bytes, so it is exact, is in no record, and has the rights of the session's commands; its errors are those of the operating
system.
"""

from __future__ import annotations

import asyncio
import posixpath
import shlex
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any, TypeVar

from kernelexec.errors import KernelexecError
from kernelexec.executor.blocking import Session, await_target
from kernelexec.results import ExecutionResult, Output, Stream, model_notes
from kernelexec.session import AsyncSession
from kernelexec.session.cells.queue import interrupting_cells
from kernelexec.text import escape_invisible, escape_unseen, format_note, format_notes

T = TypeVar("T")
#: The timeout of a call without one, in seconds.
UNLIMITED = 1e9
#: The exit code of a command that was refused and did not run.
REFUSED = 126
#: Sessions open and close in these threads, not in the few of the event loop, which other parts of a program need.
_threads = ThreadPoolExecutor(max_workers=256, thread_name_prefix="kernelexec-call")
#: The errors of the scripts by their exit codes.
_NOT_FOUND, _DIRECTORY, _DENIED, _NOT_REGULAR = 41, 42, 43, 44
_ERRORS: Mapping[int, tuple[type[OSError], str]] = {
    _NOT_FOUND: (FileNotFoundError, "no such file"),
    _DIRECTORY: (IsADirectoryError, "is a directory"),
    _DENIED: (PermissionError, "permission denied"),
    _NOT_REGULAR: (OSError, "is not a plain file"),
}
_LOG_BYTES = 10_000
_READ = f"""\
if [ -d "$1" ]; then exit {_DIRECTORY}; fi
if [ ! -e "$1" ]; then exit {_NOT_FOUND}; fi
if [ ! -f "$1" ]; then exit {_NOT_REGULAR}; fi
if [ ! -r "$1" ]; then exit {_DENIED}; fi
exec cat -- "$1"
"""
_WRITE = f"""\
if [ -d "$1" ]; then exit {_DIRECTORY}; fi
if [ -e "$1" ] && [ ! -f "$1" ]; then exit {_NOT_REGULAR}; fi
mkdir -p -- "$2" || exit {_DENIED}
if [ -e "$1" ] && [ ! -w "$1" ]; then exit {_DENIED}; fi
exec cat > "$1"
"""


async def call_in_thread(call: Callable[[], T]) -> T:
    """Make a blocking call in a thread and wait for its outcome."""
    return await asyncio.get_running_loop().run_in_executor(_threads, copy_context().run, call)


async def await_result(session: Session, send: Callable[[AsyncSession], Awaitable[T]]) -> T:
    """Make a call of a session from any event loop. If the caller is cancelled, its cell is interrupted, and its state is kept.

    Raises:
        Exception: the errors of ``send``, and ``Closed``.
    """
    with interrupting_cells():
        return await await_target(session, send)


@dataclass(slots=True)
class ExactStreams:
    """The text of both streams as the program wrote it, with its carriage returns and escape sequences.

    What no reader sees, and what reorders text, is shown as escapes. Of each stream the first ``limit_bytes`` are kept;
    ``is_cut`` says that there was more.
    """

    limit_bytes: int
    is_cut: bool = False
    _content: dict[str, bytearray] = field(default_factory=lambda: {"stdout": bytearray(), "stderr": bytearray()})

    def add(self, output: Output) -> None:
        """Add a piece of output; the ``on_output`` of a call."""
        if isinstance(output, Stream) and output.name in self._content:
            content, piece = self._content[output.name], output.text.encode("utf-8", "backslashreplace")
            self.is_cut |= len(content) + len(piece) > self.limit_bytes
            content += piece[: self.limit_bytes - len(content)]

    @property
    def stdout(self) -> str:
        """The text of stdout."""
        return self._read("stdout")

    @property
    def stderr(self) -> str:
        """The text of stderr."""
        return self._read("stderr")

    def _read(self, name: str) -> str:
        return escape_unseen(self._content[name].decode("utf-8", "ignore"))  # the last character may be cut


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """The outcome of a command: its exact streams, and the session's result."""

    streams: ExactStreams
    result: ExecutionResult

    @property
    def exit_code(self) -> int:
        """The exit code; 126 if the command was refused, 1 if it has none."""
        if self.result.status == "aborted":
            return REFUSED
        return 1 if self.result.exit_code is None else self.result.exit_code

    @property
    def report(self) -> str:
        """What the caller must know besides the streams; see ``explain_end``."""
        return explain_end(self.result)


async def run_command(session: AsyncSession, command: str, *, limit_bytes: int, **options: Any) -> CommandOutcome:  # noqa: ANN401 - of ``execute_command``
    """Run a command that begins in the workspace; ``options`` are those of ``AsyncSession.execute_command``."""
    streams = ExactStreams(limit_bytes)
    result = await session.execute_command(command, work_dir=session.workspace, on_output=streams.add, **options)
    return CommandOutcome(streams, result)


def explain_end(result: ExecutionResult) -> str:
    """Return notes on a command that its output does not have: a refusal, a timeout, a lost or restored state; else empty."""
    if result.status == "aborted":
        return format_note(result.diagnosis.message if result.diagnosis is not None else result.text)
    has_notes = result.state in ("restored", "lost") or result.interrupted is not None
    return format_notes(model_notes(result)) if has_notes else ""


def join_report(text: str, report: str) -> str:
    """Return the output of a command with its report on a line of its own."""
    return f"{text}\n{report}" if report and text and not text.endswith("\n") else f"{text}{report}"


class TooLarge(OSError):
    """A file that is larger than the caller's limit."""


async def read_file(session: AsyncSession, path: str, *, limit_bytes: int | None = None) -> bytes:
    """Return the content of a file; a relative path is one of the workspace.

    Raises:
        FileNotFoundError, IsADirectoryError, PermissionError: as the session's commands see the path.
        TooLarge: the file is larger than ``limit_bytes``.
        TimeoutError: the transfer took longer than the session's timeout.
        OSError: the path is no plain file, or it cannot be read.
        KernelexecError: the session is closed, or a rule refuses the command.
    """
    content = bytearray()

    def receive(piece: bytes) -> None:
        if limit_bytes is not None and len(content) + len(piece) > limit_bytes:
            raise TooLarge(f"{path}: is larger than {limit_bytes} bytes.")
        content.extend(piece)

    await _run_script(session, _READ, path, on_stdout=receive)
    return bytes(content)


async def write_file(session: AsyncSession, path: str, content: bytes) -> None:
    """Write a file and its missing directories; a relative path is one of the workspace.

    An existing file keeps its rights and its other names.

    Raises:
        IsADirectoryError, PermissionError: as the session's commands see the path.
        TimeoutError: the transfer took longer than the session's timeout.
        OSError: the path is no plain file, or it cannot be written.
        KernelexecError: the session is closed, or a rule refuses the command.
    """
    await _run_script(session, _WRITE, path, posixpath.dirname(path) or ".", stdin=content)


async def _run_script(session: AsyncSession, script: str, path: str, *arguments: str, **options: Any) -> None:  # noqa: ANN401 - as above
    """Run a script for a path, and raise the error if it fails."""
    if "\0" in path or not path:
        raise FileNotFoundError(f"{path!r}: is not a path.")
    command = shlex.join(["/bin/sh", "-c", script, "sh", path, *arguments])
    outcome = await run_command(session, command, limit_bytes=_LOG_BYTES, **options)
    result = outcome.result
    if outcome.exit_code == 0 and result.ok:
        return
    if result.status == "aborted":
        raise KernelexecError(outcome.report)
    if result.interrupted == "timeout":
        raise TimeoutError(f"{path}: the transfer took too long.")
    if outcome.exit_code in _ERRORS:
        kind, text = _ERRORS[outcome.exit_code]
        raise kind(f"{path}: {text}.")
    text = escape_invisible(outcome.streams.stderr.strip()) or outcome.report
    is_denied = "Permission denied" in text or "Read-only file system" in text
    raise (PermissionError if is_denied else OSError)(f"{path}: {text}")
