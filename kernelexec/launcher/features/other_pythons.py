"""The other Python environments in sight of a kernel, for a module that the kernel's own lacks."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

_INTERPRETER = re.compile(r"python3?(?:\.\d+)?")
_MODULE = re.compile(r"[A-Za-z_]\w*")
#: Environments of one search, and the names of those that projects keep beside their code.
_ENVIRONMENTS_MAX, _PROJECT_VENVS = 20, (".venv", "venv", "env")


def find_python_with(module: str) -> str | None:
    """Return the path of the first other interpreter that has a top-level module; it is not run."""
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
    seen = {os.path.realpath(sys.prefix)}
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
