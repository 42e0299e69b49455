"""A single task beside a kernel and confined like the kernel: fetch wheels, or create and fill a virtual environment.

The fetching process has the network and no files of the user. The filling process sees the workspace and mostly no network,
since a cell may have replaced the environment's interpreter, which runs here.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ..features.python_environments import find_pip, make_environment, own_environment_place
from ..features.virtualenv import find_distributions
from ..owner import apply_limits
from ..protocol import ONE_SHOT_ANSWER, ONE_SHOT_ORDER
from ..sandbox.confinement import confine

_CONFINED = "confined"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_QUIET = ("--disable-pip-version-check", "--no-input", "--no-color", "--no-cache-dir")
#: Pip's own number: cells without a network have none.
_RETRIES = "5"
_WHEELS, _FETCHED, _REQUIREMENTS, _REPORT = "wheels", "fetched", "requirements.txt", "report.json"


class _TaskError(Exception):
    """A failed task; the message has the reason."""


def main(arguments: list[str]) -> None:
    """Do the task of a directory and write the answer there. Pip's output goes to stdout."""
    directory = Path(arguments[0])
    order = json.loads((directory / ONE_SHOT_ORDER).read_text(encoding="utf-8"))
    try:
        if arguments[1:] != [_CONFINED]:  # else ``_begin`` has executed this program once more
            _begin(order, directory)
        answer = _fill(order, directory) if order["fills"] else _fetch(order, directory)
    except (_TaskError, OSError) as exc:
        answer = {"failure": str(exc)}
    (directory / ONE_SHOT_ANSWER).write_text(json.dumps(answer), encoding="utf-8")


def _begin(order: dict[str, Any], directory: Path) -> None:
    """Confine this process, then execute the requested interpreter, which is untrusted together with its imports."""
    python = order.get("python")
    opened = [_open_directory(*_find_place(order, python or sys.executable))] if order["fills"] else []
    _confine(order, directory, *opened)  # the descriptor, since a cell may replace the directory meanwhile
    os.environ.update(order.get("environment", {}))
    for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"):
        os.environ.pop(name, None)
    # Only now: an untrusted interpreter could do anything before it confines itself.
    if python:
        os.execvp(python, [python, "-I", sys.argv[0], *sys.argv[1:], _CONFINED])  # noqa: S606 - no shell on purpose


def _fetch(order: dict[str, Any], directory: Path) -> dict[str, Any]:
    """Fetch wheels of the requirements and their dependencies, and build wheels of source distributions."""
    links = ["--find-links", order["wheels"]] if order["wheels"] else []
    options = ["--retries", _RETRIES, "--wheel-dir", str(directory / _FETCHED), *links]
    return {"exit_code": _pip(["wheel", *options, *_build_requirement_arguments(order, directory)], directory)}


def _fill(order: dict[str, Any], directory: Path) -> dict[str, Any]:
    """Create a missing or outdated virtual environment, and install the requirements."""
    top, names = _find_place(order)
    venv_path = Path(top, *names)
    python = venv_path / "bin" / "python"
    if order["fresh"] or not python.exists():
        if order["venv"]:
            venv.EnvBuilder(clear=True, symlinks=True, with_pip=False).create(venv_path)
        elif order["fresh"]:
            shutil.rmtree(venv_path / "lib", ignore_errors=True)
        make_environment(str(venv_path))
    if not order["requirements"]:
        return {"exit_code": 0, "installed": [], **_describe(venv_path)}
    offline = [] if order["online"] else ["--isolated", "--no-index"]
    sources = (*order["find"], order["wheels"], str(directory / _WHEELS))
    links = [argument for path in filter(None, sources) for argument in ("--find-links", path)]
    report = directory / _REPORT
    options = [*offline, *links, "--report", str(report), "--no-warn-script-location"]
    code = _pip(["--python", str(python), "install", *options, *_build_requirement_arguments(order, directory)], directory)
    installed = _read_report(report) if code == 0 else []
    return {"exit_code": code, "installed": installed, **_describe(venv_path)}


