"""The interpreter of this machine's kernels: the chosen one, or that of a virtual environment.

An interpreter that kernels can write is never started here: a cell could replace it, and the next kernel would run the
replacement before anything has confined it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from kernelexec.config import Config
from kernelexec.errors import InvalidConfig, InvalidWorkDir
from kernelexec.launcher import protocol
from kernelexec.provisioning import platform
from kernelexec.provisioning.host.writable_paths import all_writable_directories, without_untrusted
from kernelexec.provisioning.launch.kernelspec import GUARD, LAUNCHER

#: Answers of interpreters, by the times of their last change.
_has_ipykernel_by_version: dict[tuple[str, tuple[int, int]], bool] = {}
_SECONDS = 30.0
#: The interpreter writes no files and has no network.
_RULES = {"writable": [], "hidden": [], "readable": [], "network": "no-network" not in platform.PLATFORM.confinement}
_CHECK_CODE = "import importlib.util, sys; sys.exit(not importlib.util.find_spec('ipykernel'))"


def run_confined(python: str, program: str, untrusted: Iterable[str]) -> str | None:
    """Return the output of a program in that interpreter; None if it cannot be started or fails.

    The interpreter may import any file, so it is confined first. Nothing is loaded from the ``untrusted`` directories.
    """
    argv = [sys.executable, *GUARD, str(LAUNCHER), protocol.CONFINED_FLAG, python, "-I", "-c", program]
    options = protocol.LaunchOptions(confinement={**_RULES, "temporary": tempfile.gettempdir()})
    environ = {**without_untrusted(os.environ, untrusted), **options.as_environment()}
    try:
        completed = subprocess.run(argv, capture_output=True, timeout=_SECONDS, check=True, cwd="/", env=environ)
    except (OSError, subprocess.SubprocessError):
        return None
    return completed.stdout.decode("utf-8", "replace")


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
    writable = all_writable_directories(config, workspace)
    if any(map(venv.resolve().is_relative_to, writable)):
        return config.python
    python = venv / platform.PLATFORM.venv_directory / platform.PLATFORM.venv_interpreter
    with suppress(OSError):
        if _has_ipykernel(str(python), _read_version(venv, python), writable):
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


def _has_ipykernel(python: str, version: tuple[int, int], untrusted: Iterable[str]) -> bool:
    if (python, version) not in _has_ipykernel_by_version:
        _has_ipykernel_by_version[python, version] = run_confined(python, _CHECK_CODE, untrusted) is not None
    return _has_ipykernel_by_version[python, version]
