"""Whole files at any path that a session's commands can reach, with the errors of the operating system.

The content passes through a file of the workspace and a command copies it, so it is exact, appears in no output and in no
record, and the copy has the rights of the session's commands.
"""

from __future__ import annotations

import posixpath
import shlex
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from kernelexec.adapters.shared.commands import CommandOutcome, run_command
from kernelexec.blocking import Session
from kernelexec.errors import KernelexecError

_NOT_FOUND, _DIRECTORY, _DENIED, _NOT_REGULAR, _TOO_LARGE = 41, 42, 43, 44, 45
_LOG_BYTES = 10_000

_READ = f"""\
if [ -d "$path" ]; then exit {_DIRECTORY}; fi
if [ ! -e "$path" ]; then exit {_NOT_FOUND}; fi
if [ ! -f "$path" ]; then exit {_NOT_REGULAR}; fi
if [ ! -r "$path" ]; then exit {_DENIED}; fi
if [ "$limit" -ge 0 ] && [ "$(wc -c < "$path")" -gt "$limit" ]; then exit {_TOO_LARGE}; fi
cat -- "$path" > "$copy" || {{ rm -f -- "$copy"; exit 1; }}
"""
_WRITE = f"""\
if [ -d "$path" ]; then exit {_DIRECTORY}; fi
if [ -e "$path" ] && [ ! -f "$path" ]; then exit {_NOT_REGULAR}; fi
mkdir -p -- "$parent" || exit {_DENIED}
if [ -e "$path" ] && [ ! -w "$path" ]; then exit {_DENIED}; fi
exec cat -- "$copy" > "$path"
"""


class TooLarge(OSError):
    """A file that is larger than the caller's limit."""


def read_file(session: Session, path: str, *, limit_bytes: int = -1) -> bytes:
    """Return the content of a file; a relative path is one of the workspace.

    Raises:
        FileNotFoundError, IsADirectoryError, PermissionError: as the session's commands see the path.
        TooLarge: the file is larger than ``limit_bytes``.
        TimeoutError: the copy took longer than the session's timeout.
        OSError: the path is no plain file, or it cannot be read.
        KernelexecError: the session is closed, or a rule refuses the copy.
    """
    with _copy_name(session) as name:
        _copy(session, _READ, path, name, f"limit={limit_bytes}")
        content = bytearray()
        offset: int | None = 0
        while offset is not None:
            page = session.files.read_bytes(name, offset=offset)
            content += page.content
            offset = page.next_offset
        return bytes(content)


def write_file(session: Session, path: str, content: bytes) -> None:
    """Write a file and its missing directories; a relative path is one of the workspace.

    An existing file keeps its rights and its other names.

    Raises:
        IsADirectoryError, PermissionError: as the session's commands see the path.
        TimeoutError: the copy took longer than the session's timeout.
        OSError: the path is no plain file, or it cannot be written.
        KernelexecError: the session is closed, or a rule refuses the copy.
    """
    limit = session.files.bounds.write_bytes
    with _copy_name(session) as name:
        session.files.write(name, content[:limit])
        for start in range(limit, len(content), limit):
            session.files.write(name, content[start : start + limit], append=True)
        _copy(session, _WRITE, path, name, f"parent={shlex.quote(posixpath.dirname(path) or '.')}")


@contextmanager
def _copy_name(session: Session) -> Iterator[str]:
    """Yield the name of a file of the workspace, which is deleted at the end."""
    name = f".kernelexec-transfer-{uuid.uuid4().hex}"
    try:
        yield name
    finally:
        session.files.delete_many(name)


def _copy(session: Session, script: str, path: str, name: str, *assignments: str) -> None:
    if "\0" in path or not path:
        raise FileNotFoundError(f"{path!r}: is not a path.")
    settings = [f"path={shlex.quote(path)}", f"copy={shlex.quote(name)}", *assignments]
    command = f"/bin/sh -c {shlex.quote('; '.join(settings) + chr(10) + script)}"
    outcome = run_command(session, command, limit_bytes=_LOG_BYTES, work_dir=session.workspace)
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
        case 45:
            raise TooLarge(f"{path}: is too large.")
    text = outcome.streams.stderr.strip() or outcome.report
    if "Permission denied" in text or "Read-only file system" in text:
        raise PermissionError(f"{path}: {text}")
    raise OSError(f"{path}: {text}")
