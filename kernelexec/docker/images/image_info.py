"""The contents of an image, read from the checked output of a program in it; and the versions required by kernels."""

from __future__ import annotations

import importlib.metadata
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: The beginning of the line that our programs in images print.
MARK = "kernelexec="
_PROGRAM = re.compile(r"program=(?P<name>[a-z0-9]+) (?P<version>.*)")
_VERSION = re.compile(r"\d+(\.\d+)+\S*")
_LONGEST = 200
#: The oldest Python that the launcher supports.
PYTHON_MIN = "3.11"
_IPYKERNEL = re.compile(r"ipykernel\b[^;]*?>=(?P<version>[\d.]+)")


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
    kernelspecs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By name, in the form of ``KernelSpecManager.get_all_specs``."""
    any_user: bool = True
    """Whether the interpreter runs for a user that the image does not know, with a read-only root."""
    failure: str | None = None
    """Why ipykernel cannot be imported, if that was tried."""

    @property
    def lacking(self) -> str:
        """Return the first missing requirement of kernels; empty if the image has all."""
        if self.python is None:
            return "no Python"
        if not at_least(self.python, PYTHON_MIN):
            return f"Python {self.python}, and {PYTHON_MIN} is needed"
        return "" if at_least(self.ipykernel, ipykernel_min()) else f"no ipykernel {ipykernel_min()}"

    @classmethod
    def read(cls, output: str, *, id: str, architecture: str, any_user: bool = True) -> ImageFacts:  # noqa: A002 - its name
        """Read the output of the probe, which may contain other lines."""
        programs: dict[str, str] = {}
        answer: dict[str, Any] = {}
        for line in output.splitlines():
            if match := _PROGRAM.fullmatch(line):
                programs[match["name"]] = match["version"]
            elif line.startswith(MARK):
                answer = _object(line.removeprefix(MARK))
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
            kernelspecs={name: spec for name, value in _items(specs) if (spec := _spec(name, value)) is not None},
            any_user=any_user,
            failure=_text(answer.get("failure")),
        )


def _spec(name: str, answer: object) -> dict[str, Any] | None:
    if not isinstance(answer, dict) or not isinstance(spec := answer.get("spec"), dict):
        return None
    argv = spec.get("argv")
    if not isinstance(argv, list) or not argv or not all(isinstance(word, str) for word in argv):
        return None
    checked = {
        "argv": argv,
        "display_name": name,
        "language": _text(spec.get("language")) or "",
        "env": {variable: value for variable, value in _items(spec.get("env")) if isinstance(value, str)},
        "interrupt_mode": "message" if spec.get("interrupt_mode") == "message" else "signal",
        "metadata": dict(_items(spec.get("metadata"))),
    }
    return {"resource_dir": _text(answer.get("directory")) or "", "spec": checked}


def _object(line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):  # an image may print anything, also deeply nested lists
        return {}
    return value if isinstance(value, dict) else {}


def _items(answer: object) -> list[tuple[str, Any]]:
    return [(str(name), value) for name, value in answer.items()] if isinstance(answer, dict) else []


def _text(value: object) -> str | None:
    # Short and printable: the texts of an image are shown to the user.
    return value[:_LONGEST] if isinstance(value, str) and value.isprintable() and value else None


def _version(text: str | None) -> str | None:
    """Return the number in the output of ``--version``; all of the output if there is none."""
    match = _VERSION.search(text or "")
    return match[0] if match else _text(text)


def ipykernel_min() -> str:
    """Return the oldest supported ipykernel, from the requirements of this package."""
    required = importlib.metadata.requires("kernelexec") or []
    versions = [match["version"] for line in required if (match := _IPYKERNEL.match(line.replace(" ", "")))]
    return versions[0] if versions else "7.3"


def at_least(version: str | None, wanted: str) -> bool:
    """Return whether a version, if any, is at least as new as ``wanted``; an empty ``wanted`` is any version."""
    numbers, least = ([int(number) for number in re.findall(r"\d+", text or "")[:3]] for text in (version, wanted))
    return version is not None and numbers >= least
