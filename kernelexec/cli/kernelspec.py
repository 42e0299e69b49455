"""Kernels of ours in JupyterLab, nbclient, papermill and the Jupyter console: their kernelspecs as commands."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from kernelexec.cli.stdio import OURSELVES, write_any
from kernelexec.config import size
from kernelexec.errors import InvalidRequest

_NOT_WRITABLE = "is not writable: install it for yourself with --user, or below another directory with --prefix"

commands = typer.Typer(
    name="kernelspec", help="Kernels in containers for JupyterLab, nbclient and papermill.", no_args_is_help=True
)

NameOption = Annotated[str, typer.Option("--name", metavar="NAME", help="What programs call it.")]
UserOption = Annotated[bool, typer.Option("--user", help="For you, whichever Python you start Jupyter from.")]
SysPrefixOption = Annotated[
    bool, typer.Option("--sys-prefix", help="In the environment that kernelexec is installed in. This is the default.")
]
PrefixOption = Annotated[
    str | None, typer.Option("--prefix", metavar="DIRECTORY", help="Below DIRECTORY/share/jupyter/kernels.")
]


@commands.command(epilog=f"Exit status: 0; {OURSELVES} after wrong usage, or where it cannot be written.")
def install(
    name: NameOption = "kernelexec",
    display_name: Annotated[
        str | None, typer.Option("--display-name", metavar="TEXT", help="What people see. Default: Python (container).")
    ] = None,
    isolation: Annotated[
        str, typer.Option("--isolation", help="'container', or 'local': this machine, with your rights.")
    ] = "container",
    image: Annotated[str | None, typer.Option("--image", help="The image of the containers.")] = None,
    memory: Annotated[
        str | None, typer.Option("--memory", metavar="SIZE", help="All memory of a container, as 512m or 2g. Default: 1g.")
    ] = None,
    cpus: Annotated[float | None, typer.Option("--cpus", help="How many processors' time it gets. Default: 1.")] = None,
    network: Annotated[str | None, typer.Option("--network", help="'none', the default; 'bridge', or 'host'.")] = None,
    python: Annotated[
        str | None, typer.Option("--python", metavar="PATH", help="The interpreter, in the image or here; it needs ipykernel.")
    ] = None,
    share_home: Annotated[
        bool, typer.Option("--share-home", help="Let notebooks that lie in your home directory itself see all of it.")
    ] = False,
    user: UserOption = False,
    sys_prefix: SysPrefixOption = False,
    prefix: PrefixOption = None,
) -> int:
    """Install a kernelspec, by which Jupyter's applications start their kernels as kernelexec starts its own."""
    from kernelexec.provisioning.jupyter.kernelspecs import install_spec

    local = isolation == "local"
    container = _given(image=image, memory=memory, cpus=cpus, network=network, python=None if local else python)
    if local and (container or share_home):
        message = "--image, --memory, --cpus, --network and --share-home are of containers: leave them out, or --isolation."
        raise InvalidRequest(message)
    directory = _prefix(user=user, sys_prefix=sys_prefix, prefix=prefix)
    try:
        installed = install_spec(
            name,
            display_name or f"Python ({isolation})",
            isolation=isolation,
            container=container,
            python=python if local else None,
            share_home=share_home,
            prefix=directory,
        )
    except PermissionError as exc:
        message = f"{exc.filename or directory} {_NOT_WRITABLE}."
        raise InvalidRequest(message) from exc
    write_any(sys.stdout, f"{installed}\n")
    return 0


@commands.command(epilog=f"Exit status: 0; {OURSELVES} where there is no such kernelspec of kernelexec.")
def remove(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name.")] = "kernelexec",
    prefix: PrefixOption = None,
) -> int:
    """Remove a kernelspec of kernelexec."""
    from kernelexec.provisioning.jupyter.kernelspecs import remove_spec

    write_any(sys.stdout, f"{remove_spec(name, prefix=Path(prefix) if prefix else None)}\n")
    return 0


@commands.command(name="list", epilog="Exit status: 0.")
def list_(
    as_json: Annotated[bool, typer.Option("--json", help="Print them as JSON.")] = False,
    prefix: PrefixOption = None,
) -> int:
    """List the kernelspecs of kernelexec that Jupyter finds: name, what people see, where kernels run, and its directory."""
    from kernelexec.provisioning.jupyter.kernelspecs import our_specs

    specs = our_specs(prefix=Path(prefix) if prefix else None)
    if as_json:
        fields = ("name", "display_name", "isolation", "image", "directory")
        rows = [{field: getattr(spec, field) for field in fields} for spec in specs]
        write_any(sys.stdout, json.dumps(rows) + "\n")
        return 0
    for spec in specs:
        row = (spec.name, spec.display_name, spec.image or spec.isolation, spec.directory)
        write_any(sys.stdout, "\t".join("".join(c if c.isprintable() else "?" for c in field) for field in row) + "\n")
    return 0


def _given(*, memory: str | None, **options: object) -> dict[str, Any]:
    """Return the container options that are set, by their names in the configuration."""
    sizes = {"memory_bytes": None if memory is None else size(memory, "--memory")}
    return {option: value for option, value in (options | sizes).items() if value is not None}


def _prefix(*, user: bool, sys_prefix: bool, prefix: str | None) -> Path | None:
    if user + sys_prefix + (prefix is not None) > 1:
        raise InvalidRequest("--user, --sys-prefix and --prefix contradict each other: give one of them.")
    if user:
        return None
    return Path(os.path.expanduser(prefix)) if prefix else Path(sys.prefix)  # noqa: PTH111 - a user of that name may be missing
