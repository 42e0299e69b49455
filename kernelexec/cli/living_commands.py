"""The commands to servers that run, and their options; what they do is in ``living``."""

from __future__ import annotations

from typing import Annotated

import typer

from kernelexec.cli.options import filled
from kernelexec.cli.status import OURSELVES

living_app = typer.Typer(add_completion=False)
_STATUS = f"Exit status: 0; {OURSELVES} where kernelexec itself failed: no such session, a process that takes no commands."
NameArgument = Annotated[
    str | None,
    typer.Argument(metavar="[NAME]", callback=filled, help="The session, as NAME or NAME@PROCESS. Default: the only one."),
]


@living_app.command(epilog=_STATUS)
def ps(as_json: Annotated[bool, typer.Option("--json", help="Print them as JSON.")] = False) -> int:  # noqa: FBT002 - typer's
    """Show what your sessions on this machine do now, and servers that have none."""
    from kernelexec.cli.living import show_servers  # noqa: PLC0415 - see run

    return show_servers(as_json=as_json)


@living_app.command(epilog=_STATUS)
def logs(
    name: NameArgument = None,
    last: Annotated[int | None, typer.Option("--last", "-n", metavar="N", min=1, help="Only the newest N rows.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with its new lines, as JSON.")] = False,  # noqa: FBT002
    as_json: Annotated[bool, typer.Option("--json", help="Print the journal's own lines.")] = False,  # noqa: FBT002
) -> int:
    """Show the journal of a living session, by its name alone; `log` shows those of sessions that have ended too."""
    from kernelexec.cli.living import show_log  # noqa: PLC0415 - see run

    return show_log(name, last=last, follow=follow, as_json=as_json)


@living_app.command(epilog=_STATUS)
def attach(name: NameArgument = None) -> int:
    """Run cells, a line each, in a session of a server that runs, in turn with its agent's; Ctrl+D leaves."""
    from kernelexec.cli.living import attach as attach_to  # noqa: PLC0415 - see run

    return attach_to(name)


@living_app.command(epilog=_STATUS)
def stop(
    name: NameArgument = None,
    cell: Annotated[bool, typer.Option("--cell", help="Only interrupt the cell that runs.")] = False,  # noqa: FBT002
    process: Annotated[int | None, typer.Option("--process", metavar="PID", help="End this whole server instead.")] = None,
) -> int:
    """End a session of a server that runs, interrupt its cell, or end the server."""
    from kernelexec.cli.living import stop as stop_it  # noqa: PLC0415 - see run

    return stop_it(name, cell=cell, process=process)
