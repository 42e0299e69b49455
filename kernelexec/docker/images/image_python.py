"""The Python of an image: probed by a small program in a container, or copied from an image of ours for one without.

The copy is in a volume that is mounted there. All executors share it, and it stays. Its name is a digest of its content, so
it never has to be renewed.
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

from kernelexec.config.container import DEFAULT_PYTHON
from kernelexec.docker.client import Engine, map_docker_errors
from kernelexec.docker.images.image_info import MARK, PYTHON_MIN, ImageFacts, at_least, ipykernel_min
from kernelexec.docker.labels import RUNTIME_INSIDE
from kernelexec.errors import EngineFailed, EngineRefused, EngineUnavailable, ImageMissing

#: The label of a probe's container, by which leftovers of a killed process are known.
PROBE = "kernelexec.probe"
#: The ids of no user: a program that runs for them runs for every user.
_ANYBODY = "54321:54321"
_PROBE_SECONDS = 60.0
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
_known: dict[tuple[str, str], ImageFacts] = {}
#: Held during a probe.
asking = threading.Lock()
#: The label of such volumes.
LABEL = "kernelexec.runtime"
_FILLING = Path(__file__).with_name("export_python.py")
_COPY_SECONDS = 300.0
_COMPLAINT_CHARS = 500
_filled: dict[str, PythonVolume] = {}


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
            engine.api.wait(container, timeout=_PROBE_SECONDS)
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


@dataclass(frozen=True, slots=True)
class PythonVolume:
    """A volume with a Python in it."""

    volume: str
    version: str
    missing: str
    """The requirement that the image lacks; empty if that is unknown."""


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
            engine.api.wait(container, timeout=_COPY_SECONDS)
        output = engine.logs(container)
    finally:
        engine.remove(container)
    with suppress(ValueError, LookupError, TypeError):
        answer = json.loads(next(line for line in output.splitlines() if line.startswith(MARK)).removeprefix(MARK))
        return PythonVolume(volume, str(answer["python"]), "")
    raise EngineRefused(f"A Python could not be copied out of the image {image}: {output.strip()[-_COMPLAINT_CHARS:]}")
