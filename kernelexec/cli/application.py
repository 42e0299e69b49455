"""The commands that run code, and the entry point."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from kernelexec.cli.config import commands as config_app
from kernelexec.cli.file_commands import files_app
from kernelexec.cli.image import image_app
from kernelexec.cli.kernelspec import commands as kernelspec
from kernelexec.cli.mcp import mcp_app
from kernelexec.cli.options import (
    ONE_COMMAND_SETTINGS,
    ImageOption,
    IsolationOption,
    IsolationOptions,
    JsonOption,
    PythonOption,
    TimeoutOption,
    WorkDirOption,
    not_blank,
    with_isolation_options,
)
from kernelexec.cli.servers import server_app
from kernelexec.cli.stdio import (
    INTERRUPTED,
    OUTPUT_CLOSED,
    OWN_FAILURE,
    STATUS_HELP,
    CommandFailed,
    eprint,
    flush_std_streams,
    open_std_streams,
    write_text,
)
from kernelexec.errors import KernelexecError

_UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # typer exports no more of click's errors than this one

app = typer.Typer(
    name="kernelexec",
    help="Run code and shell commands in a persistent kernel.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(image_app)
app.add_typer(files_app)
app.add_typer(kernelspec)
app.add_typer(config_app)
app.add_typer(server_app)
app.add_typer(mcp_app)


def _print_version(value: bool) -> None:
    if value:
        write_text(sys.stdout, f"kernelexec {importlib.metadata.version('kernelexec')}\n")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command(epilog=f"Exit status: 0; 1 after a cell that failed; {STATUS_HELP}")
@with_isolation_options
def run(
    isolation_options: IsolationOptions,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            callback=not_blank,
            help="A notebook (.ipynb), a script with '# %%' cells (.py), or - for stdin.",
        ),
    ],
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="PATH", callback=not_blank, help="The path of the executed notebook (.ipynb)."),
    ] = None,
    timeout: TimeoutOption = None,
    work_dir: WorkDirOption = None,
    allow_errors: Annotated[bool, typer.Option("--allow-errors", help="Continue after a failed cell.")] = False,
    as_json: JsonOption = False,
) -> int:
    """Run the cells of FILE in one session, print their output immediately, and write the executed notebook."""
    from kernelexec.cli.run import run_file

    return run_file(
        file,
        config=isolation_options.load_config(**ONE_COMMAND_SETTINGS),
        output=Path(output) if output else None,
        timeout=timeout,
        work_dir=Path(work_dir) if work_dir else None,
        allow_errors=allow_errors,
        as_json=as_json,
    )


@app.command(name="exec", epilog=f"Exit status: that of the command; of code 0, or 1 if it failed; {STATUS_HELP}")
@with_isolation_options
def exec_(
    isolation_options: IsolationOptions,
    code: Annotated[str, typer.Argument(metavar="CODE", help="Code or shell magic, for example '1 + 1' or '!ls'.")],
    timeout: TimeoutOption = None,
    work_dir: WorkDirOption = None,
    language: Annotated[
        str,
        typer.Option(
            "--language", metavar="NAME", callback=not_blank, help="Python, bash, javascript, or an installed kernel's."
        ),
    ] = "python",
    as_json: JsonOption = False,
) -> int:
    """Run one cell of CODE in a new session."""
    from kernelexec.cli.run import run_code

    directory = Path(work_dir) if work_dir else None
    config = isolation_options.load_config(**ONE_COMMAND_SETTINGS)
    return run_code(code, config=config, language=language, timeout=timeout, work_dir=directory, as_json=as_json)


@app.command(epilog=f"Exit status: 0; {OWN_FAILURE} after wrong usage, or if no kernel starts.")
@with_isolation_options
def guidance(isolation_options: IsolationOptions, work_dir: WorkDirOption = None) -> int:
    """Print the guidance for a model's system prompt: the environment of code in a new session with these options."""
    from kernelexec.cli.run import show_guidance

    return show_guidance(isolation_options.load_config(**ONE_COMMAND_SETTINGS), Path(work_dir) if work_dir else None)


@app.command(epilog=f"Exit status: 0, or 1 if a required check failed; {OWN_FAILURE} after wrong usage.")
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False,
    isolation: IsolationOption = None,
    image: ImageOption = None,
    python: PythonOption = None,
) -> int:
    """Check this machine, and print how to fix failed checks."""
    from kernelexec.cli.doctor import examine

    return examine(isolation=isolation, image=image, python=python, as_json=as_json)


