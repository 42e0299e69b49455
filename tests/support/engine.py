"""Tests that need a container engine. Where none answers they fail, since CI has one; ``-m "not engine"`` leaves them out.

KERNELEXEC_TEST_ENGINE=0   skips them, with that as the reason, for machines without an engine; CI fails on skips.
KERNELEXEC_TEST_BASE       a Debian with Python that is here, for images to build upon: ``debian-python:bookworm``.
KERNELEXEC_TEST_IMAGE      an image with the data stack that kernels run in: ``kernelexec/data-science``.
KERNELEXEC_TEST_MINIMAL    an image with ipykernel and little else: ``kernelexec/minimal``.
KERNELEXEC_TEST_SUDO       the same with sudo: ``kernelexec/minimal-sudo``.

``.ci/engine`` starts an engine, makes all four and the image of the server, and installs bubblewrap.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from kernelexec.docker.client import Engine, map_docker_errors
from kernelexec.docker.images.recipes import authorities
from kernelexec.errors import EngineFailed, ImageMissing

BASE = os.environ.get("KERNELEXEC_TEST_BASE", "debian-python:bookworm")
IMAGE = os.environ.get("KERNELEXEC_TEST_IMAGE", "kernelexec/data-science")
MINIMAL = os.environ.get("KERNELEXEC_TEST_MINIMAL", "kernelexec/minimal")
SUDO = os.environ.get("KERNELEXEC_TEST_SUDO", "kernelexec/minimal-sudo")

needs_bubblewrap = pytest.mark.skipif(
    os.environ.get("KERNELEXEC_TEST_ENGINE") == "0" and shutil.which("bwrap") is None,
    reason="KERNELEXEC_TEST_ENGINE=0: without bubblewrap",
)
#: The mark of a test that needs a container engine: ``-m engine`` chooses these tests, ``-m "not engine"`` all others.
needs_engine = pytest.mark.engine


def containers(engine: Engine, label: str | None = None) -> list[dict[str, Any]]:
    """What the engine says of all containers, those that have ended too."""
    return list(engine.api.containers(all=True, filters={"label": label} if label else {}))


def output_of(engine: Engine, image: str, *command: str) -> str:
    """Return the output of a command in a container of that image, run as kernels are, by a user without an account."""
    host = {"network_mode": "none", "read_only": True, "cap_drop": ["ALL"], "tmpfs": {"/tmp": ""}}
    settings = {"image": image, "entrypoint": list(command[:1]), "command": list(command[1:]), "user": "43210:43210"}
    container = engine.create(None, {**settings, "environment": {"HOME": "/tmp"}}, host)
    try:
        engine.start(container)
        assert engine.api.wait(container, timeout=60)["StatusCode"] == 0, engine.logs(container)
        return bytes(engine.api.logs(container, stderr=False)).decode().strip()
    finally:
        engine.remove(container)


def own_authorities() -> dict[str, bytes]:
    """Return the certificate authorities that were added to this machine, which ``.ci/engine`` gives to the images."""
    added = Path("/usr/local/share/ca-certificates")
    return authorities([added]) if any(added.rglob("*.crt")) else {}


def nameless(engine: Engine) -> set[str]:
    """Return the images without a name, upon which nothing is built."""
    return {str(image["Id"]) for image in engine.api.images(filters={"dangling": True})}


@contextmanager
def removed_after(engine: Engine, *names: str) -> Iterator[None]:
    """Images of a test's own are gone when it ends."""
    try:
        yield
    finally:
        for name in names:
            with suppress(EngineFailed, ImageMissing), map_docker_errors("remove an image", image=name):
                engine.api.remove_image(name)