def _find_place(order: dict[str, Any], interpreter: str = sys.executable) -> tuple[str, Sequence[str]]:
    """Return the workspace and the relative path of the virtual environment, named or the session's own."""
    return (order["workspace"], order["venv"]) if order["venv"] else own_environment_place(order["workspace"], interpreter)


def _confine(order: dict[str, Any], directory: Path, *opened: int) -> None:
    confinement = order["confinement"]
    temporary = directory / "tmp"
    os.environ["TMPDIR"] = str(temporary)
    apply_limits(order.get("limits", {}))
    if confinement is not None:
        confine({**confinement, "opened": opened})
    os.chdir(temporary)


def _open_directory(top: str, names: Sequence[str]) -> int:
    """Open a directory in the workspace without following links, and create missing parts."""
    fd = os.open(top, _DIRECTORY)
    try:
        for name in names:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=fd)
            fd = os.open(name, _DIRECTORY, dir_fd=fd)
    except OSError as exc:
        is_other = exc.errno in (errno.ELOOP, errno.ENOTDIR)
        reason = "is a link, or no directory: remove it" if is_other else f"cannot be opened: {exc.strerror}"
        raise _TaskError(f"{os.path.join(top, *names)} {reason}.") from exc  # noqa: PTH118 - text
    return fd


def _build_requirement_arguments(order: dict[str, Any], directory: Path) -> list[str]:
    """Return pip's arguments for the requirements. Exact requirements, with hashes, are in a file without dependencies."""
    if not order["exact"]:
        return ["--", *order["requirements"]]
    lines = directory / _REQUIREMENTS
    lines.write_text("".join(f"{line}\n" for line in order["requirements"]), encoding="utf-8")
    return ["--no-deps", "--requirement", str(lines)]


def _pip(arguments: list[str], directory: Path) -> int:
    pip = find_pip()
    if pip is None:
        raise _TaskError(f"{sys.executable} has no pip: install it there, or choose an interpreter or an image that has it.")
    program = [pip + "/pip"] if pip.endswith(".whl") else ["-m", "pip"]
    argv = [sys.executable, "-I", *program, *_QUIET, *arguments]
    return subprocess.run(
        argv, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT, cwd=directory / "tmp", check=False
    ).returncode


def _read_report(report: Path) -> list[tuple[str, str, str | None, str]]:
    """Return the names, versions, hashes and archives (URL or file name) of pip's report of installed distributions."""
    installed = []
    for entry in json.loads(report.read_text(encoding="utf-8"))["install"]:
        source = entry.get("download_info", {})
        url = str(source.get("url", ""))
        digest = source.get("archive_info", {}).get("hashes", {}).get("sha256") or _digest(url)
        archive = unquote(url).rpartition("/")[2] if url.startswith("file:") else url
        installed.append((entry["metadata"]["name"], entry["metadata"]["version"], digest, archive))
    return installed


def _digest(url: str) -> str | None:
    """Return the SHA-256 of a local wheel; None for other URLs."""
    address = urlsplit(url)
    with suppress(OSError):
        if address.scheme == "file" and address.path.endswith(".whl"):
            with open(unquote(address.path), "rb") as file:  # noqa: PTH123 - text in
                return hashlib.file_digest(file, "sha256").hexdigest()
    return None


def _describe(venv_path: Path) -> dict[str, Any]:
    """Return the distributions of an environment, and the Python version of the configuration, empty if unknown."""
    version = ""
    with suppress(OSError, UnicodeDecodeError):
        lines = (line.partition("=") for line in (venv_path / "pyvenv.cfg").read_text(encoding="utf-8").splitlines())
        settings = {name.strip(): value.strip() for name, _, value in lines}
        version = settings.get("version") or settings.get("version_info", "")
    holds = find_distributions(map(str, venv_path.glob("lib/python*/site-packages")))
    return {"holds": holds, "python": version, "venv": str(venv_path)}
