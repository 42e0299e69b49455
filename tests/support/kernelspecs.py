"""Kernelspecs of other languages for tests, in a directory or an image of their own: what the user has does not count."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from tests.conftest import KINDS
from tests.support.engine import IMAGE
from tests.support.language_image import language_image

#: A kernel that wants to be interrupted by a message.
POLITE = "from ipykernel.kernelapp import launch_new_instance as run; run()"
BASH = [sys.executable, "-m", "bash_kernel", "-f", "{connection_file}"]


def deno() -> str:
    """The program that the package ``deno`` brings."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    actual = shutil.which("deno", path=path)
    assert actual is not None, "deno is not installed: pip install deno"
    return actual


def write(directory: Path, name: str, argv: list[str], language: str, **more: Any) -> None:
    location = directory / "kernels" / name
    location.mkdir(parents=True)
    spec = {"argv": argv, "display_name": name, "language": language, **more}
    (location / "kernel.json").write_text(json.dumps(spec), encoding="utf-8")


def write_all(directory: Path) -> None:
    """TypeScript by deno, and bash by bash_kernel."""
    env = {"DENO_DIR": str(directory / "cache"), "DENO_NO_UPDATE_CHECK": "1"}
    write(directory, "deno", [deno(), "jupyter", "--kernel", "--conn", "{connection_file}"], "typescript", env=env)
    write(directory, "bash", BASH, "bash", env={"PS1": "$"})
    polite = [sys.executable, "-c", POLITE, "-f", "{connection_file}"]
    write(directory, "polite", polite, "python", interrupt_mode="message")


def settings(kind: str) -> dict[str, Any]:
    """Settings by which sessions of that kind have the kernels: those of the directory, or of the image."""
    if kind == "local":
        return dict(KINDS[kind])
    return {"container": {"image": language_image(IMAGE), "memory_bytes": 4 * 2**30}}
