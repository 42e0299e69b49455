"""Programs and modules safe to start on this machine before confinement: those not writable by any kernel.

A cell could leave a program or a module in a writable place, and the next start would run the file with all rights of the
user. So an interpreter writable by kernels is never started here.
"""

from __future__ import annotations

import os
import re
import shutil
import site
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from kernelexec.config import Config
from kernelexec.errors import InvalidConfig, InvalidWorkDir
from kernelexec.launcher import protocol
from kernelexec.provisioning import platform
from kernelexec.provisioning.launch import GUARD, LAUNCHER, LOADER_VARIABLES

# ld.so(8): most search paths are separated by colons or semicolons, the files of LD_PRELOAD by colons or spaces.
_PARTED, _PRELOADED = re.compile(f"[{os.pathsep};]"), re.compile(r"[:\s]")
_PACKAGES = ("lib*/python3*/site-packages", "lib*/python3*/dist-packages", "local/lib/python3*/dist-packages")
#: The beginning of the sentence about an environment in a directory of cells, which is so at every start.
OWN_CODE = "kernelexec itself is loaded from"
#: The directory of this package.
_PACKAGE = Path(__file__).resolve().parents[2]
_LINKS_MAX = 40
#: The last answer of each interpreter, with the times of its change and of its packages.
_has_ipykernel: dict[str, tuple[tuple[int, int], bool]] = {}
_SECONDS = 30.0
#: The interpreter writes no files and has no network.
_RULES = {"writable": [], "hidden": [], "readable": [], "network": "no-network" not in platform.PLATFORM.confinement}
_CHECK_CODE = "import importlib.util, sys; sys.exit(not importlib.util.find_spec('ipykernel'))"


@dataclass(frozen=True, slots=True)
class BootstrapEnvironment:
    """Environment and directory of a process before confinement, safe from files written by kernels."""

    environ: dict[str, str]
    cwd: str
    deferred: dict[str, object] = field(default_factory=dict)
    """Options of the launcher for restoring the kernel's environment and directory after confinement."""


def bootstrap(environ: dict[str, str], cwd: str, directories: Iterable[str]) -> BootstrapEnvironment:
    """Return a safe start for a process with that environment and directory after confinement."""
    safe = without_untrusted(environ, directories)
    deferred = {name: value for name, value in environ.items() if safe.get(name) != value}
    return BootstrapEnvironment(safe, "/", {"environment": deferred, "cwd": cwd})


def without_untrusted(environ: Mapping[str, str], directories: Iterable[str] = ()) -> dict[str, str]:
    """Return an environment with search paths limited to absolute paths outside those directories."""
    chosen, untrusted = dict(environ), list(directories)
    for name in LOADER_VARIABLES:
        paths = _split_variable(name, environ)
        trusted = [path for path in _keep_absolute(paths) if not is_beneath(path, untrusted)]
        if trusted != paths:
            del chosen[name]
            chosen |= {name: os.pathsep.join(trusted)} if trusted else {}
    return chosen


def own_code_paths() -> list[Path]:
    """Return the directories of this program: the package, and the surrounding virtual environment if any."""
    environment = [Path(sys.prefix).resolve()] if sys.prefix != sys.base_prefix else []
    return [*environment, *(path for path in (_PACKAGE,) if not any(map(path.is_relative_to, environment)))]


def is_beneath(path: str | Path, directories: Iterable[str | Path]) -> bool:
    """Return whether a path, as named or with links resolved, is among or below the directories."""
    names = {os.path.abspath(path), os.path.realpath(path)}  # noqa: PTH100 - no link is resolved
    return any(f"{name}/".startswith(f"{str(directory).rstrip('/')}/") for directory in directories for name in names)


