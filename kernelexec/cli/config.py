"""The commands about configuration files."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from kernelexec.cli.stdio import OWN_FAILURE, write_text

config_app = typer.Typer(name="config", help="Configuration files: the settings of agents, in YAML.", no_args_is_help=True)


@config_app.command(epilog=f"Exit status: 0; {OWN_FAILURE} if the file is invalid, with the reason.")
def check(file: Annotated[str, typer.Argument(metavar="FILE", help="The file, in kernelexec's form or in MassGen's.")]) -> int:
    """Check FILE and print where the code of each of its agents runs. Nothing is started."""
    from kernelexec.dialects.agents import read_agents

    for name, config in read_agents(file).items():
        write_text(sys.stdout, f"{name}: {config.isolation if config.enabled else 'switched off'}\n")
    return 0


@config_app.command(name="schema", epilog="Exit status: 0.")
def print_schema() -> int:
    """Print the JSON Schema of configuration files, for editors."""
    from kernelexec.dialects.agents import json_schema

    write_text(sys.stdout, json.dumps(json_schema(), indent=2) + "\n")
    return 0
