"""The Python of an image: probed by a small program in a container, or copied from an image of ours.

The copy is in a volume, mounted into containers of images without a Python for kernels. All executors share the volume, and
none removes it. The name is a digest of the copied image and of the copying program, so the content is never out of date.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from docker.types.containers import LogConfig
from docker.types.services import Mount

from kernelexec.config.container import DEFAULT_PYTHON, Container
from kernelexec.docker.client import Engine, map_docker_errors
from kernelexec.docker.images.image_info import MARK, ImageFacts
from kernelexec.docker.labels import RUNTIME_INSIDE
from kernelexec.errors import EngineFailed, EngineRefused, EngineUnavailable, ImageMissing, KernelStartFailed

#: The label of a probe's container, by which leftovers of a killed process are known.
PROBE = "kernelexec.probe"
#: The ids of no user: a program that runs for them runs for every user.
_ANYBODY = "54321:54321"
_PROBE_SECONDS = 60.0
_INQUIRY = Path(__file__).with_name("image_probe_script.py")
_SHELL = """
for name in bash sh node git; do
  path=$(command -v "$name") || continue
  case $name in node|git) version=$("$name" --version 2>/dev/null) || version=$path;; *) version=$path;; esac
  echo "program=$name $version"
done
exec "$0" "$@"
"""
_known: dict[tuple[str, str], ImageFacts] = {}
#: Held during a probe: sessions that start at the same time wait for one probe instead of running several.
asking = threading.Lock()
#: The label of such volumes.
LABEL = "kernelexec.runtime"
_FILLING = Path(__file__).with_name("export_python.py")
_COPY_SECONDS = 300.0
_COMPLAINT_CHARS = 500


def probe_image(engine: Engine, image: str, *, python: str = "python3", thorough: bool = False) -> ImageFacts:
    """Return the contents of an image; ``thorough`` also tries to import ipykernel, which takes a moment longer.

    The program runs as kernels do: without network, as a user unknown to the image, with a read-only root. After a failure
    the image's own user is tried, to find the reason.
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
    """Return the output of the probe, started by the image's shell, or directly if it has none; empty if nothing runs."""
    with_shell = _run(engine, image, ("sh", "-c", _SHELL, *inquiry), user=user)
    return with_shell if with_shell is not None else _run(engine, image, inquiry, user=user) or ""


def _run(
    engine: Engine, image: str, command: tuple[str, ...], *, user: str, seconds: float = _PROBE_SECONDS, **host: object
) -> str | None:
    """Return the output of a command, empty after a timeout; None if the image has no such command."""
    container = engine.create(None, settings_of(image, command, user), restricted_host_config() | host)
    try:
        try:
            engine.start(container)
        except EngineUnavailable:
            raise
        except EngineFailed:  # the engine has no code for a missing program
            return None
        ended = engine.wait(container, seconds) is not None
        return engine.output(container).decode("utf-8", "replace") if ended else ""
    finally:
        engine.remove(container)


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
    """Return the host settings of a probe's container, as restricted as possible."""
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


def known_facts(images: Sequence[str], python: str) -> ImageFacts:
    """Return the contents of the first existing image, probed with ``python``. Blocks, so call from a thread.

    Raises:
        ImageMissing: none of the images exists.
    """
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


@dataclass(frozen=True, slots=True)
class PythonVolume:
    """A volume with a Python."""

    volume: str
    version: str
    missing: str
    """The requirement that the image lacks; empty if it lacks none."""


def provide_python(options: Container, provider: str) -> PythonVolume | None:
    """Return the Python of the image ``provider`` for kernels with these options; None if their image's own serves.

    Blocks, so call from a thread. The first call for an image runs a container to fill an empty volume.

    Raises:
        KernelStartFailed: the image lacks the interpreter of the options.
        EngineFailed, ImageMissing: a Python is needed and cannot be provided.
    """
    python = options.python
    may_be_mounted = "/" in python  # from a directory of this machine
    try:
        facts = known_facts(options.image, python)
    except (EngineFailed, ImageMissing):  # the start of the kernel's container fails too, and reports it
        return None
    if facts.python is None and python != DEFAULT_PYTHON and not may_be_mounted:
        usual = known_facts(options.image, DEFAULT_PYTHON)
        has = (
            f"{DEFAULT_PYTHON} there is Python {usual.python} ({usual.executable})"
            if usual.python
            else "it has no Python at all"
        )
        raise KernelStartFailed(
            f"The image {' or '.join(options.image)} has no {python!r} that runs, which `container.python` names: {has}. Name"
            " an interpreter that it has, or leave the option out."
        )
    if not facts.lacking or (facts.python is None and may_be_mounted):
        return None
    with Engine.acquire() as engine:
        answer = engine.inspect_image(provider)
        if answer["Architecture"] != facts.architecture:
            raise EngineRefused(
                f"The image {provider} is for {answer['Architecture']}, and the kernel's for {facts.architecture}."
            )
        return _fill(engine, str(answer["Id"]), facts.lacking)


def _fill(engine: Engine, image: str, missing: str = "") -> PythonVolume:
    """Fill the volume of an image; a concurrent caller waits for the first, and finds a filled volume."""
    program = _FILLING.read_text(encoding="utf-8")
    volume = f"kernelexec-runtime-{hashlib.sha256(f'{image} {RUNTIME_INSIDE} {program}'.encode()).hexdigest()[:16]}"
    with map_docker_errors("make a volume"):
        engine.api.create_volume(volume, labels={LABEL: image})
    mount = Mount(RUNTIME_INSIDE, volume, type="volume", no_copy=True)
    output = _run(engine, image, ("python3", "-c", program), user="0:0", seconds=_COPY_SECONDS, mounts=[mount])
    output = "it has no python3 that starts" if output is None else output
    with suppress(ValueError, LookupError, TypeError, StopIteration):
        answer = json.loads(next(line for line in output.splitlines() if line.startswith(MARK)).removeprefix(MARK))
        return PythonVolume(volume, str(answer["python"]), missing)
    raise EngineRefused(f"A Python could not be copied out of the image {image}: {output.strip()[-_COMPLAINT_CHARS:]}")
