"""The interpreter of this machine's kernels: the chosen one, or that of a virtual environment.

An interpreter that kernels can write is never started here: a cell could replace it, and the next kernel would run the
replacement before anything has confined it.
"""

from __future__ import annotations

import functools
from contextlib import suppress
from pathlib import Path

from kernelexec.config import Config
from kernelexec.errors import InvalidConfig, InvalidWorkDir
from kernelexec.provisioning import platform
from kernelexec.provisioning.host.interpreter_probe import ask
from kernelexec.provisioning.host.writable_paths import written_by_any

_ASKING = "import importlib.util, sys; sys.exit(not importlib.util.find_spec('ipykernel'))"


def check_venv(config: Config) -> None:
    """Check that a named virtual environment exists on this machine; one in a container is checked there.

    Raises:
        InvalidConfig: it is missing, or is no virtual environment.
    """
    venv = config.programs.venv
    if venv is None or config.isolation == "container" or (venv / platform.HERE.programs).is_dir():
        return
    why = f"has no directory {platform.HERE.programs}" if venv.is_dir() else "is not there"
    message = f"programs.venv: {venv} {why}: make a virtual environment there (`python -m venv {venv}`), or leave it out."
    raise InvalidConfig(message)


def interpreter(config: Config, workspace: str | None = None) -> str:
    """Return the interpreter of kernels with that workspace, or of a fork server; a venv's own is started once to ask it.

    It is that of a named virtual environment, if that has ipykernel and kernels cannot write it; else the chosen one.
    """
    venv = config.programs.venv
    if venv is None or "python" in config.model_fields_set:
        return config.python
    if any(map(venv.resolve().is_relative_to, written_by_any(config, workspace))):
        return config.python
    python = venv / platform.HERE.programs / platform.HERE.interpreter
    with suppress(OSError):
        if _has_ipykernel(str(python), *_version(venv, python)):
            return str(python)
    return config.python


def check_workspace(config: Config, workspace: Path) -> None:
    """Check that a workspace does not hold the interpreter of all kernels, which cells of one session could replace.

    Raises:
        InvalidWorkDir: it does.
    """
    if interpreter(config) != interpreter(config, str(workspace)):
        message = (
            f"{workspace} holds programs.venv ({config.programs.venv}), whose interpreter runs all kernels: cells could"
            " write it. Leave programs.venv out, or name that work_dir in the configuration: then kernels keep their own."
        )
        raise InvalidWorkDir(message)


def _version(venv: Path, python: Path) -> tuple[int, int]:
    """Return a value that changes when the environment is created again or a package is installed."""
    places = next(iter(sorted(venv.glob("lib/python*/site-packages"))), venv)
    return python.stat().st_mtime_ns, places.stat().st_mtime_ns


@functools.lru_cache(maxsize=64)
def _has_ipykernel(python: str, *_version: int) -> bool:
    return ask(python, _ASKING) is not None
