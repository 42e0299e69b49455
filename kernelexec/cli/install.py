"""`kernelexec mcp install`: a command within one that takes no arguments of its own."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from kernelexec.cli.options import filled
from kernelexec.cli.status import OURSELVES

install_app = typer.Typer(add_completion=False)
_WORD = "install"


@install_app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog=f"Exit status: 0; 1 where a server of that name is there, which stays; {OURSELVES} where nothing could be done.",
)
def install(
    context: typer.Context,
    client: Annotated[
        str, typer.Argument(metavar="CLIENT", help="claude-code, claude-desktop, cursor, vscode, codex or gemini.")
    ],
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="What the client calls the server.")] = "kernelexec",
    scope: Annotated[
        str, typer.Option("--scope", metavar="user|project", help="For all that you do, or in this directory.")
    ] = "user",
    show: Annotated[  # noqa: FBT002 - typer's options are booleans
        bool, typer.Option("--print", help="Print what belongs into its settings, and write nothing.")
    ] = False,
    replace: Annotated[  # noqa: FBT002 - see above
        bool, typer.Option("--replace", help="Replace a server that has the name already.")
    ] = False,
    url: Annotated[
        str | None,
        typer.Option(
            "--url", metavar="URL", callback=filled, help="A server over HTTP, instead of one that the client starts."
        ),
    ] = None,
    token_env: Annotated[
        str | None,
        typer.Option(
            "--token-env", metavar="VARIABLE", callback=filled, help="The client's variable that has the token for it."
        ),
    ] = None,
) -> int:
    """Tell an MCP client of this server, in its own settings; all other options are those of `kernelexec mcp`."""
    from kernelexec.cli import installing  # noqa: PLC0415 - only where it is needed

    options = list(context.args)
    order = installing.ordered(client, name=name, scope=scope, url=url, variable=token_env, options=options, replace=replace)
    if url is None:
        TyperCommand.make_context(_servers(context), "mcp", list(options))  # refuses what it would refuse
    return installing.show(order) if show else installing.install(order)


class WithInstall(TyperCommand):
    """A command without arguments that is another one where its first word is ``install``."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:  # noqa: ANN401 - see there
        """See click's ``Command``."""
        if args[:1] == [_WORD]:
            command: Any = typer.main.get_command(install_app)
            return command.make_context(f"{info_name} {_WORD}", args[1:], parent=parent, **extra)
        return super().make_context(info_name, args, parent=parent, **extra)


def _servers(context: typer.Context) -> Any:  # noqa: ANN401 - typer's own kind of command
    group: Any = context.parent.command if context.parent else None
    return group.commands["mcp"]
