"""Virtual environments, and wheels that are made by hand: no network, no build."""

from __future__ import annotations

import base64
import hashlib
import io
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path


def made_venv(path: Path, *, system: bool = False, python: str = sys.executable) -> Path:
    """A virtual environment without pip; with a program of its own, ``marker``, that says where it is."""
    more = ["--system-site-packages"] if system else []
    subprocess.run([python, "-m", "venv", "--without-pip", *more, str(path)], check=True)
    program = path / "bin" / "marker"
    program.write_text(f"#!/bin/sh\necho of {path.name}\n")
    program.chmod(0o755)
    return path


def packages_of(venv: Path) -> Path:
    """Where its packages are."""
    [actual] = (venv / "lib").glob("python*/site-packages")
    return actual


def made_wheel(directory: Path, name: str, version: str, *, requires: str = "", code: str = "") -> Path:
    """A wheel of one module, which has its version."""
    directory.mkdir(parents=True, exist_ok=True)
    record = f"{name}-{version}.dist-info"
    requirement = f"Requires-Dist: {requires}\n" if requires else ""
    files = {
        f"{name}.py": f"version = {version!r}\n{code}",
        f"{record}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requirement}",
        f"{record}/WHEEL": "Wheel-Version: 1.0\nGenerator: by hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = [f"{path},sha256={_digest(text)},{len(text.encode())}" for path, text in files.items()]
    files[f"{record}/RECORD"] = "\n".join([*lines, f"{record}/RECORD,,"]) + "\n"
    path = directory / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for location, text in files.items():
            wheel.writestr(location, text)
    return path


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def made_source(directory: Path, name: str, seeing: str) -> Path:
    """A package of source that builds itself, without any tool; its module has what an expression was when it was built."""
    directory.mkdir(parents=True, exist_ok=True)
    backend = Path(__file__).read_text(encoding="utf-8").split("def made_source")[0]
    builds = f"""
import socket, urllib.request

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    try:
        seen = {seeing}
    except OSError as exc:
        seen = type(exc).__name__
    return made_wheel(Path(wheel_directory), {name!r}, "1.0", code=f"seen = {{seen!r}}").name
"""
    files = {
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "own"\nbackend-path = ["."]\n',
        "own.py": f"{backend}\n{builds}",
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
    }
    path = directory / f"{name}-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for location, text in files.items():
            entry = tarfile.TarInfo(f"{name}-1.0/{location}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return path
