"""The command line as a whole: the entry point, and the commands, each imported when called."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

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
from kernelexec.cli.terminal import protect_terminal
from kernelexec.errors import KernelexecError
from kernelexec.imports import import_without_collection


@dataclass(frozen=True, slots=True)
class Entry:
    """A command in the help: the module and name of the application, and a summary."""

    application: str
    summary: str


#: The commands in the order of the help, by its panels. The summaries are here, so that the help imports no command.
PANELS: dict[str, dict[str, Entry]] = {
    "Run": {
        "run": Entry("run_files.files_run_app", "Run notebooks and scripts, and write the executed notebooks."),
        "exec": Entry("run.run_app", "Run one cell, of code or a shell command, in a new session."),
        "repl": Entry("run.run_app", "Type cells at a prompt."),
        "attach": Entry("live_sessions.live_app", "Run cells in a session that another process has open."),
    },
    "Watch": {
        "ps": Entry("live_sessions.live_app", "Show the state of your open sessions and servers."),
        "logs": Entry("logs.logs_app", "Show the cells of a session, open or closed, with their results."),
        "variables": Entry("live_sessions.live_app", "Show the variables of an open session."),
        "sessions": Entry("live_sessions.live_app", "List your open sessions and the connection files of their kernels."),
        "checkpoints": Entry("live_sessions.live_app", "List the checkpoints of an open session."),
        "undo": Entry("live_sessions.live_app", "Go back to an earlier state of an open session."),
        "branch": Entry("live_sessions.live_app", "Open a branch of an open session."),
        "promote": Entry("live_sessions.live_app", "Have a branch take the place of its session."),
        "stop": Entry("live_sessions.live_app", "Interrupt a cell, close a session, or stop a server."),
    },
    "Files": {"files": Entry("file_commands.files_app", "List, read, write and delete files of a workspace.")},
    "Images": {"image": Entry("image.image_app", "Build, list and remove the images of containers.")},
    "MCP": {
        "mcp": Entry("mcp.mcp_app", "Serve sessions as tools over MCP."),
        "mcp-config": Entry("mcp.mcp_app", "Print the configuration of an MCP client for this server."),
        "mcp-token": Entry("mcp.mcp_app", "Create a bearer token for a client of an HTTP server."),
    },
    "Set-up": {
        "doctor": Entry("doctor.doctor_app", "Check this machine: engine, images, confinement, kernels."),
        "config": Entry("set_up.config_app", "Show the options of configurations."),
        "kernelspec": Entry("set_up.kernelspec_app", "Install kernels of kernelexec for Jupyter."),
        "guidance": Entry("run.run_app", "Print what a model should know about the environment of its code."),
    },
}
_HIDDEN = {"log": Entry("logs.logs_app", "The same as logs.")}
ENTRIES = {name: entry for entries in (*PANELS.values(), _HIDDEN) for name, entry in entries.items()}
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # typer exports no more of click's errors than this one


class CommandGroup(TyperGroup):
    """The commands of all applications; a command imports its own application only, since clients wait for servers."""

    _shows_help = False

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401, ARG002 - typer exports no context of this class
        """Return the names of all commands, for the help, for suggestions and for completion."""
        return [name for entries in PANELS.values() for name in entries]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401, ARG002 - the same
        """Return the command of this name; None if unknown. For the help, the command has a summary only."""
        entry = ENTRIES.get(cmd_name)
        if entry is None:
            return None
        if self._shows_help:
            panel = next(panel for panel, entries in PANELS.items() if cmd_name in entries)
            return TyperCommand(cmd_name, help=entry.summary, rich_help_panel=panel)
        if cmd_name not in self.commands:
            self._add_application(entry.application)
        return self.commands.get(cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - the same
        """Print the help."""
        self._shows_help = True
        super().format_help(ctx, formatter)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 - the same
        """Return the command of the first word; the error about an unknown command suggests others."""
        # Suggestions are made from ``commands``, which has imported commands only.
        self.commands.update({name: TyperCommand(name) for name in ENTRIES if args and args[0] not in ENTRIES})
        return super().resolve_command(ctx, args)

    def _add_application(self, reference: str) -> None:
        application = load_application(reference)
        group = typer.main.get_group(application)
        name = application.info.name
        commands = {name: group} if isinstance(name, str) else group.commands
        for command in commands.values():
            _hide_types_of_switches(command)
        self.commands.update(commands)


def _hide_types_of_switches(command: Any) -> None:  # noqa: ANN401 - typer's own types
    """Hide the type of options without a value, in the help of a command and of all commands below."""
    get_params = command.get_params

    def get_plain_params(ctx: Any) -> Any:  # noqa: ANN401 - the same
        parameters = get_params(ctx)
        for parameter in parameters:
            if getattr(parameter, "is_flag", False) and parameter.metavar is None:
                parameter.metavar = ""
        return parameters

    command.get_params = get_plain_params
    for child in getattr(command, "commands", {}).values():
        _hide_types_of_switches(child)


def load_application(reference: str) -> typer.Typer:
    """Import an application of commands by module and name."""
    module, _, name = reference.partition(".")
    import_without_collection(f"kernelexec.cli.{module}")
    application: typer.Typer = getattr(import_module(f"kernelexec.cli.{module}"), name)
    return application


app = typer.Typer(
    cls=CommandGroup,
    name="kernelexec",
    help="Run code and shell commands in a persistent kernel.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        write_text(sys.stdout, f"kernelexec {version('kernelexec')}\n")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line: a failure of kernelexec itself is a line on stderr, and exit status 125."""
    try:
        unblock_signals()
        open_std_streams()
        protect_terminal()
        command = typer.main.get_command(app)
        _hide_types_of_switches(command)
        status = command(prog_name="kernelexec", standalone_mode=False) or 0
        write_text(sys.stdout, "")  # flushed here, where a full disk still changes the status
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
        case SystemExit():  # raised by typer after a completion, and by typer and rich if the output is closed
            return 0 if exc.code in (0, None) else OUTPUT_CLOSED, ""
    usage: Any = exc
    reason = " ".join(usage.format_message().split()).rstrip(".")
    command = usage.ctx.command_path if usage.ctx else "kernelexec"
    return OWN_FAILURE, f"{reason}. See `{command} --help`." if reason else ""  # without a message the help was printed
