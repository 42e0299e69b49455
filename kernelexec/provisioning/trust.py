"""What can be started or imported before anything confines it: only what no kernel can write.

A cell could leave a program or a module there, and the next start would run it with all rights of the user.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from kernelexec.config import Config
from kernelexec.provisioning.mounts import own_code


def within(path: str | Path, places: Iterable[str | Path]) -> bool:
    """Whether a path, as it is named or as it leads, is one of the places or in one."""
    names = {os.path.abspath(path), os.path.realpath(path)}  # noqa: PTH100 - no link is resolved
    return any(f"{name}/".startswith(f"{str(place).rstrip('/')}/") for place in places for name in names)


def written(config: Config, workspace: str | None, *, temporary: bool = True) -> list[str]:
    """Where the kernels of a session can write, and so put programs, modules and links; nothing where they could anywhere.

    A ``temporary`` directory that was chosen counts as the rest does, or not.
    """
    if not (config.confines or config.isolation == "bubblewrap"):
        return []
    named = [config.work_dir, *config.confinement.writable, workspace]
    named += [config.environment.set.get("TMPDIR")] if temporary else []
    named += [context.path for context in config.context_paths if context.permission == "write"]
    given = [os.path.expanduser(path) for path in named if path is not None]  # noqa: PTH111 - names of both kinds
    return [name for path in given for name in (os.path.abspath(path), os.path.realpath(path))]  # noqa: PTH100


def imported_by_us(places: Iterable[str]) -> str | None:
    """What this process imports from that lies in one of those places: its package, its environment, its ``sys.path``."""
    return next((path for path in map(str, (*own_code(), *_absolute(sys.path))) if within(path, places)), None)


def outermost(paths: Iterable[str]) -> list[str]:
    """The paths, without those that lie in others: who can write those may put links in the place of these."""
    found = list(dict.fromkeys(paths))
    return [path for path in found if not any(path != other and within(path, [other]) for other in found)]


def imported_by(python: str, environ: Mapping[str, str], places: Iterable[str]) -> str | None:
    """The same of an interpreter that is started with that environment."""
    program = shutil.which(python) or python
    found = [program, str(Path(program).parent.parent), *import_path(environ)]
    return next((path for path in found if within(path, places)), None)


def import_path(environ: Mapping[str, str]) -> list[str]:
    """Where an environment says that modules are: what depends on nobody's working directory."""
    return list(_absolute(environ.get("PYTHONPATH", "").split(os.pathsep)))


def own_reading(python: str) -> list[str]:
    """What an interpreter reads to start: itself, and directories. It is not asked, since that would start it."""
    if python == sys.executable:
        return [sys.prefix, sys.base_prefix, sys.exec_prefix, *_absolute(sys.path)]
    program = shutil.which(python) or python
    found = [Path(path) for path in (program, os.path.realpath(program)) if os.path.isabs(path)]  # noqa: PTH117
    return [*map(str, found), *(str(path.parent.parent) for path in found)]


def _absolute(paths: Iterable[str]) -> Iterator[str]:
    return (path for path in paths if os.path.isabs(path))  # noqa: PTH117 - text in, text out