@app.command(epilog=f"Exit status: 0; {OWN_FAILURE} after wrong usage, or if the journal does not exist.")
def log(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            callback=not_blank,
            help="A session's name, or the path of a journal. Default: the only one.",
        ),
    ] = None,
    workspace: Annotated[
        str, typer.Option("--workspace", metavar="DIRECTORY", callback=not_blank, help="The executor's workspace.")
    ] = "workspaces",
    last: Annotated[int | None, typer.Option("--last", "-n", min=1, metavar="N", help="Only the newest N rows.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the journal's own lines.")] = False,
    statistics: Annotated[bool, typer.Option("--statistics", help="Show statistics of the cells instead.")] = False,
) -> int:
    """Show a session's journal: its cells with their results, refusals, and changes of its kernels."""
    from kernelexec.cli.sessions import find_journal, show_journal, show_statistics
    from kernelexec.session.features.limits import CALLS_MAX

    if statistics:
        return show_statistics(find_journal(name, Path(workspace)), last=last or CALLS_MAX, as_json=as_json)
    return show_journal(name, workspace=Path(workspace), last=last, as_json=as_json)


@app.command(epilog=f"Exit status: 0 after Ctrl+D; {OWN_FAILURE} if kernelexec itself failed, or there is no terminal.")
@with_isolation_options
def repl(
    isolation_options: IsolationOptions,
    session: Annotated[str, typer.Option("--session", metavar="NAME", help="The session's name.")] = "repl",
    timeout: Annotated[float | None, typer.Option("--timeout", help="Seconds that each cell may run. Default: a week.")] = None,
    work_dir: WorkDirOption = None,
) -> int:
    """Type cells at a prompt, in one session that is open until you press Ctrl+D."""
    from kernelexec.cli.repl import run_repl

    directory = Path(work_dir) if work_dir else None
    config = isolation_options.load_config(**ONE_COMMAND_SETTINGS | {"save_displays": True})
    return run_repl(config=config, name=session, timeout=timeout, work_dir=directory)


@app.command(epilog=f"Exit status: 0; {OWN_FAILURE} if kernelexec itself failed.")
def sessions(as_json: Annotated[bool, typer.Option("--json", help="Print them as JSON.")] = False) -> int:
    """List your open sessions on this machine, of all processes, and how to attach to their kernels."""
    from kernelexec.cli.sessions import list_sessions

    return list_sessions(as_json=as_json)


@app.command(
    epilog=f"Exit status: 0; {OWN_FAILURE} if kernelexec itself failed: unknown session, or a kernel that does not answer."
)
def variables(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", callback=not_blank, help="The session, as NAME or NAME@PROCESS.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print them as JSON.")] = False,
) -> int:
    """Show the variables of an open session on this machine, also while a cell runs, without running its code."""
    from kernelexec.cli.sessions import list_variables

    return list_variables(name, as_json=as_json)


def main() -> None:
    """Run the command line: a failure of kernelexec itself is one line on stderr, and exit status 125."""
    try:
        open_std_streams()
        status = app(standalone_mode=False) or 0
        write_text(sys.stdout, "")
    except (CommandFailed, KernelexecError, OSError, typer.Abort, SystemExit, _UsageError) as exc:
        status, reason = _describe_failure(exc)
        if reason:
            eprint(reason)
    flush_std_streams()
    sys.exit(status)


def _describe_failure(exc: BaseException) -> tuple[int, str]:
    match exc:
        case CommandFailed():
            return exc.status, str(exc)
        case KernelexecError():
            return OWN_FAILURE, str(exc)
        case OSError():
            return OWN_FAILURE, f"{exc.filename}: {exc.strerror}" if exc.filename else exc.strerror or str(exc)
        case typer.Abort():
            return INTERRUPTED, ""
        case SystemExit():  # raised by typer and rich if the output is closed
            return OUTPUT_CLOSED, ""
    usage: Any = exc
    reason = " ".join(usage.format_message().split()).rstrip(".")
    command = usage.ctx.command_path if usage.ctx else "kernelexec"
    return OWN_FAILURE, f"{reason}. See `{command} --help`." if reason else ""  # without a message the help was printed
