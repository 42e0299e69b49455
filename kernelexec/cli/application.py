"""The command line as a whole: its commands, each imported when it is called, and the entry point."""

from __future__ import annotations

import importlib.metadata
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

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
from kernelexec.imports import import_without_collection

#: The commands in the order of the help, by the modules and names of their applications.
APPLICATIONS = {
    "run.run_app": ("run", "exec", "guidance", "repl"),
    "doctor.doctor_app": ("doctor",),
    "sessions.sessions_app": ("log", "sessions", "variables"),
    "image.image_app": ("image",),
    "file_commands.files_app": ("files",),
    "kernelspec.kernelspec_app": ("kernelspec",),
    "config.config_app": ("config",),
    "servers.server_app": ("ps", "logs", "attach", "stop"),
    "mcp.mcp_app": ("mcp", "mcp-config", "mcp-token"),
}
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # typer exports no more of click's errors than this one


class CommandGroup(TyperGroup):
    """The commands of all applications; a command imports its own application only, since clients wait for servers."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401, ARG002 - typer exports no context of this class
        """Return the names of all commands, for the help and for suggestions."""
        for reference in APPLICATIONS:
            self._add_application(reference)
        return [name for names in APPLICATIONS.values() for name in names]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401 - the same
        """Return a command of that name; None if there is none."""
        reference = next((reference for reference, names in APPLICATIONS.items() if cmd_name in names), None)
        if reference is None:
            self.list_commands(ctx)  # the error suggests one of them
        elif cmd_name not in self.commands:
            self._add_application(reference)
        return self.commands.get(cmd_name)

    def _add_application(self, reference: str) -> None:
        application = load_application(reference)
        group = typer.main.get_group(application)
        name = application.info.name
        self.commands.update({name: group} if isinstance(name, str) else group.commands)


def load_application(reference: str) -> typer.Typer:
    """Import an application of commands by its module and name."""
    module, _, name = reference.partition(".")
    import_without_collection(f"kernelexec.cli.{module}")
    application: typer.Typer = getattr(import_module(f"kernelexec.cli.{module}"), name)
    return application


app = typer.Typer(
    cls=CommandGroup,
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
