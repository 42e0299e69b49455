"""A Python for images without a usable one: a volume that is filled from one of our images and mounted there.

All executors share the volume, and it stays. Its name is a digest of its content, so it never has to be renewed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from docker.types.services import Mount

from kernelexec.config.container import DEFAULT_PYTHON
from kernelexec.docker.client import Engine, map_docker_errors
from kernelexec.docker.images.image_info import PYTHON_MIN, at_least, ipykernel_min
from kernelexec.docker.images.image_probe import asking, known_facts, restricted_host_config, settings_of
from kernelexec.docker.labels import RUNTIME_INSIDE
from kernelexec.errors import EngineFailed, EngineRefused, ImageMissing

#: The label of such volumes.
LABEL = "kernelexec.runtime"
_FILLING = Path(__file__).with_name("export_python.py")
_SECONDS = 300.0
_MARK = "kernelexec="
_COMPLAINT_CHARS = 500


@dataclass(frozen=True, slots=True)
class PythonVolume:
    """A volume with a Python in it."""

    volume: str
    version: str
    missing: str
    """What the image lacks; empty if that is unknown."""


_filled: dict[str, PythonVolume] = {}


def missing_requirement(images: Sequence[str], python: str) -> str:
    """Return what the first existing one of these images lacks for kernels; empty if it lacks nothing or cannot be probed.

    A missing interpreter that is named by its path may be in a mounted directory.
    """
    try:
        facts = known_facts(images, python)
    except (EngineFailed, ImageMissing):
        return ""
    if facts.python is None and "/" in python:
        return ""
    return _lacking(facts.python, facts.ipykernel)


def wrong_interpreter(images: Sequence[str], python: str) -> str:
    """Return a message if the first existing one of these images does not have the named interpreter.

    Empty if it has it, if none was named or a path, which may be in a mounted directory, or if it cannot be probed.
    """
    if python == DEFAULT_PYTHON or "/" in python:
        return ""
    try:
        named, usual = known_facts(images, python), known_facts(images, DEFAULT_PYTHON)
    except (EngineFailed, ImageMissing):
        return ""
    if named.python is not None:
        return ""
    has = f"{DEFAULT_PYTHON} there is Python {usual.python} ({usual.executable})" if usual.python else "it has no Python at all"
    return (
        f"The image {' or '.join(images)} has no {python!r} that runs, which `container.python` names: {has}. Name an"
        " interpreter that it has, or leave the option out."
    )


def provide_python(images: Sequence[str], python: str, runtime_image: str) -> PythonVolume:
    """Return the mounted Python for kernels in the first existing one of these images.

    The first call in this process runs a container that fills the volume, if it is empty. It blocks: for a thread.
    """
    facts = known_facts(images, python)
    with Engine.acquire() as engine:
        answer = engine.inspect_image(runtime_image)
        if answer["Architecture"] != facts.architecture:
            message = f"The image {runtime_image} is for {answer['Architecture']}, and the kernel's for {facts.architecture}."
            raise EngineRefused(message)
        with asking:
            volume = _filled.get(answer["Id"]) or _fill(engine, str(answer["Id"]))
            _filled[answer["Id"]] = volume
        return PythonVolume(volume.volume, volume.version, _lacking(facts.python, facts.ipykernel))


def _lacking(python: str | None, ipykernel: str | None) -> str:
    if python is None:
        return "no Python"
    if not at_least(python, PYTHON_MIN):
        return f"Python {python}, and {PYTHON_MIN} is needed"
    if not at_least(ipykernel, ipykernel_min()):
        return f"no ipykernel {ipykernel_min()}"
    return ""


def _fill(engine: Engine, image: str) -> PythonVolume:
    """Fill the volume of an image; a concurrent second caller waits for the first, and finds it filled."""
    program = _FILLING.read_text(encoding="utf-8")
    volume = f"kernelexec-runtime-{hashlib.sha256(f'{image} {RUNTIME_INSIDE} {program}'.encode()).hexdigest()[:16]}"
    with map_docker_errors("make a volume"):
        engine.api.create_volume(volume, labels={LABEL: image})
    host = restricted_host_config() | {"mounts": [Mount(RUNTIME_INSIDE, volume, type="volume", no_copy=True)]}
    container = engine.create(None, settings_of(image, ("python3", "-c", program), "0:0"), host)
    try:
        engine.start(container)
        with map_docker_errors("fill the volume of a runtime"):
            engine.api.wait(container, timeout=_SECONDS)
        output = engine.logs(container)
    finally:
        engine.remove(container)
    with suppress(ValueError, LookupError, TypeError):
        answer = json.loads(next(line for line in output.splitlines() if line.startswith(_MARK)).removeprefix(_MARK))
        return PythonVolume(volume, str(answer["python"]), "")
    raise EngineRefused(f"A Python could not be copied out of the image {image}: {output.strip()[-_COMPLAINT_CHARS:]}")
