"""The shell's side of a command: streams, the current directory, signals, exit statuses."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TextIO

import anyio

from kernelexec.provisioning import platform
from kernelexec.results import ExecutionResult
from kernelexec.session import AsyncSession

SIGNAL_BASE = 128
CELL_FAILED = 1
TIMED_OUT = 124
#: What failed is kernelexec and not the code, as ``timeout``, ``env`` and ``docker run`` say it of themselves.
OURSELVES = 125
#: As a shell says of what is there and may not be executed.
REFUSED = 126
INTERRUPTED = SIGNAL_BASE + signal.SIGINT
#: Nobody reads the output any more.
UNREAD = SIGNAL_BASE + signal.SIGPIPE

MEANING = (
    f"{TIMED_OUT} after a timeout; {REFUSED} for a command that the rules refuse; {INTERRUPTED} after Ctrl+C; "
    f"{OURSELVES} where kernelexec itself failed: wrong usage, bad input, no kernel, output that cannot be written."
)


class CommandFailed(Exception):
    """The end of a command: its exit status and the line with the reason, which may be empty."""

    def __init__(self, message: str, status: int = OURSELVES) -> None:
        super().__init__(message)
        self.status = status


def is_refused(result: ExecutionResult) -> bool:
    """Return whether the rules refused a cell."""
    return result.status == "aborted" and result.diagnosis is not None and result.diagnosis.kind == "refused"


def of_cell(result: ExecutionResult) -> int:
    """Return the exit code of a command or of a kernel that ended; of code 0 or 1."""
    if result.ok:
        return 0
    if result.status == "aborted":
        return REFUSED if is_refused(result) else INTERRUPTED
    return (result.exit_code or CELL_FAILED) & 0xFF or CELL_FAILED


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def open_std_streams() -> None:
    """Open /dev/null for each closed stream, so that no file of ours gets its number.

    Raises:
        CommandFailed: stdout is not open for writing, and results go there.
    """
    closed = {name for name in ("stdin", "stdout", "stderr") if getattr(sys, name) is None}
    for name in ("stdin", "stdout", "stderr"):
        if name in closed:
            fd = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: the stream's own
            os.set_inheritable(fd, True)
            if name != "stdin":  # whoever reads it is to be told that it is closed
                setattr(sys, name, os.fdopen(fd, "w", closefd=False))
    if "stdout" in closed or platform.read_only(sys.stdout.fileno()):
        raise CommandFailed("stdout is not open for writing: results go there. If nobody wants them, send it to /dev/null.")


def here() -> Path:
    """Return the current directory.

    Raises:
        CommandFailed: it was removed.
    """
    try:
        return Path.cwd()
    except OSError as exc:
        message = f"The current directory cannot be used: {exc.strerror}. Change to one that is there."
        raise CommandFailed(message) from exc


def handled_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that end a command. Signals that were ignored at its start, as by nohup, stay ignored."""
    return tuple(signum for signum in _SIGNALS if signal.getsignal(signum) is not signal.SIG_IGN)


def write_any(stream: TextIO, text: str) -> None:
    """Write and flush; what the stream's encoding cannot say is escaped.

    Raises:
        CommandFailed: the stream takes no more.
    """
    with writing(stream):
        try:
            stream.write(text)
        except UnicodeEncodeError:
            encoding = stream.encoding or "ascii"
            stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()


@contextmanager
def writing(stream: TextIO) -> Iterator[None]:
    """End the command if the stream takes no more."""
    try:
        yield
    except BrokenPipeError as exc:
        raise CommandFailed("", UNREAD) from exc
    except OSError as exc:
        message = f"{stream.name.strip('<>')} cannot be written: {exc.strerror}."
        raise CommandFailed(message) from exc


def eprint(line: str) -> None:
    """Write a line to stderr; a closed stderr is no failure."""
    with suppress(CommandFailed):
        write_any(sys.stderr, f"kernelexec: {line}\n")


def flush_std_streams() -> None:
    """Drop output that a stream could not take, so that Python does not try again, with a complaint, when it ends."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextmanager
def heard(handle: Callable[[signal.Signals, anyio.CancelScope], None]) -> Iterator[None]:
    """Have the signals of a terminal and of a shell handled in the event loop, with the scope that ends this block."""
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
    """Handler of signals during one command. It ends through the event loop, so that nothing is left behind."""

    def __init__(self) -> None:
        self.session: AsyncSession | None = None
        self.status: int | None = None
        self._interrupted = False

    def listening(self) -> AbstractContextManager[None]:
        """End the block when told to; ``status`` is then what a shell would say: 128 and the signal's number."""
        return heard(self._on_signal)

    def _on_signal(self, signum: signal.Signals, scope: anyio.CancelScope) -> None:
        if signum == signal.SIGINT and not self._interrupted and self.session is not None and self.session.busy:
            self._interrupted = True
            eprint("interrupting the cell")
            self.session.request_interrupt()
            return
        self.status = SIGNAL_BASE + signum
        scope.cancel()