def writable_directories(config: Config, workspace: str | None, *, with_temporary: bool = True) -> list[str]:
    """Return the writable directories of a session's kernels; empty for unconfined kernels.

    ``with_temporary`` adds a configured temporary directory.
    """
    if not (config.confines_kernels or config.isolation == "bubblewrap"):
        return []
    chosen = [config.work_dir, *config.confinement.writable, workspace]
    chosen += [config.environment.set.get("TMPDIR")] if with_temporary else []
    chosen += [context.path for context in config.context_paths if context.permission == "write"]
    paths = [os.path.expanduser(path) for path in chosen if path is not None]  # noqa: PTH111 - names of both kinds
    return [name for path in paths for name in (os.path.abspath(path), os.path.realpath(path))]  # noqa: PTH100


def all_writable_directories(config: Config, workspace: str | None) -> list[str]:
    """Return the writable directories of all sessions' kernels together."""
    directories = writable_directories(config, workspace)
    return [*directories, str(config.absolute_workspace.resolve())] if directories else []


def find_own_import(directories: Iterable[str]) -> str | None:
    """Return a path in those directories that this process imports from: package, environment or ``sys.path``; else None."""
    paths = (*map(str, own_code_paths()), *_list_site_directories(sys.executable), *search_paths(os.environ))
    return next((path for path in paths if is_beneath(path, directories)), None)


def keep_outermost(paths: Iterable[str]) -> list[str]:
    """Return the paths outside all others: a kernel with write access to an outer path can replace an inner path by a link."""
    unique = list(dict.fromkeys(paths))
    return [path for path in unique if not any(path != other and is_beneath(path, [other]) for other in unique)]


def find_import(python: str, environ: Mapping[str, str], directories: Iterable[str]) -> str | None:
    """Return a path in those directories that an interpreter with that environment loads files from, or None."""
    program, writable = shutil.which(python) or python, list(directories)
    paths = [
        program,
        *(str(link) for link, _ in links_of(program)),
        str(Path(program).parent.parent),
        *search_paths(environ),
        *_list_site_directories(python, writable),
    ]
    return next((path for path in paths if is_beneath(path, writable)), None)


def import_path(environ: Mapping[str, str]) -> list[str]:
    """Return the absolute module search paths in an environment."""
    return list(_keep_absolute(environ.get("PYTHONPATH", "").split(os.pathsep)))


def search_paths(environ: Mapping[str, str]) -> list[str]:
    """Return the absolute library and module search paths in an environment."""
    return [path for name in LOADER_VARIABLES for path in _keep_absolute(_split_variable(name, environ))]


def interpreter_paths(python: str) -> list[str]:
    """Return an interpreter and the directories read at the start, without starting the interpreter."""
    if python == sys.executable:
        return [sys.prefix, sys.base_prefix, sys.exec_prefix, *_keep_absolute(sys.path)]
    program = shutil.which(python) or python
    programs = [Path(path) for path in (program, os.path.realpath(program)) if os.path.isabs(path)]  # noqa: PTH117
    return [*map(str, programs), *(str(path.parent.parent) for path in programs)]


def links_of(path: str) -> Iterator[tuple[Path, Path]]:
    """Yield each link along a path, in directories too, with the unresolved target (at most 40 links)."""
    rest = Path(path)
    for _ in range(_LINKS_MAX):
        first = _first_link(rest)
        if first is None:
            return
        link, target = first
        yield link.parent.resolve() / link.name, target
        rest = link.parent / target / rest.relative_to(link)


def _first_link(path: Path) -> tuple[Path, Path] | None:
    for start in (*reversed(path.parents), path):
        with suppress(OSError):  # it is no link
            return start, start.readlink()
    return None


def _keep_absolute(paths: Iterable[str]) -> Iterator[str]:
    return (path for path in paths if os.path.isabs(path))  # noqa: PTH117 - text in, text out


def _split_variable(name: str, environ: Mapping[str, str]) -> list[str]:
    value = environ.get(name)
    return [] if value is None else (_PRELOADED if name == "LD_PRELOAD" else _PARTED).split(value)


