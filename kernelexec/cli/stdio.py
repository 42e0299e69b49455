"""The shell's side of a command: streams, the current directory, signals, exit statuses."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import anyio

from kernelexec.cancellation import read_interruptibly
from kernelexec.cli.terminal import TerminalStream, format_remark
from kernelexec.errors import InvalidRequest
from kernelexec.provisioning import platform

if TYPE_CHECKING:
    from kernelexec.results import ExecutionResult
    from kernelexec.session import AsyncSession

SIGNAL_BASE = 128
CELL_FAILED = 1
TIMED_OUT = 124
#: A failure of kernelexec and not of the code, as in ``timeout``, ``env`` and ``docker run``.
OWN_FAILURE = 125
#: The shell's status of a command that exists and must not be executed.
REFUSED = 126
INTERRUPTED = SIGNAL_BASE + signal.SIGINT
#: The reader of the output has closed it.
OUTPUT_CLOSED = SIGNAL_BASE + signal.SIGPIPE

STATUS_HELP = (
    f"{TIMED_OUT} after a timeout; {REFUSED} for a command that the rules refuse; {INTERRUPTED} after Ctrl+C; "
    f"{OWN_FAILURE} if kernelexec itself failed: wrong usage, bad input, no kernel, output that cannot be written."
)


class CommandFailed(Exception):
    """The failure of a command: the exit status and a line with the reason, which may be empty."""

    def __init__(self, message: str, status: int = OWN_FAILURE) -> None:
        super().__init__(message)
        self.status = status


def cell_status(result: ExecutionResult) -> int:
    """Return the exit status for a cell: of a command, a dead kernel or an exit in code; else 0 or 1.

    A refused cell is 126, another cell that never ran 130.
    """
    if result.ok:
        return 0
    if result.status == "aborted":
        return REFUSED if result.diagnosis is not None and result.diagnosis.kind == "refused" else INTERRUPTED
    return (result.exit_status or result.exit_code or CELL_FAILED) & 0xFF or CELL_FAILED


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def unblock_signals() -> None:
    """Unblock the signals that end a command: a parent may have blocked them. Ignored signals stay ignored, as for nohup."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (*_SIGNALS, signal.SIGCHLD))


def open_std_streams() -> None:
    """Open /dev/null for each closed stream, so no other file gets the stream's number.

    Raises:
        CommandFailed: stdout is not open for writing.
    """
    closed = {name for name in ("stdin", "stdout", "stderr") if getattr(sys, name) is None}
    for name in ("stdin", "stdout", "stderr"):
        if name in closed:
            fd = os.open(os.devnull, os.O_RDWR)  # the lowest free number is the stream's own
            os.set_inheritable(fd, True)
            if name != "stdin":  # readers of stdin report that it is closed
                setattr(sys, name, os.fdopen(fd, "w", closefd=False))
    if "stdout" in closed or platform.is_read_only(sys.stdout.fileno()):
        raise CommandFailed("stdout must be open for writing. To discard results, redirect it to /dev/null.")


def current_directory() -> Path:
    """Return the current directory.

    Raises:
        CommandFailed: the directory was removed.
    """
    try:
        return Path.cwd()
    except OSError as exc:
        raise CommandFailed(f"The current directory cannot be used: {exc.strerror}. Change to an existing one.") from exc


def handled_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that end a command. Signals ignored from the start, as by nohup, stay ignored."""
    return tuple(signum for signum in _SIGNALS if signal.getsignal(signum) is not signal.SIG_IGN)


def write_text(stream: TextIO, text: str, *, is_filtered: bool = False) -> None:
    """Write and flush a text; characters outside of the stream's encoding are escaped.

    On a terminal only colours take effect, unless the text ``is_filtered``: see ``terminal``.

    Raises:
        CommandFailed: the stream cannot be written.
    """
    write = stream.write_filtered if is_filtered and isinstance(stream, TerminalStream) else stream.write
    with write_guard(stream):
        try:
            write(text)
        except UnicodeEncodeError:
            encoding = stream.encoding or "ascii"
            write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()


def encode_json(value: object) -> str:
    """Return a value as JSON for stdout, in ASCII for a terminal, and where the encoding lacks a character."""
    if not isinstance(sys.stdout, TerminalStream):
        text = json.dumps(value, ensure_ascii=False)
        with suppress(UnicodeEncodeError):
            text.encode(sys.stdout.encoding or "ascii")
            return text
    return json.dumps(value)


def print_json(value: object) -> int:
    """Write a value as a line of JSON to stdout, and return exit status 0."""
    write_text(sys.stdout, json.dumps(value) + "\n")
    return 0


@contextmanager
def write_guard(stream: TextIO) -> Iterator[None]:
    """Turn failed writes to a stream into ``CommandFailed``."""
    try:
        yield
    except BrokenPipeError as exc:
        raise CommandFailed("", OUTPUT_CLOSED) from exc
    except OSError as exc:
        raise CommandFailed(f"{stream.name.strip('<>')} cannot be written: {exc.strerror}.") from exc


def read_stdin(verb: str, limit_bytes: int | None = None) -> bytes:
    """Return the content of stdin, or the first ``limit_bytes`` of it; ``verb`` is the intended use, for an error.

    Raises:
        InvalidRequest: stdin is closed, or cannot be read.
    """
    if sys.stdin is None:
        message = f"stdin is closed: there is nothing to {verb}."
        raise InvalidRequest(message)
    try:
        return read_interruptibly(sys.stdin.fileno(), limit_bytes)
    except OSError as exc:
        message = f"stdin cannot be read: {exc.strerror}."
        raise InvalidRequest(message) from exc


def eprint(line: str) -> None:
    """Write a line to stderr; a closed stderr is ignored."""
    with suppress(CommandFailed):
        write_text(sys.stderr, format_remark(sys.stderr, line), is_filtered=True)


def flush_std_streams() -> None:
    """Flush stdout and stderr, and discard unwritable output, which Python would try to write again at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextmanager
def handle_signals(handle: Callable[[signal.Signals, anyio.CancelScope], None]) -> Iterator[None]:
    """Handle signals in the event loop; ``handle`` gets the signal and the cancel scope of this block."""
    loop, signals = asyncio.get_running_loop(), handled_signals()
    with anyio.CancelScope() as scope:
        for signum in signals:
            loop.add_signal_handler(signum, handle, signum, scope)
        try:
            yield
        finally:
            for signum in signals:
                loop.remove_signal_handler(signum)


class Signals:
    """Signal handling of a command, which ends through the event loop so that everything is cleaned up."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.was_interrupted = False
        """Whether Ctrl+C has interrupted cells; the next one ends the command."""
        self._sessions: list[AsyncSession] = []

    @contextmanager
    def follow(self, session: AsyncSession) -> Iterator[None]:
        """Let the first Ctrl+C interrupt the session's cell, while the block runs."""
        self._sessions.append(session)
        try:
            yield
        finally:
            self._sessions.remove(session)

    def handle(self) -> AbstractContextManager[None]:
        """Cancel the block at a signal; ``status`` is then the shell's: 128 plus the signal's number."""
        return handle_signals(self._on_signal)

    def _on_signal(self, signum: signal.Signals, scope: anyio.CancelScope) -> None:
        busy = [session for session in self._sessions if session.busy]
        if signum == signal.SIGINT and not self.was_interrupted and busy:
            self.was_interrupted = True
            eprint("interrupting the cell" + "s" * (len(busy) > 1))
            for session in busy:
                session.request_interrupt()
            return
        self.status = SIGNAL_BASE + signum
        scope.cancel()
