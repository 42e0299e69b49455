"""Commands for the set-up: configuration files, and kernelexec's kernels in Jupyter's programs."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from kernelexec.cli.options import IsolationOptions, option, with_isolation_options
from kernelexec.cli.stdio import OWN_FAILURE, write_text
from kernelexec.errors import InvalidRequest

config_app = typer.Typer(name="config", help="Configuration files: the settings of agents, in YAML.", no_args_is_help=True)
kernelspec_app = typer.Typer(
    name="kernelspec", help="Kernels in containers for JupyterLab, nbclient and papermill.", no_args_is_help=True
)
_NOT_WRITABLE = "is not writable: install for your user with --user, or in another directory with --prefix"


@config_app.command(epilog=f"Exit status: 0; {OWN_FAILURE} if the file is invalid, with the reason.")
def check(file: Annotated[str, typer.Argument(metavar="FILE", help="The file, in kernelexec's form or in MassGen's.")]) -> int:
    """Check FILE and print where the code of each of its agents runs. Nothing is started."""
    from kernelexec.config.dialects.agents import read_agents

    for name, config in read_agents(file).items():
        write_text(sys.stdout, f"{name}: {config.isolation if config.enabled else 'switched off'}\n")
    return 0


@config_app.command(name="schema", epilog="Exit status: 0.")
def print_schema() -> int:
    """Print the JSON Schema of configuration files, for editors."""
    from kernelexec.config.dialects.agents import json_schema

    write_text(sys.stdout, json.dumps(json_schema(), indent=2) + "\n")
    return 0


@kernelspec_app.command(epilog=f"Exit status: 0; {OWN_FAILURE} after wrong usage, or if it cannot be written.")
@partial(with_isolation_options, names=("image", "network", "memory", "cpus", "python"))
def install(
    isolation_options: IsolationOptions,
    name: Annotated[str, option("--name", "The kernelspec's name.", "NAME")] = "kernelexec",
    display_name: Annotated[
        str | None, option("--display-name", "The displayed name. Default: Python (container).", "TEXT")
    ] = None,
    isolation: Annotated[str, option("--isolation", "'container', or 'local': this machine, with your rights.")] = "container",
    share_home: Annotated[
        bool, option("--share-home", "Let notebooks that are directly in your home directory access all of it.")
    ] = False,
    user: Annotated[bool, option("--user", "Install for your user, for every Jupyter.")] = False,
    sys_prefix: Annotated[
        bool, option("--sys-prefix", "Install into the environment of kernelexec. This is the default.")
    ] = False,
    prefix: Annotated[str | None, option("--prefix", "Install into DIRECTORY/share/jupyter/kernels.", "DIRECTORY")] = None,
) -> int:
    """Install a kernelspec, with which Jupyter's applications start kernels as kernelexec does.

    JupyterLab runs the scripts of outputs with its server's rights: run only code there that you trust.

    `jupyter kernelspec list` shows kernelspecs, and `jupyter kernelspec remove` removes them.
    """
    from kernelexec.provisioning.jupyter import install_spec

    local, python, container = isolation == "local", isolation_options.python, isolation_options.container_options()
    if local and (container or share_home):
        message = (
            "--image, --memory, --cpus, --network and --share-home are for containers: remove them, or remove --isolation."
        )
        raise InvalidRequest(message)
    directory = _prefix(user=user, sys_prefix=sys_prefix, prefix=prefix)
    try:
        installed = install_spec(
            name,
            display_name or f"Python ({isolation})",
            isolation=isolation,
            container=container if local or python is None else container | {"python": python},
            python=python if local else None,
            share_home=share_home,
            prefix=directory,
        )
    except PermissionError as exc:
        message = f"{exc.filename or directory} {_NOT_WRITABLE}."
        raise InvalidRequest(message) from exc
    write_text(sys.stdout, f"{installed}\n")
    return 0


def _prefix(*, user: bool, sys_prefix: bool, prefix: str | None) -> Path | None:
    if user + sys_prefix + (prefix is not None) > 1:
        raise InvalidRequest("--user, --sys-prefix and --prefix contradict each other: use only one of them.")
    if user:
        return None
    return Path(os.path.expanduser(prefix)) if prefix else Path(sys.prefix)  # noqa: PTH111 - a user of that name may be missing
