"""The probe of an image: a small program that runs in a container, which is removed afterwards."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from docker.types.containers import LogConfig

from kernelexec.docker.client import Engine, map_docker_errors
from kernelexec.docker.images.image_info import ImageFacts
from kernelexec.errors import EngineFailed, EngineUnavailable, ImageMissing

#: The label of a probe's container, by which leftovers of a killed process are known.
PROBE = "kernelexec.probe"
#: The ids of no user: a program that runs for them runs for every user.
_ANYBODY = "54321:54321"
_SECONDS = 60.0
_OUTPUT_BYTES = 256 * 1024
_INQUIRY = Path(__file__).with_name("image_probe_script.py")
_SHELL = """
for name in bash sh node git; do
  path=$(command -v "$name") || continue
  case $name in node|git) version=$("$name" --version 2>/dev/null) || version=$path;; *) version=$path;; esac
  echo "program=$name $version"
done
exec "$0" "$@"
"""


def probe_image(engine: Engine, image: str, *, python: str = "python3", thorough: bool = False) -> ImageFacts:
    """Return the contents of an image; ``thorough`` also tries to import ipykernel, which takes a moment longer.

    The program runs as kernels do: without network, as a user that the image does not know, with a read-only root. If it
    does not run like that, it is tried as the image's own user, to find the reason.
    """
    inspected = engine.inspect_image(image)
    read = partial(ImageFacts.read, id=str(inspected["Id"]), architecture=str(inspected["Architecture"]))
    inquiry = (python, "-c", _INQUIRY.read_text(encoding="utf-8"), *(("thorough",) if thorough else ()))
    facts = read(_output_of(engine, str(inspected["Id"]), inquiry, user=_ANYBODY))
    if facts.python is None:
        own = read(_output_of(engine, str(inspected["Id"]), inquiry, user=""), any_user=False)
        return own if own.python else dataclasses.replace(facts, shells=facts.shells or own.shells)
    return facts


def _output_of(engine: Engine, image: str, inquiry: tuple[str, ...], *, user: str) -> str:
    """Return the output of the probe, started by the image's shell or, if it has none, directly; empty if nothing runs."""
    with_shell = _run(engine, image, ("sh", "-c", _SHELL, *inquiry), user=user)
    return with_shell if with_shell is not None else _run(engine, image, inquiry, user=user) or ""


def _run(engine: Engine, image: str, command: tuple[str, ...], *, user: str) -> str | None:
    """Return the output of a command; None if the image has no such command."""
    container = engine.create(None, settings_of(image, command, user), restricted_host_config())
    try:
        try:
            engine.start(container)
        except EngineUnavailable:
            raise
        except EngineFailed:  # the engine has no code for a missing program
            return None
        with map_docker_errors("wait for the image's program"):
            engine.api.wait(container, timeout=_SECONDS)
        return _output(engine, container)
    except EngineUnavailable:
        if engine.inspect_container(container).running:  # the program did not end
            return ""
        raise
    finally:
        engine.remove(container)


def _output(engine: Engine, container: str) -> str:
    written = b""
    with map_docker_errors("give the output of the image's program"):
        for chunk in engine.api.logs(container, stdout=True, stderr=False, stream=True, follow=False):
            written += chunk
            if len(written) > _OUTPUT_BYTES:
                break
    return written[:_OUTPUT_BYTES].decode("utf-8", "replace")


def settings_of(image: str, command: tuple[str, ...], user: str) -> dict[str, Any]:
    """Return the settings of a probe's container."""
    return {
        "image": image,
        "entrypoint": list(command[:1]),
        "command": list(command[1:]),
        "user": user,
        "environment": {"HOME": "/tmp", "IPYTHONDIR": "/tmp/ipython", "PYTHONDONTWRITEBYTECODE": "1"},  # noqa: S108 - its own
        "working_dir": "/",
        "labels": {PROBE: "1"},
        "use_config_proxy": False,
    }


def restricted_host_config() -> dict[str, Any]:
    """Return the settings of its host, as restricted as possible."""
    return {
        "network_mode": "none",
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "init": True,
        "mem_limit": 1024**3,
        "pids_limit": 64,
        "tmpfs": {"/tmp": "rw,noexec,nosuid,nodev,size=67108864,mode=1777"},  # noqa: S108 - its own
        "log_config": LogConfig(type="json-file", config={"max-size": "1m", "max-file": "1"}),
    }


_known: dict[tuple[str, str], ImageFacts] = {}
#: Held during a probe.
asking = threading.Lock()


def known_facts(images: Sequence[str], python: str) -> ImageFacts:
    """Return the contents of the first of these images that exists, with that interpreter. It blocks: for a thread."""
    with Engine.acquire() as engine:
        identity = ""
        for image in images:
            with suppress(ImageMissing):
                identity = identity or str(engine.inspect_image(image)["Id"])  # a name may get other contents later
        if not identity:
            raise ImageMissing(f"None of these images is here: {', '.join(images)}.")
        with asking:
            if (identity, python) not in _known:
                _known[identity, python] = probe_image(engine, identity, python=python)
            return _known[identity, python]
