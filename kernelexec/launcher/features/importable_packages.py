"""Importable packages: a virtual environment's behind the interpreter's own, and installed distributions."""

from __future__ import annotations

import importlib
import os
import re
import site
import sys
import sysconfig
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

#: Limits of one listing: distributions, seconds, and characters of a name or version.
_DISTRIBUTIONS_MAX, _LOOK_SECONDS, _CHARS = 5000, 1.0, 100
_SEPARATORS = re.compile(r"[-_.]+")
_activated: dict[str, set[str]] = {}
"""Directories that this module added to ``sys.path``, and the ``.pth`` files that were read from them."""


def site_packages(venv: str) -> str:
    """Return the directory of a virtual environment's packages for this interpreter's version."""
    return str(sysconfig.get_path("purelib", "venv", {"base": venv, "platbase": venv}))


def activate_packages(venv: str) -> str:
    """Make a virtual environment's packages importable if its Python has this version.

    Return ``packages``, or ``commands`` if only commands find them, or ``interpreter`` if they are this interpreter's own.

    They follow the interpreter's own packages, so the kernel stays as it is. ``.pth`` files count; a new one is read at the
    next call.
    """
    if os.path.realpath(venv) == os.path.realpath(sys.prefix):
        return "interpreter"
    directory = site_packages(venv)
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
