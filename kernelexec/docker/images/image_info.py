"""What is known of an image, read from what a program in it said. Pure: whatever the image says is checked for its form."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_MARK = "kernelexec="
_PROGRAM = re.compile(r"program=(?P<name>[a-z0-9]+) (?P<said>.*)")
_VERSION = re.compile(r"\d+(\.\d+)+\S*")
_SHELLS = ("bash", "sh")
_LONGEST = 200


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
    """What an image has. None is what it has not, or what cannot be run there."""

    id: str
    architecture: str
    """As the engine spells it: ``amd64``, ``arm64``."""
    python: str | None = None
    """The version of the interpreter that kernels would have."""
    executable: str | None = None
    """Where that interpreter is."""
    ipykernel: str | None = None
    jupyter_client: str | None = None
    shells: tuple[str, ...] = ()
    """Of ``bash`` and ``sh``, those that are there."""
    node: str | None = None
    git: str | None = None
    kernelspecs: Mapping[str, ImageSpec] = field(default_factory=dict)
    any_user: bool = True
    """Whether the interpreter runs for a user whom the image does not know, with the root read-only."""
    failure: str | None = None
    """Why ipykernel cannot be imported, where that was tried."""

    @classmethod
    def read(cls, said: str, *, id: str, architecture: str, any_user: bool = True) -> ImageFacts:  # noqa: A002 - its name
        """The facts in what the programs of the inquiry wrote, among whatever else is there."""
        programs: dict[str, str] = {}
        answer: dict[str, Any] = {}
        for line in said.splitlines():
            if found := _PROGRAM.fullmatch(line):
                programs[found["name"]] = found["said"]
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
            shells=tuple(shell for shell in _SHELLS if shell in programs),
            node=_version(programs.get("node")),
            git=_version(programs.get("git")),
            kernelspecs={name: spec for name, one in _items(specs) if (spec := _spec(one)) is not None},
            any_user=any_user,
            failure=_text(answer.get("failure")),
        )


def _spec(said: object) -> ImageSpec | None:
    if not isinstance(said, dict) or not isinstance(spec := said.get("spec"), dict):
        return None
    argv, environment = spec.get("argv"), spec.get("env")
    if not isinstance(argv, list) or not argv or not all(isinstance(word, str) for word in argv):
        return None
    return ImageSpec(
        argv=tuple(argv),
        language=_text(spec.get("language")) or "",
        directory=_text(said.get("directory")) or "",
        interrupt_mode="message" if spec.get("interrupt_mode") == "message" else "signal",
        environment={name: value for name, value in _items(environment) if isinstance(value, str)},
        metadata=dict(_items(spec.get("metadata"))),
    )


def _object(line: str) -> dict[str, Any]:
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _items(said: object) -> list[tuple[str, Any]]:
    return [(str(name), value) for name, value in said.items()] if isinstance(said, dict) else []


def _text(said: object) -> str | None:
    return said[:_LONGEST] if isinstance(said, str) and said.isprintable() and said else None


def _version(said: str | None) -> str | None:
    """The number in what a program says to ``--version``; all of it where there is none."""
    found = _VERSION.search(said or "")
    return found[0] if found else _text(said)
