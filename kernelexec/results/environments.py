"""Which Python and which packages a session has, and what became of an installation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from kernelexec.text import clean_text

#: How a virtual environment serves Python cells: its own interpreter runs them, they import from it, or they do not.
Served = Literal["interpreter", "packages", "commands"]

#: How many packages are told at most.
PACKAGES_MAX = 5000
_TEXT_CHARS, _NAME_CHARS = 4096, 100


@dataclass(frozen=True, slots=True)
class Package:
    """A distribution that is installed; ``sha256`` is that of its wheel, where it is known."""

    name: str
    version: str
    sha256: str | None = None

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


@dataclass(frozen=True, slots=True)
class PythonEnvironment:
    """What a session's cells find, as its kernel says it, by its own paths."""

    python: str
    version: str
    prefix: str
    venv: str | None = None
    """The virtual environment that counts now, if there is one; with a ``command_prefix``, for Python cells only."""
    served: Served | None = None
    """What Python cells have of it; None where there is none, or no cell has run since it came."""
    command_prefix: tuple[str, ...] = ()
    """What is put before commands."""
    system: str = ""
    """The operating system that they run on, by the name that it gives itself."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """What Python cells can import, of distributions: normalised names and versions, 5000 at most."""

    @classmethod
    def of(cls, said: dict[str, Any]) -> Self:
        """From a kernel's reply; what makes no sense in it is empty."""
        venv, prefix, packages = said.get("venv"), said.get("command_prefix"), said.get("packages")
        return cls(
            _text(said.get("python")),
            _text(said.get("version")),
            _text(said.get("prefix")),
            venv=_text(venv) if isinstance(venv, str) else None,
            served=served_of(said.get("served")),
            command_prefix=tuple(map(_text, prefix[:_NAME_CHARS])) if isinstance(prefix, list) else (),
            system=_text(said.get("system"))[:_NAME_CHARS],
            packages=_packages(packages),
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True)
class Installation:
    """What became of an installation. The kernel's state is kept in any case."""

    packages: tuple[Package, ...]
    """What was installed anew."""
    venv: str
    """The virtual environment, as kernels see it."""
    exit_code: int
    """Of pip: 0 says that all is installed; 124 that the time was over."""
    output: str
    """What pip said, head and tail."""
    seconds: float
    lock: str | None = None
    """The file that names all that the virtual environment holds now; None where it was not written."""
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether all that was asked for is there."""
        return self.exit_code == 0

    @property
    def names(self) -> tuple[str, ...]:
        """The names of what was installed anew."""
        return tuple(package.name for package in self.packages)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return dataclasses.asdict(self)


def note_of(said: object) -> str | None:
    """What a result says once of a virtual environment, from what the kernel says of it."""
    if not isinstance(said, dict):
        return None
    path = _text(said.get("path"))
    match served_of(said.get("served")):
        case "interpreter":
            return f"Python cells run on the interpreter of the virtual environment {path}."
        case "packages":
            return f"Python cells also import from the virtual environment {path}: what their interpreter has goes first."
        case "commands":
            return f"Only commands use the virtual environment {path}: it has no packages for the Python that runs cells."
    return None


def served_of(said: object) -> Served | None:
    """The word, if it is one of these."""
    match said:
        case "interpreter" | "packages" | "commands":
            return said
    return None


def _packages(said: object) -> dict[str, str]:
    if not isinstance(said, dict):
        return {}
    pairs = ((name, version) for name, version in said.items() if isinstance(name, str) and isinstance(version, str))
    return {_text(name)[:_NAME_CHARS]: _text(version)[:_NAME_CHARS] for name, version in list(pairs)[:PACKAGES_MAX]}


def _text(said: object) -> str:
    return clean_text(said[:_TEXT_CHARS]) if isinstance(said, str) else ""
