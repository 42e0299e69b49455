"""What can be imported: a virtual environment's packages behind the interpreter's own, and which distributions there are."""

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

#: How many distributions one look tells at most, how long it may take, in seconds, and how long a name or version may be.
_MOST, _LOOK_SECONDS, _CHARS = 5000, 1.0, 100
_SEPARATORS = re.compile(r"[-_.]+")
_served: dict[str, set[str]] = {}
"""Directories of packages that are on ``sys.path`` by us, and their ``.pth`` files that were read."""


def site_packages(venv: str) -> str:
    """Where a virtual environment has the packages of this interpreter's version, if it has any."""
    return str(sysconfig.get_path("purelib", "venv", {"base": venv, "platbase": venv}))


def served(venv: str) -> str:
    """Have a virtual environment's packages be imported, where its Python is of this version; in which way they are.

    They stand behind the interpreter's own: what that has itself stays what it was, and so does the kernel. ``.pth`` files
    count, as ever; one that came since is read when this is called again.
    """
    if os.path.realpath(venv) == os.path.realpath(sys.prefix):
        return "interpreter"
    place = site_packages(venv)
    if not os.path.isdir(place):  # noqa: PTH112 - text in, text out
        return "commands"
    known = _served.get(place)
    names = {name for name in os.listdir(place) if name.endswith(".pth")}  # noqa: PTH208 - names only
    if known is None or place not in sys.path:
        site.addsitedir(place)
    else:
        for name in sorted(names - known):
            site.addpackage(place, name, None)
    _served[place] = names
    importlib.invalidate_caches()
    return "packages"


def distributions(paths: Iterable[Any]) -> dict[str, str]:
    """Names and versions of what is installed in these directories, the first of each name, as their records are called.

    No file is opened and nothing of the user's runs: what cells have put on the path may be anything.
    """
    found: dict[str, str] = {}
    until = time.monotonic() + _LOOK_SECONDS
    for path in list(paths):
        if type(path) is not str or time.monotonic() > until:
            continue
        with suppress(OSError, ValueError), os.scandir(path or ".") as entries:
            for entry in entries:
                if len(found) < _MOST and (said := _named(entry.name)) is not None:
                    found.setdefault(*said)
    return dict(sorted(found.items()))


def _named(record: str) -> tuple[str, str] | None:
    stem, kind = os.path.splitext(record)  # noqa: PTH122 - as above
    if kind not in (".dist-info", ".egg-info") or len(record) > 2 * _CHARS:
        return None
    name, _, rest = stem.partition("-")
    return _SEPARATORS.sub("-", name).lower()[:_CHARS], rest.partition("-")[0][:_CHARS]
