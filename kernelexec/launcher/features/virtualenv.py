"""The virtual environment of commands and cells, with programs and packages, or a prefix of commands."""

from __future__ import annotations

import importlib
import os
import platform as python_platform
import re
import site
import sys
import sysconfig
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from .. import platform
from ..protocol import PROJECT_VENV
from .python_environments import (
    INTERPRETER,
    INTERPRETER_PACKAGES,
    INTERPRETER_PREFIX,
    make_environment,
    own_environment_place,
    package_directory,
)

_ACTIVE, _PIP_PYTHON = "VIRTUAL_ENV", "PIP_PYTHON"
#: Limits of one listing: distributions, seconds, and characters of a name or version.
_DISTRIBUTIONS_MAX, _LOOK_SECONDS, _CHARS = 5000, 1.0, 100
_SEPARATORS = re.compile(r"[-_.]+")
#: Modules of which cells have the kernel's own, since it has objects of them for cells.
_KERNEL_MODULES = frozenset(
    {"IPython", "ipykernel", "traitlets", "jupyter_client", "jupyter_core", "zmq", "tornado", "comm", "psutil"}
)
#: The packages of which new versions are reported, and the part of a distribution's list of files that is read.
_LISTED_MAX, _RECORD_CHARS = 20, 1024 * 1024
_activated: dict[str, set[str]] = {}
"""Directories that this module added to ``sys.path``, and the ``.pth`` files that were read from them."""


