"""The virtual environment whose programs and packages commands and cells find, or a prefix of commands."""

from __future__ import annotations

import os
import platform as python_platform
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from .. import platform
from . import importable_packages

#: Name of a workspace's own virtual environment.
NAME = ".venv"
_ACTIVE = "VIRTUAL_ENV"


class VirtualEnv:
    """The owner's choice of programs; nothing by default.

    A prefix precedes a named virtual environment, and that precedes ``.venv`` of the kernel's home directory, which is looked
    for each time.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.prefix: list[str] = list(options.get("prefix") or ())
        self.import_state: dict[str, Any] | None = None
        """Path and state of the virtual environment for imports of cells; None before the first cell."""
        self._has_options = bool(options)
        self._path: str | None = options.get("venv")
        self._active = os.environ.get(_ACTIVE)
        self.set_home()

    def check(self) -> None:
        """Refuse a named path that is no virtual environment.

        Raises:
            SystemExit: the message names the path.
        """
        if self._path is not None and not _has_programs(self._path):
            problem = "is none" if os.path.isdir(self._path) else "is not there"  # noqa: PTH112 - text in, text out
            lack = f"it has no directory {platform.PLATFORM.programs_directory}"
            sys.exit(f"The virtual environment {self._path} {problem}: {lack}. Create it, or leave the setting out.")

    def set_home(self) -> None:
        """Look for the virtual environment anew, from the present directory."""
        self._home, self.is_pending = "", self._has_options
        with suppress(OSError):
            self._home = os.getcwd()  # noqa: PTH109 - as above

    @property
    def venv(self) -> str | None:
        """Return the present virtual environment."""
        if not self._has_options or self._path is not None:
            return self._path
        default = os.path.join(self._home, NAME)  # noqa: PTH118 - as above
        return default if _has_programs(default) else None

    @property
    def active(self) -> str | None:
        """Return the virtual environment whose programs commands find."""
        mine = self._active == os.environ.get(_ACTIVE)  # otherwise a cell has activated another one
        return self.venv if mine and not self.prefix else None

    def environment(self, changes: Mapping[str, str | None], since: str | None = None) -> dict[str, str]:
        """Return the environment of a command: this process's, with the virtual environment's programs first, and ``changes``.

        PATH stays as it is if a command set it ``since`` this virtual environment was active.
        """
        variables = {name: value for name, value in {**os.environ, **changes}.items() if value is not None}
        venv = self.active
        if venv is None or _ACTIVE in changes:
            return variables
        variables[_ACTIVE] = venv
        if "PYTHONHOME" not in changes:
            variables.pop("PYTHONHOME", None)
        if "PATH" not in changes or since != venv:
            programs = os.path.join(venv, platform.PLATFORM.programs_directory)  # noqa: PTH118 - as above
            variables["PATH"] = os.pathsep.join([programs, variables.get("PATH") or os.defpath])
        return variables

    def activate(self) -> dict[str, Any] | None:
        """Make the virtual environment's packages importable if possible; return path and state."""
        self.is_pending = False
        venv = self.venv
        self.import_state = None if venv is None else {"path": venv, "served": importable_packages.activate_packages(venv)}
        return self.import_state

    def describe(self) -> dict[str, Any]:
        """Describe interpreter, system, virtual environment and packages, without running user code."""
        installed = importable_packages.find_distributions(sys.path)
        system = f"{python_platform.system()} {python_platform.release()}"  # `platform.platform()` would start a program
        with suppress(OSError):
            system = python_platform.freedesktop_os_release()["PRETTY_NAME"]
        interpreter = {"python": sys.executable, "version": ".".join(map(str, sys.version_info[:3])), "prefix": sys.prefix}
        interpreter["system"] = system
        venv, state = self.venv, self.import_state or {}
        served = state.get("served") if venv is not None and state.get("path") == venv else None
        description = {**interpreter, "venv": venv, "served": served, "command_prefix": self.prefix, "packages": installed}
        return {"status": "ok", **description}


def _has_programs(venv: str) -> bool:
    return os.path.isdir(os.path.join(venv, platform.PLATFORM.programs_directory))  # noqa: PTH112, PTH118 - called for each command
