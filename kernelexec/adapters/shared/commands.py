"""Calls of a blocking session for frameworks: from any event loop, with the exact output of commands, or of whole files.

A cancelled call interrupts only the execution of this call. The content of a file is the standard input or output of a command,
as bytes. So the content is exact and in no record, access has the rights of the session's commands, and errors are those of the
operating system.
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
mkdir -p -- "$2" || exit 1
if [ -e "$1" ] && [ ! -w "$1" ]; then exit {_DENIED}; fi
exec cat > "$1"
"""


async def call_in_thread(call: Callable[[], T]) -> T:
    """Make a blocking call in a thread and wait for the outcome."""
    return await asyncio.get_running_loop().run_in_executor(_threads, copy_context().run, call)


async def await_result(session: Session, send: Callable[[AsyncSession], Awaitable[T]]) -> T:
    """Make a call of a session from any event loop. A cancelled call interrupts the cell; the state is kept.

    Raises:
        Exception: the errors of ``send``, and ``Closed``.
    """
    # Set here, in the caller's context: without it a cancelled caller only stops waiting, and the cell goes on.
    with interrupting_cells():
        return await await_target(session, send)


@dataclass(slots=True)
class ExactStreams:
    """The text of both streams as the program wrote it, with carriage returns and escape sequences.

    Invisible characters and controls of the text's order are shown as escapes. The first ``limit_bytes`` of each stream are
    kept; ``is_cut`` is True if there was more.
    """

    limit_bytes: int
    is_cut: bool = False
    _content: dict[str, bytearray] = field(default_factory=lambda: {"stdout": bytearray(), "stderr": bytearray()})

    def add(self, output: Output) -> None:
        """Add a piece of output; the ``on_output`` of a call."""
        if isinstance(output, Stream) and output.name in self._content:
            content, piece = self._content[output.name], output.text.encode("utf-8", "backslashreplace")
            self.is_cut |= len(content) + len(piece) > self.limit_bytes
            content += piece[: self.limit_bytes - len(content)]  # never negative: the length stops at the limit

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
    """The outcome of a command: the exact streams, and the session's result."""

    streams: ExactStreams
    result: ExecutionResult

    @property
    def exit_code(self) -> int:
        """The exit code; 126 for a refused command, 1 for a command without an exit code."""
        if self.result.status == "aborted":
            return REFUSED
        return 1 if self.result.exit_code is None else self.result.exit_code

    @property
    def report(self) -> str:
        """A report for the caller beside the streams; see ``explain_end``."""
        return explain_end(self.result)


async def run_command(session: AsyncSession, command: str, *, limit_bytes: int, **options: Any) -> CommandOutcome:  # noqa: ANN401 - of ``execute_command``
    """Run a command in the workspace; ``options`` are those of ``AsyncSession.execute_command``."""
    # By `on_output`, and not from the result: that has carriage returns applied, and its middle cut out.
    streams = ExactStreams(limit_bytes)
    result = await session.execute_command(command, work_dir=session.workspace, on_output=streams.add, **options)
    return CommandOutcome(streams, result)


def explain_end(result: ExecutionResult) -> str:
    """Return notes on the end of a command: a refusal, a timeout, a lost or restored state; else an empty text."""
    if result.status == "aborted":
        return format_note(result.diagnosis.message if result.diagnosis is not None else result.text)
    has_notes = result.state in ("restored", "lost") or result.interrupted is not None
    return format_notes(model_notes(result)) if has_notes else ""


def join_report(text: str, report: str) -> str:
    """Return the output of a command with the report on a separate line."""
    return f"{text}\n{report}" if report and text and not text.endswith("\n") else f"{text}{report}"


class TooLarge(OSError):
    """A file above the caller's limit."""


async def read_file(session: AsyncSession, path: str, *, limit_bytes: int | None = None) -> bytes:
    """Return the content of a file. A relative path begins in the workspace.

    Raises:
        FileNotFoundError, IsADirectoryError, PermissionError: as the session's commands see the path.
        TooLarge: the file is larger than ``limit_bytes``.
        TimeoutError: the transfer took longer than the session's timeout.
        OSError: the path is not a plain file, or is unreadable.
        KernelexecError: the session is closed, or a rule refuses the command.
    """
    content = bytearray()

    def receive(piece: bytes) -> None:
        # Counted while it comes: a size asked before may be stale, and some files, as in /proc, have none.
        if limit_bytes is not None and len(content) + len(piece) > limit_bytes:
            raise TooLarge(f"{path}: is larger than {limit_bytes} bytes.")
        content.extend(piece)

    await _run_script(session, _READ, path, on_stdout=receive)
    return bytes(content)


async def write_file(session: AsyncSession, path: str, content: bytes) -> None:
    """Write a file and missing directories. A relative path begins in the workspace.

    An existing file keeps permissions and hard links.

    Raises:
        IsADirectoryError, PermissionError: as the session's commands see the path.
        TimeoutError: the transfer took longer than the session's timeout.
        OSError: the path is not a plain file, or cannot be written.
        KernelexecError: the session is closed, or a rule refuses the command.
    """
    await _run_script(session, _WRITE, path, posixpath.dirname(path) or ".", stdin=content)


async def _run_script(session: AsyncSession, script: str, path: str, *arguments: str, **options: Any) -> None:  # noqa: ANN401 - as above
    """Run a script for a path, and raise the error of a failure."""
    # The path is an argument, and never part of the script: no character of it needs a quote there.
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
