"""Python packages for a build without network: fetched here, for the Python and the machine of the image."""

from __future__ import annotations

import platform as machine
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from kernelexec.docker.images.recipes import Recipe, write_files
from kernelexec.errors import ImageBuildFailed, InvalidRequest

_ARCHITECTURES = {"amd64": "x86_64", "x86_64": "x86_64", "arm64": "aarch64", "aarch64": "aarch64"}
#: The C library of Debian 12: what is built for it, or for an older one, runs in all bases that are named in the documentation.
_GLIBC = 36
_OLD = ("manylinux2014", "manylinux2010", "manylinux1")
_BASE_PYTHON = re.compile(r"python:(?P<version>3\.\d+)")
_VERSION = re.compile(r"3\.\d+(\.\d+)?")
_SAID_CHARS = 2000


def fetch_wheels(recipe: Recipe, directory: Path, *, python: str | None = None, platform: str | None = None) -> list[Path]:
    """Put all wheels of a recipe into a directory, by pip; the paths of those that are there then.

    Raises:
        InvalidRequest: that is no Python version, or no platform that has wheels.
        ImageBuildFailed: pip did not get them; the message ends with what it said.
    """
    with tempfile.TemporaryDirectory(prefix="kx-wheels-") as lists:
        write_files({name: recipe.files[name] for name in ("requirements.txt", "pins.txt")}, Path(lists))
        directory.mkdir(parents=True, exist_ok=True)
        command = download_command(Path(lists), directory, python=python or python_of(recipe), platform=platform)
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if ended.returncode:
        why = ended.stdout.strip()[-_SAID_CHARS:]
        raise ImageBuildFailed(f"pip did not fetch the wheels:\n{why}")
    return sorted(directory.glob("*.whl"))


def python_of(recipe: Recipe) -> str:
    """The Python of the base that the recipe names; that of this process where it does not say."""
    found = _BASE_PYTHON.search(recipe.base_image)
    return found["version"] if found else "{}.{}".format(*sys.version_info[:2])


def download_command(lists: Path, directory: Path, *, python: str, platform: str | None) -> list[str]:
    """How pip is asked, with every name that a fitting wheel may have for its platform.

    Raises:
        InvalidRequest: that is no Python version, or no platform that has wheels.
    """
    if not _VERSION.fullmatch(python):
        message = f"{python!r} is no version of Python as 3.11 or 3.11.2: `python3 --version` in the base image says it."
        raise InvalidRequest(message)
    given = (platform or f"linux/{machine.machine()}").lower()
    architecture = _ARCHITECTURES.get(given.removeprefix("linux/"))
    if not architecture:
        message = f"There are no wheels for {given}: linux/amd64 and linux/arm64 have them."
        raise InvalidRequest(message)
    names = (*(f"manylinux_2_{minor}" for minor in range(_GLIBC, 4, -1)), *_OLD)
    return [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--only-binary", ":all:", "--implementation", "cp", "--python-version", python),
        *(word for name in names for word in ("--platform", f"{name}_{architecture}")),
        *("--dest", str(directory), "-r", str(lists / "requirements.txt"), "-c", str(lists / "pins.txt")),
    ]
