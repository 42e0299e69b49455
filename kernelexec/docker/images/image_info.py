"""The contents of an image, from a program that runs in it, and whether kernels can run there."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import re
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from docker.types.containers import LogConfig

from kernelexec.docker.client import Engine, map_docker_errors
from kernelexec.errors import EngineFailed, EngineUnavailable, ImageMissing

#: The oldest Python that the launcher supports.
PYTHON_MIN = "3.11"
_IPYKERNEL = re.compile(r"ipykernel\b[^;]*?>=(?P<version>[\d.]+)")
_MARK = "kernelexec="
_PROGRAM = re.compile(r"program=(?P<name>[a-z0-9]+) (?P<said>.*)")
_VERSION = re.compile(r"\d+(\.\d+)+\S*")
_LONGEST, _FACT_CHARS = 200, 300


@dataclass(frozen=True, slots=True)
class ImageSpec:
    """A kernelspec inside an image."""

    argv: tuple[str, ...]
    language: str
    directory: str
    interrupt_mode: str = "signal"
    environment: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """The contents of an image. None means missing or not runnable."""

    id: str
    architecture: str
    """In the engine's spelling: ``amd64``, ``arm64``."""
    python: str | None = None
    """The version of the interpreter that kernels would use."""
    executable: str | None = None
    """The path of that interpreter."""
    ipykernel: str | None = None
    jupyter_client: str | None = None
    shells: tuple[str, ...] = ()
    """Those of ``bash`` and ``sh`` that it has."""
    node: str | None = None
    git: str | None = None
    kernelspecs: Mapping[str, ImageSpec] = field(default_factory=dict)
    any_user: bool = True
    """Whether the interpreter runs for a user that the image does not know, with a read-only root."""
    failure: str | None = None
    """Why ipykernel cannot be imported, if that was tried."""

    @classmethod
    def read(cls, output: str, *, id: str, architecture: str, any_user: bool = True) -> ImageFacts:  # noqa: A002 - its name
        """Read the output of the probe, which may contain other lines."""
        programs: dict[str, str] = {}
        answer: dict[str, Any] = {}
        for line in output.splitlines():
            if match := _PROGRAM.fullmatch(line):
                programs[match["name"]] = match["said"]
            elif line.startswith(_MARK):
                answer = _object(line.removeprefix(_MARK))
        specs = answer.get("kernelspecs")
        return cls(
            id=id,
            architecture=architecture,
            python=_text(answer.get("python")),
            executable=_text(answer.get("executable")),
            ipykernel=_text(answer.get("ipykernel")),
            jupyter_client=_text(answer.get("jupyter_client")),
            shells=tuple(shell for shell in ("bash", "sh") if shell in programs),
            node=_version(programs.get("node")),
            git=_version(programs.get("git")),
            kernelspecs={name: spec for name, value in _items(specs) if (spec := _spec(value)) is not None},
            any_user=any_user,
            failure=_text(answer.get("failure")),
        )


def _spec(answer: object) -> ImageSpec | None:
    if not isinstance(answer, dict) or not isinstance(spec := answer.get("spec"), dict):
        return None
    argv, environment = spec.get("argv"), spec.get("env")
    if not isinstance(argv, list) or not argv or not all(isinstance(word, str) for word in argv):
        return None
    return ImageSpec(
        argv=tuple(argv),
        language=_text(spec.get("language")) or "",
        directory=_text(answer.get("directory")) or "",
        interrupt_mode="message" if spec.get("interrupt_mode") == "message" else "signal",
        environment={name: value for name, value in _items(environment) if isinstance(value, str)},
        metadata=dict(_items(spec.get("metadata"))),
    )


def _object(line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _items(answer: object) -> list[tuple[str, Any]]:
    return [(str(name), value) for name, value in answer.items()] if isinstance(answer, dict) else []


def _text(value: object) -> str | None:
    return value[:_LONGEST] if isinstance(value, str) and value.isprintable() and value else None


def _version(text: str | None) -> str | None:
    """Return the number in the output of ``--version``; all of the output if there is none."""
    match = _VERSION.search(text or "")
    return match[0] if match else _text(text)


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
  case $name in node|git) said=$("$name" --version 2>/dev/null) || said=$path;; *) said=$path;; esac
  echo "program=$name $said"
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


@dataclass(frozen=True, slots=True)
class ImageCheck:
    """The result of one check of an image, and how to add what is missing."""

    check: str
    ok: bool
    detail: str
    remedy: str = ""
    needed: bool = True
    """Whether kernels need it."""

    def to_dict(self) -> dict[str, object]:
        """Return the check as JSON values."""
        return {"check": self.check, "ok": self.ok, "found": self.detail, "fix": self.remedy, "needed": self.needed}


def check_image(image: str, facts: ImageFacts) -> list[ImageCheck]:
    """Return all checks of an image."""
    wanted = ipykernel_min()
    upon = f"`kernelexec image build minimal --base-image {image} --tag NAME` builds an image upon it that has it."
    install = f"{upon} Or in a Dockerfile of yours: RUN python3 -m pip install 'ipykernel>={wanted}'"
    alone = facts.any_user and facts.failure is None
    how = facts.failure or "its Python runs for its own user only"
    return [
        _check_version("python", facts.python, PYTHON_MIN, f"{PYTHON_MIN} or newer is needed. {upon}"),
        _check_version("ipykernel", facts.ipykernel, wanted, f"{wanted} or newer is needed. {install}"),
        _check_version("jupyter_client", facts.jupyter_client, "", f"It comes with ipykernel. {upon}"),
        ImageCheck(
            "any user, read-only root",
            alone and facts.python is not None,
            "works" if alone and facts.python else how[:_FACT_CHARS] if facts.python else "nothing runs",
            "Everybody must be able to read the interpreter and its packages: chmod -R a+rX, and nothing below /root.",
        ),
        ImageCheck("bash", "bash" in facts.shells, ", ".join(facts.shells) or "no shell", "sh is used.", needed=False),
        _check_version("node", facts.node, "", "Without it there is no JavaScript.", needed=False),
        _check_version("git", facts.git, "", "RUN apt-get install -y git", needed=False),
    ]


def _check_version(name: str, version: str | None, wanted: str, remedy: str, *, needed: bool = True) -> ImageCheck:
    return ImageCheck(name, at_least(version, wanted), version or "missing", remedy, needed)


def ipykernel_min() -> str:
    """Return the oldest ipykernel that the launcher supports: the one that this package requires."""
    required = importlib.metadata.requires("kernelexec") or []
    versions = [match["version"] for line in required if (match := _IPYKERNEL.match(line.replace(" ", "")))]
    return versions[0] if versions else "7.3"


def at_least(version: str | None, wanted: str) -> bool:
    """Return whether a version, if any, is at least as new as the wanted one."""
    numbers, least = ([int(number) for number in re.findall(r"\d+", text or "")[:3]] for text in (version, wanted))
    return version is not None and numbers >= least
