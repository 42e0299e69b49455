"""The virtual environments in a workspace: the project's, and the sessions' own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from kernelexec.launcher.protocol import OURS, OWN_ENVIRONMENTS, OWN_PACKAGES, PROJECT_VENV
from kernelexec.workspace.rmtree import CALL_SECONDS, remove_within

#: The most directories of a workspace, and the most entries of each, for a look: cells can create any number.
_DIRECTORIES_MAX, _ENTRIES_MAX = 20, 5000


def own_environments(workspace: Path) -> Path:
    """Return the directory of the virtual environments that belong to sessions of a workspace."""
    return workspace / OURS / OWN_ENVIRONMENTS


def has_module_of(workspace: Path, names: frozenset[str]) -> bool:
    """Return whether an environment in a workspace has a top-level module with any of the names."""
    environments = [workspace / PROJECT_VENV, *_entries([own_environments(workspace)], _DIRECTORIES_MAX)]
    return any(entry.name.partition(".")[0] in names for entry in _entries(_package_directories(environments)))


def remove_unused(workspace: Path) -> None:
    """Remove the sessions' own environments without packages, and our directory once empty. For a thread."""
    own = own_environments(workspace)
    for environment in _entries([own], _DIRECTORIES_MAX):
        if not any(entry.name not in (OWN_PACKAGES, "__pycache__") for entry in _entries(_package_directories([environment]))):
            remove_within(workspace, environment.relative_to(workspace), seconds=CALL_SECONDS)
    with suppress(OSError):
        own.rmdir()
        own.parent.rmdir()


def _package_directories(environments: Iterable[Path]) -> Iterator[Path]:
    for library in _entries([environment / "lib" for environment in environments], _DIRECTORIES_MAX):
        yield library / "site-packages"


def _entries(directories: Iterable[Path], limit: int = _ENTRIES_MAX) -> Iterator[Path]:
    """Yield the entries of directories, up to a limit for each. Missing directories have none."""
    for directory in directories:
        with suppress(OSError):
            yield from islice(directory.iterdir(), limit)
