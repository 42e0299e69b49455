"""The command line as a whole: its groups of commands, and the entry point."""

from __future__ import annotations

import importlib.metadata
import sys
from typing import Annotated, Any

import typer

from kernelexec.cli.config import config_app
from kernelexec.cli.doctor import doctor_app
from kernelexec.cli.file_commands import files_app
from kernelexec.cli.image import image_app
from kernelexec.cli.kernelspec import kernelspec_app
from kernelexec.cli.mcp import mcp_app
from kernelexec.cli.run import run_app
from kernelexec.cli.servers import server_app
from kernelexec.cli.sessions import sessions_app
from kernelexec.cli.stdio import (
    INTERRUPTED,
    OUTPUT_CLOSED,
    OWN_FAILURE,
    CommandFailed,
    eprint,
    flush_std_streams,
    open_std_streams,
    unblock_signals,
    write_text,
)
from kernelexec.cli.terminal.text_filter import protect_terminal
from kernelexec.errors import KernelexecError

_UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # typer exports no more of click's errors than this one

app = typer.Typer(
    name="kernelexec",
    help="Run code and shell commands in a persistent kernel.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


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


for _group in (run_app, doctor_app, sessions_app, image_app, files_app, kernelspec_app, config_app, server_app, mcp_app):
    app.add_typer(_group)


def main() -> None:
    """Run the command line: a failure of kernelexec itself is one line on stderr, and exit status 125."""
    try:
        unblock_signals()
        open_std_streams()
        protect_terminal()
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
