"""A Python for images that have none that kernels could use: a volume, filled from one of our images, that is mounted there.

The volume is nobody's: all executors share it, and it stays. Its name says what is in it, so it never has to be renewed.
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
from kernelexec.docker.client import Engine, mapped
from kernelexec.docker.images.image_check import at_least, ipykernel_min, python_min
from kernelexec.docker.images.image_info_cache import asking, known_facts
from kernelexec.docker.images.image_probe import locked, settings_of
from kernelexec.docker.labels import RUNTIME_INSIDE
from kernelexec.errors import EngineFailed, EngineRefused, ImageMissing

#: What such a volume carries.
LABEL = "kernelexec.runtime"
_FILLING = Path(__file__).with_name("export_python.py")
_SECONDS = 300.0
_MARK = "kernelexec="
_COMPLAINT_CHARS = 500


@dataclass(frozen=True, slots=True)
class Mounted:
    """A volume with a Python in it."""

    volume: str
    version: str
    why: str
    """What the image lacks; empty where nobody has looked."""


_filled: dict[str, Mounted] = {}


def lacking(images: Sequence[str], python: str) -> str:
    """What kernels would need and the first of these images that is there has not; empty where it serves, or nobody says.

    An interpreter that is named by its path, and that the image has not, may lie in what is mounted.
    """
    try:
        facts = known_facts(images, python)
    except (EngineFailed, ImageMissing):
        return ""
    if facts.python is None and "/" in python:
        return ""
    return _lacking(facts.python, facts.ipykernel)


def mistaken(images: Sequence[str], python: str) -> str:
    """That the first of these images that is there has not the interpreter that was named, and which one it has.

    Empty where it has it, where none was named or one by its path, which may lie in what is mounted, and where nobody says.
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


def replacement(images: Sequence[str], python: str, runtime_image: str) -> Mounted:
    """What kernels in the first of these images that is there get instead of its own Python.

    The first time in this process a container fills the volume, if nobody did. It blocks: for a thread.

    Raises:
        ImageMissing: an image is not there.
        EngineRefused, EngineAway: it cannot be done.
    """
    facts = known_facts(images, python)
    engine = Engine.shared()
    try:
        with mapped("describe the image", image=runtime_image):
            said = engine.api.inspect_image(runtime_image)
        if said["Architecture"] != facts.architecture:
            message = f"The image {runtime_image} is for {said['Architecture']}, and the kernel's for {facts.architecture}."
            raise EngineRefused(message)
        with asking:
            found = _filled.get(said["Id"]) or _fill(engine, str(said["Id"]))
            _filled[said["Id"]] = found
        return Mounted(found.volume, found.version, _lacking(facts.python, facts.ipykernel))
    finally:
        engine.release()


def _lacking(python: str | None, ipykernel: str | None) -> str:
    if python is None:
        return "no Python"
    if not at_least(python, python_min()):
        return f"Python {python}, and {python_min()} is needed"
    if not at_least(ipykernel, ipykernel_min()):
        return f"no ipykernel {ipykernel_min()}"
    return ""


def _fill(engine: Engine, image: str) -> Mounted:
    """Fill the volume of an image; whoever comes second waits for who came first, and finds it full."""
    program = _FILLING.read_text(encoding="utf-8")
    volume = f"kernelexec-runtime-{hashlib.sha256(f'{image} {RUNTIME_INSIDE} {program}'.encode()).hexdigest()[:16]}"
    with mapped("make a volume"):
        engine.api.create_volume(volume, labels={LABEL: image})
    host = locked() | {"mounts": [Mount(RUNTIME_INSIDE, volume, type="volume", no_copy=True)]}
    container = engine.create(None, settings_of(image, ("python3", "-c", program), "0:0"), host)
    try:
        engine.start(container)
        with mapped("fill the volume of a runtime"):
            engine.api.wait(container, timeout=_SECONDS)
        said = engine.logs(container)
    finally:
        engine.remove(container)
    with suppress(ValueError, LookupError, TypeError):
        answer = json.loads(next(line for line in said.splitlines() if line.startswith(_MARK)).removeprefix(_MARK))
        return Mounted(volume, str(answer["python"]), "")
    raise EngineRefused(f"A Python could not be copied out of the image {image}: {said.strip()[-_COMPLAINT_CHARS:]}")
