"""What is done beside a kernel, in a place like its own: wheels are fetched, a virtual environment is made and filled.

Who fetches has the network, and nothing of the user's; who fills sees what cells have written, and mostly no network: a cell
may have put its own program in the place of the environment's interpreter, which is run here.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import site
import subprocess
import sys
import venv
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ..features.packages import distributions
from ..owner import apply_limits
from ..sandbox.confinement import confine

#: In a virtual environment that is made of another one: where that has its packages, which would not be seen otherwise.
_ABOVE = "kernelexec.pth"
_CONFINED = "confined"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_QUIET = ("--disable-pip-version-check", "--no-input", "--no-color", "--no-cache-dir")
_WHEELS, _FETCHED, _REQUIREMENTS, _REPORT, _ANSWER = "wheels", "fetched", "requirements.txt", "report.json", "answer.json"


class _Failed(Exception):
    """It cannot be done; the message says why."""


def main(arguments: list[str]) -> None:
    """Do what ``order.json`` in a directory says, and leave the answer there; what pip says goes to stdout."""
    directory = Path(arguments[0])
    order = json.loads((directory / "order.json").read_text(encoding="utf-8"))
    try:
        if arguments[1:] != [_CONFINED]:
            _begin(order, directory)
        answer = _fill(order, directory) if order["fills"] else _fetch(order, directory)
    except (_Failed, OSError) as exc:
        answer = {"failure": str(exc)}
    (directory / _ANSWER).write_text(json.dumps(answer), encoding="utf-8")


def _begin(order: dict[str, Any], directory: Path) -> None:
    """Confine this process, and go on as the interpreter that is named: that, and what it imports, may be anybody's."""
    opened = [_opened(order["workspace"], order["venv"])] if order["fills"] else []
    _confine(order, directory, *opened)  # it, whatever stands in its place by then
    os.environ.update(order.get("environment", {}))
    for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"):
        os.environ.pop(name, None)
    if python := order.get("python"):
        os.execvp(python, [python, "-I", sys.argv[0], *sys.argv[1:], _CONFINED])  # noqa: S606 - no shell on purpose


def _fetch(order: dict[str, Any], directory: Path) -> dict[str, Any]:
    """Get wheels of what is wanted, and of all that it needs; what comes as source is built."""
    found = ["--find-links", order["wheels"]] if order["wheels"] else []
    return {
        "exit_code": _pip(["wheel", "--wheel-dir", str(directory / _FETCHED), *found, *_wanted(order, directory)], directory)
    }


def _fill(order: dict[str, Any], directory: Path) -> dict[str, Any]:
    """Have a virtual environment, made anew or where it is missing, and what is wanted in it."""
    place = Path(order["workspace"], *order["venv"])
    python = place / "bin" / "python"
    if order["fresh"] or not python.exists():
        _make(place)
    if not order["requirements"]:
        return {"exit_code": 0, "installed": [], "holds": _holds(place), "python": _version(place)}
    offline = [] if order["online"] else ["--isolated", "--no-index"]
    places = (*order["find"], order["wheels"], str(directory / _WHEELS))
    found = [argument for path in filter(None, places) for argument in ("--find-links", path)]
    report = directory / _REPORT
    options = [*offline, *found, "--report", str(report), "--no-warn-script-location"]
    code = _pip(["--python", str(python), "install", *options, *_wanted(order, directory)], directory)
    installed = _installed(report) if code == 0 else []
    return {"exit_code": code, "installed": installed, "holds": _holds(place), "python": _version(place)}


def _confine(order: dict[str, Any], directory: Path, *opened: int) -> None:
    said = order["confinement"]
    temporary = directory / "tmp"
    os.environ["TMPDIR"] = str(temporary)
    apply_limits(order.get("limits", {}))
    if said is not None:
        confine({**said, "opened": opened})
    os.chdir(temporary)


def _opened(top: str, parts: list[str]) -> int:
    """A directory in the workspace, made where it is missing; nobody's link is followed on the way there."""
    fd = os.open(top, _DIRECTORY)
    for part in parts:
        with suppress(FileExistsError):
            os.mkdir(part, dir_fd=fd)
        try:
            fd = os.open(part, _DIRECTORY, dir_fd=fd)
        except OSError as exc:
            raise _Failed(f"{os.path.join(top, *parts)} is a link, or no directory: remove it.") from exc  # noqa: PTH118 - text
    return fd


def _make(place: Path) -> None:
    """A virtual environment that sees what this interpreter has. One that is made of another sees only what its base has."""
    venv.EnvBuilder(system_site_packages=True, clear=True, symlinks=True, with_pip=False).create(place)
    if sys.prefix != sys.base_prefix:
        for packages in place.glob("lib/python*/site-packages"):
            (packages / _ABOVE).write_text("".join(f"{path}\n" for path in site.getsitepackages()), encoding="utf-8")


def _wanted(order: dict[str, Any], directory: Path) -> list[str]:
    """Behind a word that ends all options; what is exact, with its hashes, in a file, and without what it needs itself."""
    if not order["exact"]:
        return ["--", *order["requirements"]]
    lines = directory / _REQUIREMENTS
    lines.write_text("".join(f"{line}\n" for line in order["requirements"]), encoding="utf-8")
    return ["--no-deps", "--requirement", str(lines)]


def _pip(arguments: list[str], directory: Path) -> int:
    if importlib.util.find_spec("pip") is None:
        raise _Failed(f"{sys.executable} has no pip: install it there, or choose an interpreter or an image that has it.")
    argv = [sys.executable, "-I", "-m", "pip", *_QUIET, *arguments]
    return subprocess.run(
        argv, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT, cwd=directory / "tmp", check=False
    ).returncode


def _installed(report: Path) -> list[tuple[str, str, str | None]]:
    """Names, versions and hashes of what pip says that it has installed."""
    found = []
    for one in json.loads(report.read_text(encoding="utf-8"))["install"]:
        archive = one.get("download_info", {})
        digest = archive.get("archive_info", {}).get("hashes", {}).get("sha256") or _digest(str(archive.get("url", "")))
        found.append((one["metadata"]["name"], one["metadata"]["version"], digest))
    return found


def _digest(url: str) -> str | None:
    """Of a wheel that lies here."""
    parts = urlsplit(url)
    with suppress(OSError):
        if parts.scheme == "file" and parts.path.endswith(".whl"):
            with open(unquote(parts.path), "rb") as file:  # noqa: PTH123 - text in
                return hashlib.file_digest(file, "sha256").hexdigest()
    return None


def _holds(place: Path) -> dict[str, str]:
    return distributions(map(str, place.glob("lib/python*/site-packages")))


def _version(place: Path) -> str:
    """Of the environment's Python, as its configuration says; this one's where it does not."""
    with suppress(OSError, UnicodeDecodeError):
        lines = (line.partition("=") for line in (place / "pyvenv.cfg").read_text(encoding="utf-8").splitlines())
        said = {name.strip(): value.strip() for name, _, value in lines}
        return said.get("version") or said["version_info"] if said.keys() & {"version", "version_info"} else ""
    return ""
