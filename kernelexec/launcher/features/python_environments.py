"""Python environments other than the kernel's own interpreter: each session's own environment, and other ones nearby.

The session's environment sees the packages of the interpreter. So pip, commands and cells use the same environment before and
after an installation, which writes in the workspace only. Making the environment takes no process, no pip, and less than a
millisecond. Other environments are searched for modules missing in the kernel's.
"""

from __future__ import annotations

import importlib.util
import os
import re
import site
import sys
import sysconfig
import zlib
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path

from ..protocol import OURS, OWN_ENVIRONMENTS, OWN_PACKAGES

#: The kernel's interpreter; ``sys.executable`` and ``sys.prefix`` are those of the environment later.
INTERPRETER, INTERPRETER_PREFIX = sys.executable, sys.prefix
#: The directories of its packages, which need not all be searched.
INTERPRETER_PACKAGES = (*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else ()))
_PIP = '#!/bin/sh\nexec "${0%/*}/python" -m pip "$@"\n'
_PYTHON = f"python{sys.version_info[0]}.{sys.version_info[1]}"
_INTERPRETER = re.compile(r"python3?(?:\.\d+)?")
_MODULE = re.compile(r"[A-Za-z_]\w*")
#: Environments of one search, and the names of those that projects keep next to their code.
_ENVIRONMENTS_MAX, _PROJECT_VENVS = 20, (".venv", "venv", "env")


def own_environment_place(workspace: str, interpreter: str = INTERPRETER) -> tuple[str, tuple[str, ...]]:
    """Return the workspace (a branch's: the original session's), and the parts of an interpreter's environment's path there."""
    parts = OURS, OWN_ENVIRONMENTS, f"{zlib.crc32(os.fsencode(interpreter)):08x}"
    return workspace.partition(f"/{OURS}/")[0], parts  # workspaces of branches are below it


def package_directory(path: str) -> str:
    """Return the directory of the packages of a virtual environment for this version of Python."""
    return str(sysconfig.get_path("purelib", "venv", {"base": path, "platbase": path}))


def make_environment(path: str) -> None:
    """Make an environment, or the missing files of an environment; installed packages stay.

    Raises:
        OSError: a file cannot be written.
    """
    base, pip = str(getattr(sys, "_base_executable", INTERPRETER)), find_pip()
    packages = Path(package_directory(path))
    programs = Path(path, "bin")
    packages.mkdir(parents=True, exist_ok=True)
    programs.mkdir(exist_ok=True)
    _write(Path(path, "pyvenv.cfg"), _configuration(base))
    parents = [directory for directory in INTERPRETER_PACKAGES if directory in sys.path]
    own_pip = "" if pip is None else f"{_link_pip(path, pip)}\n"
    imports = "".join(f"import site; site.addsitedir({directory!r})\n" for directory in parents)
    _write(packages / OWN_PACKAGES, own_pip + imports)
    for name in ("pip", "pip3", _PYTHON.replace("python", "pip")) if pip is not None else ():
        _write(programs / name, _PIP, mode=0o755)
    for name in ("python3", _PYTHON, "python"):  # the last one makes it an environment
        _link(programs / name, base)


def _link_pip(path: str, pip: str) -> str:
    """Link a pip into an environment, to make pip report a place there; return the entry for the import path.

    The metadata of pip stay outside of the environment, so an upgrade removes no file of the linked pip.
    """
    target = Path(pip) if pip.endswith(".whl") else Path(pip).parent
    link = Path(path, "lib", "pip", target.name)
    link.parent.mkdir(parents=True, exist_ok=True)
    _link(link, str(target))
    return str(link if pip.endswith(".whl") else link.parent)


def _link(link: Path, target: str) -> None:
    if not link.is_symlink() or str(link.readlink()) != target:
        link.unlink(missing_ok=True)
        link.symlink_to(target)


@cache  # the first call comes before an environment is on the import path
def find_pip() -> str | None:
    """Return the path of this interpreter's pip, or of ensurepip's wheel if pip is missing, as in an environment of uv."""
    if (spec := importlib.util.find_spec("pip")) is not None:
        return spec.origin
    spec = importlib.util.find_spec("ensurepip")
    directories = [Path(spec.origin).parent / "_bundled"] if spec is not None and spec.origin else []
    if wheels := sysconfig.get_config_var("WHEEL_PKG_DIR"):  # of Linux distributions
        directories.append(Path(wheels))
    return next((str(wheel) for directory in directories for wheel in sorted(directory.glob("pip-*.whl"))), None)


def _configuration(base: str) -> str:
    version = ".".join(map(str, sys.version_info[:3]))
    return f"home = {os.path.dirname(base)}\ninclude-system-site-packages = false\nversion = {version}\n"  # noqa: PTH120 - text


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file, unless the text is there already."""
    with suppress(OSError, UnicodeDecodeError):
        if path.read_text(encoding="utf-8") == text:
            return
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)


def find_python_with(module: str) -> str | None:
    """Return the path of the first other interpreter with a top-level module, without running any."""
    own = {os.path.realpath(directory) for directory in sys.path if directory}
    if not _MODULE.fullmatch(module):
        return None
    for python in islice(_interpreters(), _ENVIRONMENTS_MAX):
        with suppress(OSError):
            directories = [path for path in _package_directories(python) if os.path.realpath(path) not in own]
            if any(_has_module(path, module) for path in directories):
                return str(python)
    return None


def _interpreters() -> Iterator[Path]:
    """Yield the interpreters of nearby virtual environments and of the search path, each environment once."""
    nearby = [Path(name, "bin") for name in _PROJECT_VENVS]
    searched = [Path(entry) for entry in os.environ.get("PATH", os.defpath).split(os.pathsep) if entry]
    seen = {os.path.realpath(prefix) for prefix in (INTERPRETER_PREFIX, sys.prefix)}
    for directory in (*(path.absolute() for path in nearby), *searched):
        prefix = os.path.realpath(directory.parent)
        if prefix in seen:
            continue
        seen.add(prefix)
        with suppress(OSError):
            names = sorted(path.name for path in directory.iterdir() if _INTERPRETER.fullmatch(path.name))
            yield from (directory / name for name in names[-1:])


def _package_directories(python: Path) -> Iterator[Path]:
    for pattern in ("lib/python3*/site-packages", "lib/python3*/dist-packages", "local/lib/python3*/dist-packages"):
        yield from python.parent.parent.glob(pattern)


def _has_module(directory: Path, module: str) -> bool:
    files = (directory / module / "__init__.py", directory / f"{module}.py")
    return any(path.is_file() for path in files) or any(directory.glob(f"{module}.*.so"))
