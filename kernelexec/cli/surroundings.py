"""What a shell hands over: three streams and a directory, any of which may be closed, full, unread or gone; and signals."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from kernelexec.cli.status import UNREAD, CommandFailed
from kernelexec.provisioning import platform

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def prepare() -> None:
    """Put /dev/null in the place of a stream that is closed, so that no file of ours is taken for it.

    Raises:
        CommandFailed: stdout is not open for writing, and results go there.
    """
    closed = {name for name in ("stdin", "stdout", "stderr") if getattr(sys, name) is None}
    for name in ("stdin", "stdout", "stderr"):
        if name in closed:
            fd = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: the stream's own
            os.set_inheritable(fd, True)  # noqa: FBT003 - a stream goes to programs too
            if name != "stdin":  # whoever reads it is to be told that it is closed
                setattr(sys, name, os.fdopen(fd, "w", closefd=False))
    if "stdout" in closed or platform.read_only(sys.stdout.fileno()):
        raise CommandFailed("stdout is not open for writing: results go there. If nobody wants them, send it to /dev/null.")


def here() -> Path:
    """The current directory.

    Raises:
        CommandFailed: it was removed.
    """
    try:
        return Path.cwd()
    except OSError as exc:
        message = f"The current directory cannot be used: {exc.strerror}. Change to one that is there."
        raise CommandFailed(message) from exc


def minded() -> tuple[signal.Signals, ...]:
    """The signals that end a command. Those that it was started without, as without SIGHUP by nohup, stay ignored."""
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
    """Whatever writes to the stream; where it takes no more, the command ends."""
    try:
        yield
    except BrokenPipeError as exc:
        raise CommandFailed("", UNREAD) from exc
    except OSError as exc:
        message = f"{stream.name.strip('<>')} cannot be written: {exc.strerror}."
        raise CommandFailed(message) from exc


def say(line: str) -> None:
    """A line of our own on stderr; if nobody takes it, there is nobody to be told."""
    with suppress(CommandFailed):
        write_any(sys.stderr, f"kernelexec: {line}\n")


def settle() -> None:
    """What a stream could not take must not be tried again, with a complaint, when Python ends."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
