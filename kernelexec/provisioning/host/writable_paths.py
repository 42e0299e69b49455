"""Programs and modules that may be started or imported before confinement: those that no kernel can write.

A cell could leave a program or a module elsewhere, and the next start would run it with all rights of the user.
"""

from __future__ import annotations

import os
import re
import shutil
import site
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from kernelexec.config import Config
from kernelexec.provisioning.container.mounts import own_code

#: Variables that name what a program is loaded from, by the system's loader, Python or OpenSSL: paths, parted as in PATH.
_LOADING = (
    *("LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT", "GCONV_PATH", "OPENSSL_CONF", "OPENSSL_MODULES", "OPENSSL_ENGINES"),
    *("PYTHONPATH", "PYTHONHOME", "PYTHONPYCACHEPREFIX", "PYTHONUSERBASE"),
)
_PARTED, _PRELOADED = re.compile(f"[{os.pathsep};]"), re.compile(r"[:\s]")
_PACKAGES = ("lib*/python3*/site-packages", "lib*/python3*/dist-packages", "local/lib/python3*/dist-packages")
_LINKS_MAX = 40


@dataclass(frozen=True, slots=True)
class First:
    """The environment and the directory of a process before it confines itself; it loads no file that kernels can write."""

    environ: dict[str, str]
    cwd: str
    later: dict[str, object] = field(default_factory=dict)
    """What it is told to change then, as the launcher's order."""


def first(environ: dict[str, str], cwd: str, places: Iterable[str]) -> First:
    """Return the beginning of a process that has to have that environment and that directory later."""
    safe = unloaded(environ, places)
    held = {name: value for name, value in environ.items() if safe.get(name) != value}
    return First(safe, "/", {"environment": held, "cwd": cwd})


def unloaded(environ: Mapping[str, str], places: Iterable[str] = ()) -> dict[str, str]:
    """Return an environment by which nothing is loaded from those places, nor from the working directory."""
    chosen, where = dict(environ), list(places)
    for name in _LOADING:
        found = _parts(name, environ)
        kept = [path for path in _absolute(found) if not within(path, where)]
        if kept != found:
            del chosen[name]
            chosen |= {name: os.pathsep.join(kept)} if kept else {}
    return chosen


def within(path: str | Path, places: Iterable[str | Path]) -> bool:
    """Return whether a path, or the target of its links, is one of the places or in one."""
    names = {os.path.abspath(path), os.path.realpath(path)}  # noqa: PTH100 - no link is resolved
    return any(f"{name}/".startswith(f"{str(place).rstrip('/')}/") for place in places for name in names)


def written(config: Config, workspace: str | None, *, temporary: bool = True) -> list[str]:
    """Return the directories that kernels of a session can write; nothing if they are not confined.

    With ``temporary`` a configured temporary directory is among them.
    """
    if not (config.confines_kernels or config.isolation == "bubblewrap"):
        return []
    named = [config.work_dir, *config.confinement.writable, workspace]
    named += [config.environment.set.get("TMPDIR")] if temporary else []
    named += [context.path for context in config.context_paths if context.permission == "write"]
    given = [os.path.expanduser(path) for path in named if path is not None]  # noqa: PTH111 - names of both kinds
    return [name for path in given for name in (os.path.abspath(path), os.path.realpath(path))]  # noqa: PTH100


def written_by_any(config: Config, workspace: str | None) -> list[str]:
    """Return the directories that kernels of any session can write."""
    places = written(config, workspace)
    return [*places, str(config.workspaces.resolve())] if places else []


def imported_by_us(places: Iterable[str]) -> str | None:
    """Return a path in those places from which this process is loaded: its package, its environment, its ``sys.path``."""
    found = (*map(str, own_code()), *_sites(sys.executable), *loaded_from(os.environ))
    return next((path for path in found if within(path, places)), None)


def outermost(paths: Iterable[str]) -> list[str]:
    """Return the paths that lie in no other one: a kernel that can write the outer path can replace the inner one by a link."""
    found = list(dict.fromkeys(paths))
    return [path for path in found if not any(path != other and within(path, [other]) for other in found)]


def imported_by(python: str, environ: Mapping[str, str], places: Iterable[str]) -> str | None:
    """Return a path in those places from which an interpreter with that environment is loaded."""
    program, where = shutil.which(python) or python, list(places)
    found = [*_ways(program), str(Path(program).parent.parent), *loaded_from(environ), *_sites(python, where)]
    return next((path for path in found if within(path, where)), None)


def import_path(environ: Mapping[str, str]) -> list[str]:
    """Return the absolute module search paths that an environment names."""
    return list(_absolute(environ.get("PYTHONPATH", "").split(os.pathsep)))


def loaded_from(environ: Mapping[str, str]) -> list[str]:
    """Return the absolute library and module search paths that an environment names."""
    return [path for name in _LOADING for path in _absolute(_parts(name, environ))]


def own_reading(python: str) -> list[str]:
    """Return the interpreter and the directories that it reads to start, without starting it."""
    if python == sys.executable:
        return [sys.prefix, sys.base_prefix, sys.exec_prefix, *_absolute(sys.path)]
    program = shutil.which(python) or python
    found = [Path(path) for path in (program, os.path.realpath(program)) if os.path.isabs(path)]  # noqa: PTH117
    return [*map(str, found), *(str(path.parent.parent) for path in found)]


def _absolute(paths: Iterable[str]) -> Iterator[str]:
    return (path for path in paths if os.path.isabs(path))  # noqa: PTH117 - text in, text out


def _parts(name: str, environ: Mapping[str, str]) -> list[str]:
    said = environ.get(name)
    return [] if said is None else (_PRELOADED if name == "LD_PRELOAD" else _PARTED).split(said)


def _ways(program: str) -> Iterator[str]:
    """Yield a path and each target of its links."""
    path = program
    for _ in range(_LINKS_MAX):
        yield path
        with suppress(OSError):
            path = os.path.join(os.path.dirname(path), os.readlink(path))  # noqa: PTH115, PTH118, PTH120 - text in, text out
            continue
        break


def _sites(python: str, places: Iterable[str] = ()) -> Iterator[str]:
    """Return the module directories of an interpreter besides its own, whether they exist or not, without starting it.

    Its ``.pth`` files are read: each line is a directory, or code, of which the paths that it names are taken.
    """
    if python == sys.executable:
        yield from _absolute(sys.path)
        yield from [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
        return
    program = Path(shutil.which(python) or python)
    prefixes = [program.parent.parent, Path(os.path.realpath(program)).parent.parent, Path("~/.local").expanduser()]
    yield str(prefixes[-1] / "lib")
    for packages in (found for prefix in prefixes for pattern in _PACKAGES for found in prefix.glob(pattern)):
        yield str(packages)
        for lines in packages.glob("*.pth"):
            yield from _named_by(lines, places)


def _named_by(lines: Path, places: Iterable[str]) -> Iterator[str]:
    with suppress(OSError):
        for line in map(str.strip, lines.read_text(encoding="utf-8", errors="replace").splitlines()):
            if line.startswith(("import ", "import\t")):
                yield from (place for place in places if place in line)
            elif line and not line.startswith("#"):
                yield os.path.join(lines.parent, line)  # noqa: PTH118 - text in, text out