def _list_site_directories(python: str, directories: Iterable[str] = ()) -> Iterator[str]:
    """Yield an interpreter's additional module directories, existing or not, without starting the interpreter.

    ``.pth`` files are read: a line is a directory, or code, in which any of ``directories`` counts if mentioned.
    """
    if python == sys.executable:
        yield from _keep_absolute(sys.path)
        yield from [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
        return
    program = Path(shutil.which(python) or python)
    prefixes = [program.parent.parent, Path(os.path.realpath(program)).parent.parent, Path("~/.local").expanduser()]
    yield str(prefixes[-1] / "lib")
    for packages in (directory for prefix in prefixes for pattern in _PACKAGES for directory in prefix.glob(pattern)):
        yield str(packages)
        for lines in packages.glob("*.pth"):
            yield from _read_pth(lines, directories)


def _read_pth(lines: Path, directories: Iterable[str]) -> Iterator[str]:
    with suppress(OSError):
        for line in map(str.strip, lines.read_text(encoding="utf-8", errors="replace").splitlines()):
            if line.startswith(("import ", "import\t")):
                yield from (directory for directory in directories if directory in line)
            elif line and not line.startswith("#"):
                yield os.path.join(lines.parent, line)  # noqa: PTH118 - text in, text out


def run_confined(python: str, program: str, untrusted: Iterable[str]) -> str | None:
    """Return the output of a program in that interpreter; None after a failure or 30 s.

    The interpreter may import any file, so confinement comes first. Nothing is loaded from the ``untrusted`` directories.
    """
    # Our own interpreter confines itself and then becomes the other one by exec: a .pth file there runs code at each start.
    argv = [sys.executable, *GUARD, str(LAUNCHER), protocol.CONFINED_FLAG, python, "-I", "-c", program]
    options = protocol.LaunchOptions(confinement={**_RULES, "temporary": tempfile.gettempdir()})
    environ = {**without_untrusted(os.environ, untrusted), **options.as_environment()}
    try:
        completed = subprocess.run(argv, capture_output=True, timeout=_SECONDS, check=True, cwd="/", env=environ)
    except (OSError, subprocess.SubprocessError):
        return None
    return completed.stdout.decode("utf-8", "replace")


def check_venv(config: Config) -> None:
    """Raise ``InvalidConfig`` for a missing virtual environment of this machine; containers check their own."""
    venv = config.programs.venv
    if venv is None or config.isolation == "container" or (venv / platform.PLATFORM.venv_directory).is_dir():
        return
    reason = f"has no directory {platform.PLATFORM.venv_directory}" if venv.is_dir() else "does not exist"
    message = f"programs.venv: {venv} {reason}: create a virtual environment there (`python -m venv {venv}`), or leave it out."
    raise InvalidConfig(message)


def choose_interpreter(config: Config, workspace: str | None = None) -> str:
    """Return the interpreter of kernels with that workspace, or of a fork server.

    An explicit option ``python`` comes first. Then comes the interpreter of ``programs.venv``, if kernels cannot write the
    environment and ipykernel is installed there, checked by a start of that interpreter after each change. The default is last.
    """
    venv = config.programs.venv
    if venv is None or "python" in config.model_fields_set:
        return config.python
    writable = all_writable_directories(config, workspace)
    if any(map(venv.resolve().is_relative_to, writable)):
        return config.python
    python = venv / platform.PLATFORM.venv_directory / platform.PLATFORM.venv_interpreter
    with suppress(OSError):
        packages = next(iter(sorted(venv.glob("lib/python*/site-packages"))), venv)
        version = python.stat().st_mtime_ns, packages.stat().st_mtime_ns  # changes when a package is installed
        known = _has_ipykernel.get(str(python))
        if known is None or known[0] != version:
            known = _has_ipykernel[str(python)] = version, run_confined(str(python), _CHECK_CODE, writable) is not None
        if known[1]:
            return str(python)
    return config.python


def check_workspace(config: Config, workspace: Path) -> None:
    """Raise ``InvalidWorkDir`` if a workspace holds the interpreter of all kernels, since cells could replace it."""
    if choose_interpreter(config) != choose_interpreter(config, str(workspace)):
        message = (
            f"{workspace} holds programs.venv ({config.programs.venv}), whose interpreter runs all kernels: cells could"
            " write it. Leave programs.venv out, or set that work_dir in the configuration: then kernels use `python`."
        )
        raise InvalidWorkDir(message)
