"""Commands and their options; what they do is in the module of each."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from kernelexec.config import Config, load
from kernelexec.errors import KernelexecError

#: Exit status of what failed before or beside the code: bad input, no kernel.
FAILED_OURSELVES = 2

app = typer.Typer(
    name="kernelexec",
    help="Run code and shell commands in a persistent kernel.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

IsolationOption = Annotated[
    str | None, typer.Option("--isolation", help="Where code runs: 'local' is this machine, with your rights.")
]
TimeoutOption = Annotated[float | None, typer.Option("--timeout", help="Seconds that each cell may run. Default: 60.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print results as JSON, one object a line, for programs.")]
WorkDirOption = Annotated[Path | None, typer.Option("--work-dir", help="The directory that the code runs in.")]
PythonOption = Annotated[str | None, typer.Option("--python", help="The interpreter of the kernel; it needs ipykernel.")]


def _tell_version(value: bool) -> None:
    if value:
        sys.stdout.write(f"kernelexec {importlib.metadata.version('kernelexec')}\n")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    pass


@app.command()
def run(
    file: Annotated[str, typer.Argument(help="A notebook (.ipynb), a script with '# %%' cells (.py), or - for stdin.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Where the executed notebook goes.")] = None,
    isolation: IsolationOption = None,
    timeout: TimeoutOption = None,
    work_dir: WorkDirOption = None,
    python: PythonOption = None,
    allow_errors: Annotated[bool, typer.Option("--allow-errors", help="Go on after a cell that fails.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run the cells of FILE in one session, show their output as it comes, and write the executed notebook."""
    from kernelexec.cli.run import run_file  # noqa: PLC0415 - nbformat and rich only where they are needed

    raise typer.Exit(
        run_file(
            file,
            config=_config(isolation, python),
            output=output,
            timeout=timeout,
            work_dir=work_dir,
            allow_errors=allow_errors,
            as_json=as_json,
        )
    )


@app.command(name="exec")
def exec_(
    code: Annotated[str, typer.Argument(help="Code or shell magic, for example '1 + 1' or '!ls'.")],
    isolation: IsolationOption = None,
    timeout: TimeoutOption = None,
    work_dir: WorkDirOption = None,
    python: PythonOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run one cell of CODE in a new session."""
    from kernelexec.cli.run import run_code  # noqa: PLC0415 - see run

    config = _config(isolation, python)
    raise typer.Exit(run_code(code, config=config, timeout=timeout, work_dir=work_dir, as_json=as_json))


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False, python: PythonOption = None
) -> None:
    """Say what works on this machine, and how to mend what does not."""
    from kernelexec.cli.doctor import examine  # noqa: PLC0415 - see run

    raise typer.Exit(examine(python=python, as_json=as_json))


def _config(isolation: str | None, python: str | None) -> Config:
    options = {"notebook": False, "save_displays": False} | ({"python": python} if python else {})
    return load(isolation, config=options)


def main() -> None:
    """The entry point: our own errors are one line on stderr and exit status 2."""
    try:
        app()
    except KernelexecError as exc:
        sys.stderr.write(f"kernelexec: {exc}\n")
        sys.exit(FAILED_OURSELVES)
    except BrokenPipeError:  # nobody reads stdout any more; what Python has yet to flush must not complain
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