class VirtualEnv:
    """The owner's choice of programs; nothing by default.

    A prefix has precedence over a named virtual environment. A named environment has precedence over ``.venv`` in the kernel's
    home directory, looked up each time. Otherwise the session has its own environment there, active from the first cell on.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.prefix: list[str] = list(options.get("prefix") or ())
        self.import_state: dict[str, Any] | None = None
        """Path and state of the virtual environment for imports of cells; None before the first cell."""
        self._has_options = bool(options)
        self._path: str | None = options.get("venv")
        self._keeps_path = bool(options.get("keeps_path", True))
        self._active = os.environ.get(_ACTIVE)
        self._own: str | None = None
        """The session's own environment, once it is active."""
        self._entered: str | None = None
        self._used: str | None = None
        """The environment whose programs this process uses."""
        self._pip_python: str | None = None
        """Its Python, if it has no pip."""
        self.directs_pip = False
        """Whether the next command runs pip of this interpreter for the virtual environment."""
        self._report: dict[str, Any] = {}
        self._followed: str | None = None
        """The directory of packages whose changes are reported, with its time and its distributions when last seen."""
        self._changed_at = 0
        self._versions: dict[str, str] = {}
        self.set_home()

    def check(self) -> None:
        """Exit with a message if the named path is no virtual environment."""
        if self._path is not None and not _has_programs(self._path):
            problem = "is none" if os.path.isdir(self._path) else "is not there"  # noqa: PTH112 - text in, text out
            lack = f"it has no directory {platform.PLATFORM.programs_directory}"
            sys.exit(f"The virtual environment {self._path} {problem}: {lack}. Create it, or leave the setting out.")

    def set_home(self) -> None:
        """Look up the virtual environment anew, from the present directory."""
        self._home, self._is_pending = "", self._has_options
        with suppress(OSError):
            self._home = os.getcwd()  # noqa: PTH109 - as above

    @property
    def venv(self) -> str | None:
        """The present virtual environment."""
        if not self._has_options or self._path is not None:
            return self._path
        default = os.path.join(self._home, PROJECT_VENV)  # noqa: PTH118 - as above
        return default if _has_programs(default) else self._own

    @property
    def active(self) -> str | None:
        """The virtual environment of commands; None with a prefix, or after a cell has activated another one."""
        mine = self._active == os.environ.get(_ACTIVE)  # otherwise a cell has activated another one
        return self.venv if mine and not self.prefix else None

    def environment(self, changes: Mapping[str, str | None], since: str | None = None) -> dict[str, str]:
        """Return the environment of a command: this process's, with the virtual environment's programs first, and ``changes``.

        PATH stays the same if a command set it ``since`` this virtual environment was active. Without pip there, another pip
        installs there, directed by ``PIP_PYTHON``.
        """
        self.enter()
        variables = {name: value for name, value in {**os.environ, **changes}.items() if value is not None}
        venv = self.active
        if venv is None or _ACTIVE in changes:
            if variables.get(_PIP_PYTHON) == self._pip_python:
                variables.pop(_PIP_PYTHON, None)
            return variables
        if "PYTHONHOME" not in changes:
            variables.pop("PYTHONHOME", None)
        if venv != self._own:
            variables[_ACTIVE] = venv
            programs = _programs(venv)
            if "PATH" not in changes or since != venv:
                variables["PATH"] = _put_first(programs, variables.get("PATH") or os.defpath)
            if self.directs_pip or not os.path.exists(os.path.join(programs, "pip")):  # noqa: PTH110, PTH118 - as below
                variables.setdefault(_PIP_PYTHON, os.path.join(programs, "python"))  # noqa: PTH118 - as below
        return variables

    def enter(self) -> None:
        """Use the virtual environment of this home, unless in use; make the session's own again if a cell removed it."""
        venv = self.venv
        if self._is_pending or venv != self._entered or (venv is not None and venv == self._own and not _has_programs(venv)):
            self.activate()

    def activate(self) -> None:
        """Make the packages of the virtual environment importable if possible."""
        self._is_pending = False
        if (self.venv is None or self.venv == self._own) and self._has_options and self._home:
            with suppress(OSError):  # the workspace cannot be written
                make_environment(self._own_path)
                self._own = self._own_path
        venv, state = self.venv, None
        self._entered = venv  # also if its packages hang
        if venv is not None:
            served = _import_from(venv)
            state = {"path": venv, "served": "own" if venv == self._own and served == "packages" else served}
            if served == "packages":
                self._use_programs(venv)
                self._follow(package_directory(venv))
        self.import_state = self._report["venv"] = state

    def _use_programs(self, venv: str) -> None:
        """Use the programs of an environment in this process, also by PATH, unless PATH was set on purpose."""
        before, self._used = self._used, venv
        if venv == before:
            return
        programs = _programs(venv)
        python, pip = os.path.join(programs, "python"), os.path.join(programs, "pip")  # noqa: PTH118 - text
        has_pip = venv == self._own or os.path.exists(pip)  # noqa: PTH110 - text
        if has_pip:  # otherwise ``sys.executable -m pip`` is another one's, and installs there
            sys.executable = python
            _enter_prefix(venv)
            if (spawn := sys.modules.get("multiprocessing.spawn")) is not None:
                spawn.set_executable(python)
        if os.environ.get(_PIP_PYTHON) == self._pip_python:
            os.environ.pop(_PIP_PYTHON, None)
        self._pip_python = None if has_pip else python
        if self._pip_python is not None:
            os.environ.setdefault(_PIP_PYTHON, self._pip_python)
        if not self.prefix and not self._keeps_path and self._active == os.environ.get(_ACTIVE):
            entries = os.environ.get("PATH", os.defpath).split(os.pathsep)
            others = [entry for entry in entries if before is None or entry != _programs(before)]
            if (directory := os.path.dirname(INTERPRETER)) not in others:  # noqa: PTH120 - text
                others.insert(0, directory)
            os.environ |= {"PATH": os.pathsep.join([programs, *others]), _ACTIVE: venv}
            self._active = venv

    @property
    def _own_path(self) -> str:
        workspace, parts = own_environment_place(self._home)
        return os.path.join(workspace, *parts)  # noqa: PTH118 - text

    def take_report(self) -> dict[str, Any]:
        """Return all news since the last reply: the virtual environment, and new packages not seen by cells.

        Loaded modules hide ``hidden`` packages until a restart. ``kept`` packages stay the kernel's own, also for cells.
        """
        report, self._report = self._report, {}
        with suppress(Exception):  # a cell may have replaced functions of the standard library
            directory = self._followed
            if directory is not None and self.import_state is not None and self._changed_at != _changed_at(directory):
                _import_from(self.import_state["path"])
                report |= self._look(directory)
        return report

    def _follow(self, directory: str) -> None:
        """Report packages installed into a directory from now on, and present packages not seen by cells.

        Before the first cell, modules there replace the launcher's loaded modules for cells, if Python can load them twice.
        """
        if directory == self._followed:
            return
        is_first, self._followed, self._versions = self._followed is None, directory, {}
        if not is_first:
            self._changed_at, self._versions = _changed_at(directory), find_distributions([directory])
            return
        for _, modules in _find_modules(directory, find_distributions([directory])):
            loaded = [name for name in sys.modules if name.partition(".")[0] in modules]
            # Many extension modules cannot be initialised twice in one process. The launcher keeps its references to others.
            if not modules & _KERNEL_MODULES and not any(_is_extension(sys.modules[name]) for name in loaded):
                for name in loaded:
                    del sys.modules[name]
        self._report |= self._look(directory)

    def _look(self, directory: str) -> dict[str, list[str]]:
        """Return a report on new packages since the last look."""
        before = self._versions
        self._changed_at, self._versions = _changed_at(directory), find_distributions([directory])
        new = {name for name, version in self._versions.items() if before.get(name) != version}
        report: dict[str, list[str]] = {}
        for name, modules in _find_modules(directory, new):
            loaded = [module for module in map(sys.modules.get, modules) if module is not None]
            if any(name in before or not _is_beneath(module, directory) for module in loaded):
                kind = "kept" if _KERNEL_MODULES & modules else "hidden"
                report[kind] = sorted([*report.get(kind, ()), f"{name} {self._versions[name]}"])[:_LISTED_MAX]
        return report

    def describe(self) -> dict[str, Any]:
        """Describe interpreter, system, virtual environment and packages, without running user code."""
        coming = (self.venv or self._own_path) if self._is_pending else None  # with the first cell
        installed = find_distributions([*([] if coming is None else [package_directory(coming)]), *sys.path])
        system = f"{python_platform.system()} {python_platform.release()}"  # `platform.platform()` would start a program
        with suppress(OSError):
            system = python_platform.freedesktop_os_release()["PRETTY_NAME"]
        interpreter = {"python": INTERPRETER, "version": ".".join(map(str, sys.version_info[:3])), "prefix": INTERPRETER_PREFIX}
        interpreter["system"] = system
        venv, state = self.venv, self.import_state or {}
        served = state.get("served") if venv is not None and state.get("path") == venv else None
        description = {**interpreter, "venv": venv, "served": served, "command_prefix": self.prefix, "packages": installed}
        return {"status": "ok", **description}


