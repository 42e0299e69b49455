"""Files of a directory on the command line: the same operations, with the same refusals, as a session's."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from kernelexec.cli.status import CELL_FAILED
from kernelexec.cli.surroundings import here, say, write_any
from kernelexec.cli.table import show_table
from kernelexec.config import FileBounds
from kernelexec.errors import InvalidRequest
from kernelexec.results import FileList, FilesDeleted, FileText, FileWritten
from kernelexec.workspace import FileOperations, Workspace
from kernelexec.workspace.agent_files.access import Access
from kernelexec.workspace.agent_files.paths import Root


def list_directory(work_dir: Path, path: str, *, recursive: bool, pattern: str | None, as_json: bool) -> int:
    """Show what a directory holds; the exit status.

    Raises:
        InvalidRequest, FileRefused: it is not there, or nowhere that may be named.
    """
    found = _operations(work_dir).list(path, recursive=recursive, pattern=pattern)
    if as_json:
        return _print(found)
    show_table(("kind", "bytes", "path"), [[entry.kind, str(entry.size_bytes), entry.path] for entry in found])
    if not found.complete:
        say(f"{found.path} holds more than is listed: name a directory in it, or a pattern")
    return 0


def read_file(work_dir: Path, path: str, *, offset: int, limit: int | None, as_json: bool) -> int:
    """Print a piece of a file; the exit status.

    Raises:
        InvalidRequest, FileRefused: it is not there, no plain file, or nowhere that may be named.
    """
    found = _operations(work_dir).read(path, offset=offset, limit=limit)
    if as_json:
        return _print(found)
    write_any(sys.stdout, found.text)
    if found.next_offset is not None:
        say(f"{found.path} has {found.total_bytes} bytes: read on with --offset {found.next_offset}")
    return 0


def write_file(work_dir: Path, path: str, text: str | None, *, append: bool, as_json: bool) -> int:
    """Write a file; the exit status.

    Raises:
        InvalidRequest, FileRefused: the content or the path is none, or it cannot be written.
    """
    operations = _operations(work_dir)
    content = _stdin(operations.bounds.write_bytes) if text is None else text
    done = operations.write(path, content, append=append)
    if as_json:
        return _print(done)
    say(f"{done.path} was {'made' if done.created else 'written'}: {done.size_bytes} bytes")
    return 0


def delete_files(
    work_dir: Path, path: str | None, *, recursive: bool, include: list[str] | None, exclude: list[str] | None, as_json: bool
) -> int:
    """Delete a file, a directory, or what patterns match; the exit status: 1 where some of it stays.

    Raises:
        InvalidRequest, FileRefused: nothing was deleted.
    """
    if (path is None) == (not include) or (path is not None and exclude) or (include and recursive):
        raise InvalidRequest("Give either a path, with or without --recursive, or --include, with or without --exclude.")
    operations = _operations(work_dir)
    if path is not None:
        done = operations.delete(path, recursive=recursive)
    else:
        done = operations.delete_many(include or [], exclude or [])
    if as_json:
        _print(done)
    else:
        write_any(sys.stdout, "".join(f"{deleted}\n" for deleted in done.deleted))
        for kept in done.refused:
            say(kept.why if kept.path in kept.why else f"{kept.path}: {kept.why}")
        if not done.complete:
            say("there is more than one call looks at: call again")
    return CELL_FAILED if done.refused or not done.complete else 0


def _operations(work_dir: Path) -> FileOperations:
    here()
    path = Workspace.at(work_dir.expanduser()).path
    return FileOperations(Access([Root(path, str(path))]), FileBounds(read_before_delete=False))


def _stdin(most: int) -> bytes:
    """What stdin gives, and no more of it than could be written."""
    if sys.stdin is None:
        raise InvalidRequest("stdin is closed: there is nothing to write.")
    try:
        return sys.stdin.buffer.read(most + 1)
    except OSError as exc:
        message = f"stdin cannot be read: {exc.strerror}."
        raise InvalidRequest(message) from exc


def _print(found: FileList | FileText | FileWritten | FilesDeleted) -> int:
    said: dict[str, Any] = found.to_dict()
    write_any(sys.stdout, json.dumps(said) + "\n")
    return 0
