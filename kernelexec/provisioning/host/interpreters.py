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
from kernelexec.provisioning.host.interpreter_probe import run_confined
from kernelexec.provisioning.host.writable_paths import all_writable_directories

_CHECK_CODE = "import importlib.util, sys; sys.exit(not importlib.util.find_spec('ipykernel'))"


def check_venv(config: Config) -> None:
    """Check that a named virtual environment exists on this machine; one in a container is checked there.

    Raises:
        InvalidConfig: the directory is missing, or is no virtual environment.
    """
    venv = config.programs.venv
    if venv is None or config.isolation == "container" or (venv / platform.PLATFORM.venv_directory).is_dir():
        return
    reason = f"has no directory {platform.PLATFORM.venv_directory}" if venv.is_dir() else "does not exist"
    message = f"programs.venv: {venv} {reason}: create a virtual environment there (`python -m venv {venv}`), or leave it out."
    raise InvalidConfig(message)


def choose_interpreter(config: Config, workspace: str | None = None) -> str:
    """Return the interpreter of kernels with that workspace, or of a fork server; a venv's own is started once to ask it.

    It is that of a named virtual environment, if that has ipykernel and kernels cannot write it; else the chosen one.
    """
    venv = config.programs.venv
    if venv is None or "python" in config.model_fields_set:
        return config.python
    if any(map(venv.resolve().is_relative_to, all_writable_directories(config, workspace))):
        return config.python
    python = venv / platform.PLATFORM.venv_directory / platform.PLATFORM.venv_interpreter
    with suppress(OSError):
        if _has_ipykernel(str(python), *_read_version(venv, python)):
            return str(python)
    return config.python


def check_workspace(config: Config, workspace: Path) -> None:
    """Check that a workspace does not hold the interpreter of all kernels, which cells of one session could replace.

    Raises:
        InvalidWorkDir: the workspace holds it.
    """
    if choose_interpreter(config) != choose_interpreter(config, str(workspace)):
        message = (
            f"{workspace} holds programs.venv ({config.programs.venv}), whose interpreter runs all kernels: cells could"
            " write it. Leave programs.venv out, or set that work_dir in the configuration: then kernels use `python`."
        )
        raise InvalidWorkDir(message)


def _read_version(venv: Path, python: Path) -> tuple[int, int]:
    """Return a value that changes when the environment is created again or a package is installed."""
    packages = next(iter(sorted(venv.glob("lib/python*/site-packages"))), venv)
    return python.stat().st_mtime_ns, packages.stat().st_mtime_ns


@functools.lru_cache(maxsize=64)
def _has_ipykernel(python: str, *_version: int) -> bool:
    return run_confined(python, _CHECK_CODE) is not None