def _enter_prefix(venv: str) -> None:
    """Set the prefix of this process to an environment, as in the environment's own Python, so installations go there."""
    sys.prefix = sys.exec_prefix = venv
    site.PREFIXES[:] = [venv]
    sysconfig.get_config_vars().update(dict.fromkeys(("prefix", "exec_prefix", "base", "platbase"), venv))


def _put_first(directory: str, path: str) -> str:
    return path if path.split(os.pathsep, 1)[0] == directory else os.pathsep.join([directory, path])


def _has_programs(venv: str) -> bool:
    return os.path.isdir(_programs(venv))  # noqa: PTH112 - called for each command


def _programs(venv: str) -> str:
    return os.path.join(venv, platform.PLATFORM.programs_directory)  # noqa: PTH118 - called for each command


def _changed_at(directory: str) -> int:
    try:
        return os.stat(directory).st_mtime_ns  # noqa: PTH116 - called for each cell
    except OSError:
        return 0


def _import_from(venv: str) -> str:
    """Make the packages of a virtual environment for this version of Python importable.

    Return ``packages``, ``commands`` if only commands find the packages, or ``interpreter`` for this interpreter's own
    environment. The packages precede the interpreter's own, as in the environment's Python, and those of an environment used
    before. ``.pth`` files count; new files are read at the next call.
    """
    if os.path.realpath(venv) == os.path.realpath(INTERPRETER_PREFIX):
        return "interpreter"
    directory = package_directory(venv)
    if not os.path.isdir(directory):  # noqa: PTH112 - text in, text out
        return "commands"
    read_files = _activated.get(directory)
    names = {name for name in os.listdir(directory) if name.endswith(".pth")}  # noqa: PTH208 - names only
    count = len(sys.path)
    if read_files is None or directory not in sys.path:
        site.addsitedir(directory)
    else:
        for name in sorted(names - read_files):
            site.addpackage(directory, name, None)
    added = sys.path[count:]
    later = [*INTERPRETER_PACKAGES, *(other for other in _activated if other != directory)]
    first = min((index for index, path in enumerate(sys.path) if path in later), default=count)
    sys.path[first:] = [*added, *sys.path[first:count]]
    if _sees_system_packages(venv):
        sys.path += [path for path in site.getsitepackages([sys.base_prefix]) if path not in sys.path]
    _activated[directory] = names
    importlib.invalidate_caches()
    return "packages"


def _sees_system_packages(venv: str) -> bool:
    """Return whether an environment includes the packages of its base Python."""
    with suppress(OSError, UnicodeDecodeError):
        lines = Path(venv, "pyvenv.cfg").read_text(encoding="utf-8").lower().splitlines()
        return any(re.fullmatch(r"include-system-site-packages\s*=\s*true\s*", line) for line in lines)
    return False


def _is_beneath(module: Any, directory: str) -> bool:
    return str(getattr(module, "__file__", None) or "").startswith(f"{directory}/")


def _is_extension(module: Any) -> bool:
    return str(getattr(module, "__file__", None) or "").endswith((".so", ".pyd"))


def _find_modules(directory: str, names: Collection[str]) -> Iterator[tuple[str, set[str]]]:
    """Yield the named distributions of a directory with their top-level modules."""
    for entry in os.scandir(directory) if names else ():
        record = _parse_record(entry.name)
        if record is None or record[0] not in names:
            continue
        modules = {record[0].replace("-", "_")}
        with suppress(OSError), open(os.path.join(entry.path, "RECORD"), encoding="utf-8", errors="replace") as file:  # noqa: PTH118, PTH123 - as above
            for line in file.read(_RECORD_CHARS).splitlines():
                modules.add(re.split(r"[/.,]", line, maxsplit=1)[0])
        yield record[0], modules


def find_distributions(paths: Iterable[Any]) -> dict[str, str]:
    """Return names and versions of the distributions in directories, by the names of their records; the first record counts.

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
