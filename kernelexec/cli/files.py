"""The commands about files of a workspace, and their options; what they do is in ``filing``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelexec.cli.options import filled
from kernelexec.cli.status import OURSELVES

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
    from kernelexec.cli.filing import list_directory  # noqa: PLC0415 - imported where it is needed only

    return list_directory(Path(work_dir), path, recursive=recursive, pattern=pattern, as_json=as_json)


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
    from kernelexec.cli.filing import read_file  # noqa: PLC0415 - see list_

    return read_file(Path(work_dir), path, offset=offset, limit=limit, as_json=as_json)


@files_app.command(epilog=_EPILOG)
def write(
    path: PathArgument,
    text: Annotated[str | None, typer.Argument(metavar="[TEXT]", help="What to write. Default: what stdin gives.")] = None,
    work_dir: WorkDirOption = ".",
    append: Annotated[bool, typer.Option("--append", "-a", help="Add it to what is there.")] = False,
    as_json: JsonOption = False,
) -> int:
    """Write a file at once, or nothing of it; directories that are missing are made."""
    from kernelexec.cli.filing import write_file  # noqa: PLC0415 - see list_

    return write_file(Path(work_dir), path, text, append=append, as_json=as_json)


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
    from kernelexec.cli.filing import delete_files  # noqa: PLC0415 - see list_

    return delete_files(Path(work_dir), path, recursive=recursive, include=include, exclude=exclude, as_json=as_json)
