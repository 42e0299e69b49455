"""The Python and the packages of a session, and the outcome of an installation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from kernelexec.results.json_values import JsonConvertible, read_list, read_text

#: The use of a virtual environment by Python cells: its interpreter runs them, they import from it, only commands use it, or
#: it is the session's own, which has the packages of their interpreter too.
Served = Literal["interpreter", "packages", "commands", "own"]

#: The limit of listed packages.
PACKAGES_MAX = 5000
_TEXT_CHARS, _NAME_CHARS, _PREFIX_MAX = 4096, 100, 100
_DIRECTORY_PROBLEMS, _REASON_CHARS = ("was deleted", "cannot be entered"), 100


@dataclass(frozen=True, slots=True)
class Package:
    """An installed distribution; ``sha256`` is that of its wheel, if known."""

    name: str
    version: str
    sha256: str | None = None

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


@dataclass(frozen=True, slots=True)
class PythonEnvironment(JsonConvertible):
    """The Python environment of a session's cells, with paths as its kernel sees them."""

    python: str
    version: str
    prefix: str
    venv: str | None = None
    """The active virtual environment, if there is one; with a ``command_prefix``, for Python cells only."""
    served: Served | None = None
    """Its use by Python cells; None without one, or if no cell has run since it was created."""
    command_prefix: tuple[str, ...] = ()
    """The words before each command."""
    system: str = ""
    """The name of the operating system."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """The distributions that Python cells can import: normalised names and versions, at most 5000."""

    @classmethod
    def from_reply(cls, reply: dict[str, Any]) -> Self:
        """Read a kernel's reply; invalid values become empty."""
        venv, prefix, packages = reply.get("venv"), reply.get("command_prefix"), reply.get("packages")
        return cls(
            read_text(reply.get("python"), _TEXT_CHARS),
            read_text(reply.get("version"), _TEXT_CHARS),
            read_text(reply.get("prefix"), _TEXT_CHARS),
            venv=read_text(venv, _TEXT_CHARS) if isinstance(venv, str) else None,
            served=read_venv_use(reply.get("served")),
            command_prefix=tuple(read_text(word, _TEXT_CHARS) for word in read_list(prefix)[:_PREFIX_MAX]),
            system=read_text(reply.get("system"), _NAME_CHARS),
            packages=_read_packages(packages),
        )


@dataclass(frozen=True, slots=True)
class Installation(JsonConvertible):
    """The outcome of an installation. The kernel's state is kept in any case."""

    packages: tuple[Package, ...]
    """The newly installed distributions."""
    venv: str
    """The virtual environment, as kernels see it."""
    exit_code: int
    """The exit code of pip: 0 for success, 124 after a timeout."""
    output: str
    """The output of pip, head and tail."""
    seconds: float
    lock: str | None = None
    """The file that lists the contents of the virtual environment; None if it was not written."""
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether all requested packages are installed."""
        return self.exit_code == 0

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the newly installed distributions."""
        return tuple(package.name for package in self.packages)


def directory_note(report: object) -> str | None:
    """Return the note on a current directory that cannot be used, from the kernel's report, of which only paths are quoted."""
    if not isinstance(report, dict) or (problem := report.get("problem")) not in _DIRECTORY_PROBLEMS:
        return None
    workspace, reason = report.get("workspace"), report.get("reason")
    if not isinstance(workspace, str):
        return f"The current directory {problem}."
    path = repr(read_text(workspace, _TEXT_CHARS))
    if reason is None:
        more = ", a new directory: restart the session to write there" if report.get("is_new") is True else ""
        return f"The current directory {problem}: cells and commands go on in {path}{more}."
    return (
        f"The workspace {path} cannot be used ({read_text(reason, _REASON_CHARS)!r}): cells and commands find no files there."
        " Make the directory again or accessible, and restart the session."
    )


def programs_note(report: object) -> str | None:
    """Return the note on a kernel's virtual environment, which a result carries once, or on packages just installed there.

    ``report`` is the kernel's message.
    """
    if not isinstance(report, dict):
        return None
    venv_note = _describe_venv(report.get("venv"))
    return " ".join([*([] if venv_note is None else [venv_note]), *packages_notes(report)]) or None


def _describe_venv(venv: object) -> str | None:
    if not isinstance(venv, dict):
        return None
    path = repr(read_text(venv.get("path"), _TEXT_CHARS))  # in quotes, for it may say anything
    match read_venv_use(venv.get("served")):
        case "interpreter":
            return f"Python cells run on the interpreter of the virtual environment {path}."
        case "packages":
            return f"Python cells also import from the virtual environment {path}; its packages come first."
        case "commands":
            return f"Only commands use the virtual environment {path}: it has no packages for the Python that runs cells."
    return None


def packages_notes(report: Mapping[str, Any]) -> list[str]:
    """Return notes on new packages of which cells have other versions, from the kernel's message."""
    notes = []
    if hidden := _list_packages(report.get("hidden")):
        notes.append(f"{hidden}: installed, but cells keep the version that is loaded until the session restarts.")
    if kept := _list_packages(report.get("kept")):
        notes.append(f"Only commands have {kept}: cells have the version that their kernel needs.")
    return notes


def _list_packages(value: object) -> str:
    return ", ".join(read_text(each, _NAME_CHARS) for each in read_list(value)[:_PREFIX_MAX] if isinstance(each, str))


def read_venv_use(value: object) -> Served | None:
    """Return the value if it is a valid one; else None."""
    match value:
        case "interpreter" | "packages" | "commands" | "own":
            return value
    return None


def _read_packages(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        return {}
    pairs = ((name, version) for name, version in value.items() if isinstance(name, str) and isinstance(version, str))
    return {read_text(name, _NAME_CHARS): read_text(version, _NAME_CHARS) for name, version in list(pairs)[:PACKAGES_MAX]}
