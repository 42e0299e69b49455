"""The commands about configuration files."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from kernelexec.cli.stdio import OURSELVES, write_any

commands = typer.Typer(name="config", help="Configuration files: the settings of agents, in YAML.", no_args_is_help=True)


@commands.command(epilog=f"Exit status: 0; {OURSELVES} where it is wrong, with the reason.")
def check(file: Annotated[str, typer.Argument(metavar="FILE", help="The file, in our words or in MassGen's.")]) -> int:
    """Read FILE and say where the code of each of its agents runs. Nothing is started."""
    from kernelexec.dialects.agents import read_agents

    for name, config in read_agents(file).items():
        where = config.isolation if config.enabled else "switched off"
        write_any(sys.stdout, f"{name}: {where}\n")
    return 0


@commands.command(name="schema", epilog="Exit status: 0.")
def print_schema() -> int:
    """Print the JSON Schema of such files, for editors."""
    from kernelexec.dialects.agents import schema

    write_any(sys.stdout, json.dumps(schema(), indent=2) + "\n")
    return 0
