"""The file commands: a session's file operations on a directory, with the same refusals."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from kernelexec.cli.console import show_table
from kernelexec.cli.options import ResultJsonOption, not_blank, option
from kernelexec.cli.stdio import CELL_FAILED, OWN_FAILURE, current_directory, eprint, print_json, read_stdin, write_text
from kernelexec.errors import InvalidRequest
from kernelexec.workspace import FileOperations, Workspace
from kernelexec.workspace.agent_files.access import Access, FileRoot
from kernelexec.workspace.agent_files.operations import WRITE_BYTES

files_app = typer.Typer(
    name="files",
    help="List, read, write and delete files with an agent's rights: in one directory, without following links.",
    no_args_is_help=True,
    add_completion=False,
)

_EPILOG = f"Exit status: 0; {OWN_FAILURE} if a path is refused or missing."
_DELETE_EPILOG = (
    f"Exit status: 0; 1 if some files were not deleted, with the reasons on stderr; {OWN_FAILURE} if the request failed."
)
WorkDirOption = Annotated[
    str,
    option("--work-dir", "The directory that paths are relative to.", "DIRECTORY", callback=not_blank),
]
PathArgument = Annotated[
    str, typer.Argument(metavar="PATH", help="A path relative to the directory, or an absolute one in it.")
]


@files_app.command(name="list", epilog=_EPILOG)
def list_(
    path: Annotated[str, typer.Argument(metavar="[PATH]", help="A directory. Default: the whole directory.")] = ".",
    work_dir: WorkDirOption = ".",
    recursive: Annotated[bool, option("--recursive -r", "List subdirectories too.")] = False,
    pattern: Annotated[
        str | None, option("--pattern", "List matching entries only, as '*.py' or 'data/**/*.csv'.", "GLOB")
    ] = None,
    as_json: ResultJsonOption = False,
) -> int:
    """List a directory: kind, size and path of each entry."""
    listing = _operations(Path(work_dir)).list(path, recursive=recursive, pattern=pattern)
    if as_json:
        return print_json(listing.to_dict())
    show_table(("kind", "bytes", "path"), [[entry.kind, str(entry.size_bytes), entry.path] for entry in listing])
    if not listing.complete:
        eprint(f"{listing.path} has more entries: list a subdirectory, or use a pattern")
    return 0


@files_app.command(epilog=_EPILOG)
def read(
    path: PathArgument,
    work_dir: WorkDirOption = ".",
    offset: Annotated[int, option("--offset", "The offset of the first byte.", "BYTES")] = 0,
    limit: Annotated[
        int | None,
        option("--limit", "The number of bytes at most. Default: 1 MiB; stderr shows how to continue.", "BYTES"),
    ] = None,
    as_json: ResultJsonOption = False,
) -> int:
    """Print a file, or a part of it, as text."""
    piece = _operations(Path(work_dir)).read(path, offset=offset, limit=limit)
    if as_json:
        return print_json(piece.to_dict())
    write_text(sys.stdout, piece.text)
    if piece.next_offset is not None:
        eprint(f"{piece.path} has {piece.total_bytes} bytes: continue with --offset {piece.next_offset}")
    return 0


@files_app.command(epilog=_EPILOG)
def write(
    path: PathArgument,
    text: Annotated[str | None, typer.Argument(metavar="[TEXT]", help="The text to write. Default: stdin.")] = None,
    work_dir: WorkDirOption = ".",
    append: Annotated[bool, option("--append -a", "Append to the file.")] = False,
    as_json: ResultJsonOption = False,
) -> int:
    """Write a file atomically, and create missing directories."""
    operations = _operations(Path(work_dir))
    content = read_stdin("write", WRITE_BYTES + 1) if text is None else text
    done = operations.write(path, content, append=append)
    if as_json:
        return print_json(done.to_dict())
    eprint(f"{done.path} was {'created' if done.created else 'written'}: {done.size_bytes} bytes")
    return 0


@files_app.command(epilog=_DELETE_EPILOG)
def delete(
    path: Annotated[str | None, typer.Argument(metavar="[PATH]", help="A file or directory; or use --include.")] = None,
    work_dir: WorkDirOption = ".",
    recursive: Annotated[bool, option("--recursive -r", "Delete a directory with its contents.")] = False,
    include: Annotated[
        list[str] | None,
        option("--include", "Delete matching files, as '*.tmp'. Repeatable.", "GLOB"),
    ] = None,
    exclude: Annotated[list[str] | None, option("--exclude", "Keep matching files. Repeatable.", "GLOB")] = None,
    as_json: ResultJsonOption = False,
) -> int:
    """Delete a file, a directory, or all files that match patterns; .git, .env, venv, node_modules and the like are kept.

    Unlike an agent in a session, you need not read a file before you delete it.
    """
    if (path is None) == (not include) or (path is not None and exclude) or (include and recursive):
        raise InvalidRequest("Use either a path, with or without --recursive, or --include, with or without --exclude.")
    operations = _operations(Path(work_dir))
    if path is not None:
        done = operations.delete(path, recursive=recursive)
    else:
        done = operations.delete_many(include or [], exclude or [])
    if as_json:
        print_json(done.to_dict())
    else:
        write_text(sys.stdout, "".join(f"{deleted}\n" for deleted in done.deleted))
        for kept in done.refused:
            eprint(kept.reason if kept.path in kept.reason else f"{kept.path}: {kept.reason}")
        if not done.complete:
            eprint("not all entries were examined: run the command again")
    return CELL_FAILED if done.refused or not done.complete else 0


def _operations(work_dir: Path) -> FileOperations:
    current_directory()
    path = Workspace.at(os.path.expanduser(work_dir)).path  # noqa: PTH111 - Path's own raises RuntimeError for no user
    return FileOperations(Access([FileRoot(path, str(path))]), read_before_delete=False)
