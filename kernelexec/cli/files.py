"""The commands about files of a directory: a session's operations, with a session's refusals."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from kernelexec.cli.console import show_table
from kernelexec.cli.options import filled
from kernelexec.cli.stdio import CELL_FAILED, OURSELVES, eprint, here, write_any
from kernelexec.config import FileBounds
from kernelexec.errors import InvalidRequest
from kernelexec.results import FileList, FilesDeleted, FileText, FileWritten
from kernelexec.workspace import FileOperations, Workspace
from kernelexec.workspace.agent_files.access import Access
from kernelexec.workspace.agent_files.paths import FileRoot

files_app = typer.Typer(
    name="files",
    help="List, read, write and delete files as an agent may: beneath one directory, following no link.",
    no_args_is_help=True,
    add_completion=False,
)

_EPILOG = f"Exit status: 0; {OURSELVES} where something was refused or is not there."
_SOME = f"Exit status: 0; 1 where some files stay, each with its reason on stderr; {OURSELVES} where nothing could be done."
WorkDirOption = Annotated[
    str,
    typer.Option("--work-dir", metavar="DIRECTORY", callback=filled, help="The directory that paths are relative to."),
]
PathArgument = Annotated[str, typer.Argument(metavar="PATH", help="Relative to the directory, or absolute in it.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]


@files_app.command(name="list", epilog=_EPILOG)
def list_(
    path: Annotated[str, typer.Argument(metavar="[PATH]", help="A directory. Default: all of it.")] = ".",
    work_dir: WorkDirOption = ".",
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="List what is in its directories too.")] = False,
    pattern: Annotated[
        str | None, typer.Option("--pattern", metavar="GLOB", help="Only what matches, as '*.py' or 'data/**/*.csv'.")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """List a directory: kind, size and path of each entry."""
    listing = _operations(Path(work_dir)).list(path, recursive=recursive, pattern=pattern)
    if as_json:
        return _print(listing)
    show_table(("kind", "bytes", "path"), [[entry.kind, str(entry.size_bytes), entry.path] for entry in listing])
    if not listing.complete:
        eprint(f"{listing.path} holds more than is listed: name a directory in it, or a pattern")
    return 0


@files_app.command(epilog=_EPILOG)
def read(
    path: PathArgument,
    work_dir: WorkDirOption = ".",
    offset: Annotated[int, typer.Option("--offset", metavar="BYTES", help="Where to begin.")] = 0,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="BYTES", help="How much at most. Default: 1 MiB; stderr says how to go on.")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Print a file, or a piece of it, as text."""
    piece = _operations(Path(work_dir)).read(path, offset=offset, limit=limit)
    if as_json:
        return _print(piece)
    write_any(sys.stdout, piece.text)
    if piece.next_offset is not None:
        eprint(f"{piece.path} has {piece.total_bytes} bytes: read on with --offset {piece.next_offset}")
    return 0


@files_app.command(epilog=_EPILOG)
def write(
    path: PathArgument,
    text: Annotated[str | None, typer.Argument(metavar="[TEXT]", help="What to write. Default: what stdin gives.")] = None,
    work_dir: WorkDirOption = ".",
    append: Annotated[bool, typer.Option("--append", "-a", help="Add it to what is there.")] = False,
    as_json: JsonOption = False,
) -> int:
    """Write a file at once, or nothing of it; directories that are missing are made."""
    operations = _operations(Path(work_dir))
    content = _stdin(operations.bounds.write_bytes) if text is None else text
    done = operations.write(path, content, append=append)
    if as_json:
        return _print(done)
    eprint(f"{done.path} was {'made' if done.created else 'written'}: {done.size_bytes} bytes")
    return 0


@files_app.command(epilog=_SOME)
def delete(
    path: Annotated[str | None, typer.Argument(metavar="[PATH]", help="A file or directory; or give --include.")] = None,
    work_dir: WorkDirOption = ".",
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Delete a directory with all that is in it.")] = False,
    include: Annotated[
        list[str] | None,
        typer.Option("--include", metavar="GLOB", help="Delete the files that it matches, as '*.tmp'. Repeatable."),
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option("--exclude", metavar="GLOB", help="Keep what it matches all the same. Repeatable.")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Delete a file, a directory, or what patterns match; .git, .env, venv, node_modules and the like stay.

    Nobody asks whether you have read it: what a session's agent must have read first, you may delete.
    """
    if (path is None) == (not include) or (path is not None and exclude) or (include and recursive):
        raise InvalidRequest("Give either a path, with or without --recursive, or --include, with or without --exclude.")
    operations = _operations(Path(work_dir))
    if path is not None:
        done = operations.delete(path, recursive=recursive)
    else:
        done = operations.delete_many(include or [], exclude or [])
    if as_json:
        _print(done)
    else:
        write_any(sys.stdout, "".join(f"{deleted}\n" for deleted in done.deleted))
        for kept in done.refused:
            eprint(kept.why if kept.path in kept.why else f"{kept.path}: {kept.why}")
        if not done.complete:
            eprint("there is more than one call looks at: call again")
    return CELL_FAILED if done.refused or not done.complete else 0


def _operations(work_dir: Path) -> FileOperations:
    here()
    path = Workspace.at(work_dir.expanduser()).path
    return FileOperations(Access([FileRoot(path, str(path))]), FileBounds(read_before_delete=False))


def _stdin(most: int) -> bytes:
    """Read stdin, one byte more at most than could be written."""
    if sys.stdin is None:
        raise InvalidRequest("stdin is closed: there is nothing to write.")
    try:
        return sys.stdin.buffer.read(most + 1)
    except OSError as exc:
        message = f"stdin cannot be read: {exc.strerror}."
        raise InvalidRequest(message) from exc


def _print(result: FileList | FileText | FileWritten | FilesDeleted) -> int:
    fields: dict[str, Any] = result.to_dict()
    write_any(sys.stdout, json.dumps(fields) + "\n")
    return 0
