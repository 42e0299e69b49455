"""The virtual environment whose programs and packages commands and cells find, or a prefix of commands."""

from __future__ import annotations

import importlib
import os
import platform as python_platform
import re
import site
import sys
import sysconfig
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from .. import platform

#: Name of a workspace's own virtual environment.
NAME = ".venv"
_ACTIVE = "VIRTUAL_ENV"
#: Limits of one listing: distributions, seconds, and characters of a name or version.
_DISTRIBUTIONS_MAX, _LOOK_SECONDS, _CHARS = 5000, 1.0, 100
_SEPARATORS = re.compile(r"[-_.]+")
_activated: dict[str, set[str]] = {}
"""Directories that this module added to ``sys.path``, and the ``.pth`` files that were read from them."""


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
        self._keeps_path = bool(options.get("keeps_path", True))
        self._active = os.environ.get(_ACTIVE)
        self.set_home()

    def check(self) -> None:
        """Exit, with a message, if the named path is no virtual environment."""
        if self._path is not None and not _has_programs(self._path):
            problem = "is none" if os.path.isdir(self._path) else "is not there"  # noqa: PTH112 - text in, text out
            lack = f"it has no directory {platform.PLATFORM.programs_directory}"
            sys.exit(f"The virtual environment {self._path} {problem}: {lack}. Create it, or leave the setting out.")

    def set_home(self) -> None:
        """Look for the virtual environment anew, from the present directory."""
        self._first_path = None if self._keeps_path else os.environ.get("PATH")
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

        Without one, and without a prefix, this interpreter's programs are first, so that commands have the packages of cells,
        unless PATH was set on purpose. PATH stays as it is if a command set it ``since`` this virtual environment was active.
        """
        variables = {name: value for name, value in {**os.environ, **changes}.items() if value is not None}
        venv = self.active
        is_first_path = self._first_path is not None and variables.get("PATH") == self._first_path
        if venv is None and not self.prefix and is_first_path and _ACTIVE not in variables:
            variables["PATH"] = _put_first(os.path.dirname(sys.executable), variables["PATH"])  # noqa: PTH120 - as above
        if venv is None or _ACTIVE in changes:
            return variables
        variables[_ACTIVE] = venv
        if "PYTHONHOME" not in changes:
            variables.pop("PYTHONHOME", None)
        if "PATH" not in changes or since != venv:
            programs = os.path.join(venv, platform.PLATFORM.programs_directory)  # noqa: PTH118 - as above
            variables["PATH"] = _put_first(programs, variables.get("PATH") or os.defpath)
        return variables

    def activate(self) -> dict[str, Any] | None:
        """Make the virtual environment's packages importable if possible; return path and state."""
        self.is_pending = False
        venv = self.venv
        self.import_state = None if venv is None else {"path": venv, "served": activate_packages(venv)}
        return self.import_state

    def describe(self) -> dict[str, Any]:
        """Describe interpreter, system, virtual environment and packages, without running user code."""
        installed = find_distributions(sys.path)
        system = f"{python_platform.system()} {python_platform.release()}"  # `platform.platform()` would start a program
        with suppress(OSError):
            system = python_platform.freedesktop_os_release()["PRETTY_NAME"]
        interpreter = {"python": sys.executable, "version": ".".join(map(str, sys.version_info[:3])), "prefix": sys.prefix}
        interpreter["system"] = system
        venv, state = self.venv, self.import_state or {}
        served = state.get("served") if venv is not None and state.get("path") == venv else None
        description = {**interpreter, "venv": venv, "served": served, "command_prefix": self.prefix, "packages": installed}
        return {"status": "ok", **description}


def _put_first(directory: str, path: str) -> str:
    return path if path.split(os.pathsep, 1)[0] == directory else os.pathsep.join([directory, path])


def _has_programs(venv: str) -> bool:
    return os.path.isdir(os.path.join(venv, platform.PLATFORM.programs_directory))  # noqa: PTH112, PTH118 - called for each command


def activate_packages(venv: str) -> str:
    """Make a virtual environment's packages importable if its Python has this version.

    Return ``packages``, or ``commands`` if only commands find them, or ``interpreter`` if they are this interpreter's own. They
    follow the interpreter's own packages, so the kernel stays as it is. ``.pth`` files count; a new one is read at the
    next call.
    """
    if os.path.realpath(venv) == os.path.realpath(sys.prefix):
        return "interpreter"
    directory = str(sysconfig.get_path("purelib", "venv", {"base": venv, "platbase": venv}))
    if not os.path.isdir(directory):  # noqa: PTH112 - text in, text out
        return "commands"
    read_files = _activated.get(directory)
    names = {name for name in os.listdir(directory) if name.endswith(".pth")}  # noqa: PTH208 - names only
    if read_files is None or directory not in sys.path:
        site.addsitedir(directory)
    else:
        for name in sorted(names - read_files):
            site.addpackage(directory, name, None)
    _activated[directory] = names
    importlib.invalidate_caches()
    return "packages"


def find_distributions(paths: Iterable[Any]) -> dict[str, str]:
    """Return names and versions of the distributions in directories, the first of each name, by the names of their records.

    No file is opened and no user code runs: cells can put any value on the path.
    """
    versions: dict[str, str] = {}
    until = time.monotonic() + _LOOK_SECONDS
    for path in list(paths):
        if type(path) is not str or time.monotonic() > until:
            continue
        with suppress(OSError, ValueError), os.scandir(path or ".") as entries:
            for entry in entries:
                if len(versions) < _DISTRIBUTIONS_MAX and (record := _parse_record(entry.name)) is not None:
                    versions.setdefault(*record)
    return dict(sorted(versions.items()))


def _parse_record(record: str) -> tuple[str, str] | None:
    stem, kind = os.path.splitext(record)  # noqa: PTH122 - as above
    if kind not in (".dist-info", ".egg-info") or len(record) > 2 * _CHARS:
        return None
    name, _, rest = stem.partition("-")
    return _SEPARATORS.sub("-", name).lower()[:_CHARS], rest.partition("-")[0][:_CHARS]
