"""Whole files at any path that a session's commands can reach, with the errors of the operating system.

The content is the standard input or output of a command, as bytes, so it is exact, is in no record, and has the rights of the
session's commands.
"""

from __future__ import annotations

import posixpath
import shlex
from typing import NoReturn

from kernelexec.adapters.shared.commands import CommandOutcome, run_command
from kernelexec.blocking import Session
from kernelexec.errors import KernelexecError
from kernelexec.untrusted_text import escape_invisible

_NOT_FOUND, _DIRECTORY, _DENIED, _NOT_REGULAR = 41, 42, 43, 44
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


class TooLarge(OSError):
    """A file that is larger than the caller's limit."""


def read_file(session: Session, path: str, *, limit_bytes: int | None = None) -> bytes:
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

    _check(
        run_command(session, _script(_READ, path), limit_bytes=_LOG_BYTES, on_stdout=receive, work_dir=session.workspace), path
    )
    return bytes(content)


def write_file(session: Session, path: str, content: bytes) -> None:
    """Write a file and its missing directories; a relative path is one of the workspace.

    An existing file keeps its rights and its other names.

    Raises:
        IsADirectoryError, PermissionError: as the session's commands see the path.
        TimeoutError: the transfer took longer than the session's timeout.
        OSError: the path is no plain file, or it cannot be written.
        KernelexecError: the session is closed, or a rule refuses the command.
    """
    command = _script(_WRITE, path, posixpath.dirname(path) or ".")
    _check(run_command(session, command, limit_bytes=_LOG_BYTES, stdin=content, work_dir=session.workspace), path)


def _script(script: str, path: str, *arguments: str) -> str:
    if "\0" in path or not path:
        raise FileNotFoundError(f"{path!r}: is not a path.")
    return shlex.join(["/bin/sh", "-c", script, "sh", path, *arguments])


def _check(outcome: CommandOutcome, path: str) -> None:
    if outcome.exit_code != 0 or not outcome.result.ok:
        _raise_error(outcome, path)


def _raise_error(outcome: CommandOutcome, path: str) -> NoReturn:
    match outcome.exit_code:
        case _ if outcome.result.status == "aborted":
            raise KernelexecError(outcome.report)
        case _ if outcome.result.interrupted == "timeout":
            raise TimeoutError(f"{path}: the transfer took too long.")
        case 41:
            raise FileNotFoundError(f"{path}: no such file.")
        case 42:
            raise IsADirectoryError(f"{path}: is a directory.")
        case 43:
            raise PermissionError(f"{path}: permission denied.")
        case 44:
            raise OSError(f"{path}: is not a plain file.")
    text = escape_invisible(outcome.streams.stderr.strip()) or outcome.report
    if "Permission denied" in text or "Read-only file system" in text:
        raise PermissionError(f"{path}: {text}")
    raise OSError(f"{path}: {text}")
