"""The contents of a session: variables, saved variables and completions; Python and packages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from kernelexec.results.json_values import JsonConvertible, JsonReadable, is_count, read_list, read_text
from kernelexec.results.one_line import count_things, format_bytes, join_parts, join_some, list_some

#: Whether code can be run unchanged; ``unknown`` if the kernel cannot decide.
CodeStatus = Literal["complete", "incomplete", "invalid", "unknown"]

#: The limit of variables in one call.
VARIABLES_MAX = 1000
_SHORT_CHARS, _DIMENSIONS, _MATCHES_MAX = 200, 64, 1000
#: The use of a virtual environment by Python cells: as their interpreter, for imports, by commands only, or as the session's
#: own environment, which also has the packages of the cells' interpreter.
Served = Literal["interpreter", "packages", "commands", "own"]
#: The limit of listed packages.
PACKAGES_MAX = 5000
_TEXT_CHARS, _NAME_CHARS, _PREFIX_MAX = 4096, 100, 100
_DIRECTORY_PROBLEMS, _REASON_CHARS = ("was deleted", "cannot be entered"), 100


@dataclass(frozen=True, slots=True)
class Variable:
    """A user's variable.

    ``type`` is the class with its module, or ``module``, ``function``, ``class``. ``shape`` is the shape of an array or table,
    or the length of a built-in collection. ``size_bytes`` is the size of the value itself, without referenced objects. Both are
    None if only the user's code could compute them. ``text`` is a view of at most 200 characters.
    """

    name: str
    type: str
    shape: tuple[int, ...] | None
    size_bytes: int | None
    text: str

    @classmethod
    def from_reply(cls, reply: object) -> Self | None:
        """Read a kernel's reply; return None for an invalid reply."""
        if not isinstance(reply, dict):
            return None
        name, kind, text = (reply.get(key) for key in ("name", "type", "text"))
        if not (isinstance(name, str) and isinstance(kind, str) and isinstance(text, str)):
            return None
        size = reply.get("size_bytes")
        return cls(
            read_text(name, _SHORT_CHARS),
            read_text(kind, _SHORT_CHARS),
            _read_shape(reply.get("shape")),
            size if is_count(size) else None,
            read_text(text, _SHORT_CHARS),
        )


@dataclass(frozen=True, slots=True)
class Variables(JsonReadable):
    """The variables of a session, sorted by name; ``total`` also counts variables beyond the limit."""

    variables: tuple[Variable, ...] = ()
    total: int = 0

    @classmethod
    def from_reply(cls, reply: dict[str, Any], limit: int) -> Self:
        """Read a kernel's reply; invalid variables are skipped."""
        items = reply.get("variables")
        variables = tuple(filter(None, map(Variable.from_reply, read_list(items)[:limit])))
        total = reply.get("total")
        return cls(variables, max(total if is_count(total) else 0, len(variables)))

    def __iter__(self) -> Iterator[Variable]:
        return iter(self.variables)

    def __len__(self) -> int:
        return len(self.variables)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the variables."""
        return tuple(variable.name for variable in self.variables)

    def __repr__(self) -> str:
        shown = (f"{variable.name} {variable.type}" for variable in self.variables)
        return f"<Variables {self.total}{': ' * bool(self.variables)}{join_some(shown, self.total)}>"


@dataclass(frozen=True, slots=True)
class Completion:
    """Replacements for ``code[start:end]``; positions count characters of the code."""

    matches: tuple[str, ...]
    start: int
    end: int

    @classmethod
    def from_reply(cls, reply: dict[str, Any], code: str, cursor: int) -> Self:
        """Read a kernel's reply; an invalid reply gives no match."""
        start, end, matches = reply.get("cursor_start"), reply.get("cursor_end"), reply.get("matches")
        if not (isinstance(start, int) and isinstance(end, int) and 0 <= start <= end <= len(code)):
            return cls((), cursor, cursor)
        candidates = read_list(matches)[:_MATCHES_MAX]
        return cls(tuple(read_text(match, _SHORT_CHARS) for match in candidates if isinstance(match, str)), start, end)


def _read_shape(value: object) -> tuple[int, ...] | None:
    if isinstance(value, list) and len(value) <= _DIMENSIONS and all(is_count(length) for length in value):
        return tuple(value)
    return None


@dataclass(frozen=True, slots=True)
class SavedVariable:
    """A saved variable. ``file`` is the name of a file in the snapshot's directory, ``sha256`` the digest of the file.

    ``seconds`` is the time of saving; loading takes about as long.
    """

    name: str
    type: str
    size_bytes: int
    seconds: float
    file: str
    sha256: str


@dataclass(frozen=True, slots=True)
class SkippedVariable:
    """A variable left out of a snapshot, with the reason; ``defined`` means a module, function or class."""

    name: str
    reason: str
    defined: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot(JsonReadable):
    """The variables of a session at a moment, each pickled by the kernel into a separate file.

    Objects shared by several variables are restored as separate copies. The files are pickles: only a kernel reads them.
    """

    snapshot_id: str
    directory: str
    variables: tuple[SavedVariable, ...] = ()
    left_out: tuple[SkippedVariable, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """The names of the saved variables."""
        return frozenset(variable.name for variable in self.variables)

    @property
    def total_bytes(self) -> int:
        """The total size of the files."""
        return sum(variable.size_bytes for variable in self.variables)

    def __repr__(self) -> str:
        names = list_some(count_things("variable", len(self.variables)), sorted(self.names))
        left_out = list_some("left out", (variable.name for variable in self.left_out)) if self.left_out else None
        return f"<Snapshot {join_parts(self.snapshot_id, names, format_bytes(self.total_bytes), left_out)}>"


@dataclass(frozen=True, slots=True)
class Restored(JsonReadable):
    """The outcome of restoring a snapshot, or of going back to a checkpoint.

    ``names`` are the restored variables; after going back to a checkpoint, all present variables. ``missing`` are the variables
    of a snapshot that failed to load, with reasons. ``gone`` are the earlier variables missing in the checkpoint. ``cells`` is
    the number of undone cells, where known. ``files`` are the changed or removed files, if the files went back too.
    """

    names: tuple[str, ...]
    missing: tuple[SkippedVariable, ...] = ()
    gone: tuple[str, ...] = ()
    cells: int | None = None
    files: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The outcome as a line for people and models."""
        undone = None if self.cells is None else f"{count_things('cell', self.cells)} undone"
        present = list_some(count_things("variable", len(self.names)), self.names)
        gone = list_some("gone", self.gone) if self.gone else None
        missing = list_some("not loaded", (variable.name for variable in self.missing)) if self.missing else None
        return " ".join((f"{join_parts(undone, present, gone, missing)}.", *self.notes))


@dataclass(frozen=True, slots=True)
class Package:
    """An installed distribution; ``sha256`` is the digest of the wheel, if known."""

    name: str
    version: str
    sha256: str | None = None

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


@dataclass(frozen=True, slots=True)
class PythonEnvironment(JsonConvertible):
    """The Python environment of a session's cells, with paths as seen by the kernel."""

    python: str
    version: str
    prefix: str
    venv: str | None = None
    """The active virtual environment, if any; with a ``command_prefix``, for Python cells only."""
    served: Served | None = None
    """The use of ``venv`` by Python cells; None without an environment, or if no cell has run since its creation."""
    command_prefix: tuple[str, ...] = ()
    """The words before each command."""
    system: str = ""
    """The name of the operating system."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """The distributions importable by Python cells: normalised names and versions, at most 5000."""

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
    """The virtual environment, as a path seen by kernels."""
    exit_code: int
    """The exit code of pip: 0 for success, 124 after a timeout."""
    output: str
    """The output of pip, head and tail."""
    seconds: float
    lock: str | None = None
    """The file with the list of the virtual environment's contents; None if no file was written."""
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
    """Return the note on an unusable current directory, from the kernel's report; None without a problem."""
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
    """Return the note on a kernel's virtual environment, for a single result, or on packages just installed there.

    ``report`` is the kernel's message.
    """
    if not isinstance(report, dict):
        return None
    venv_note = _describe_venv(report.get("venv"))
    return " ".join([*([] if venv_note is None else [venv_note]), *packages_notes(report)]) or None


def _describe_venv(venv: object) -> str | None:
    if not isinstance(venv, dict):
        return None
    path = repr(read_text(venv.get("path"), _TEXT_CHARS))  # in quotes: a cell may have chosen the text
    match read_venv_use(venv.get("served")):
        case "interpreter":
            return f"Python cells run on the interpreter of the virtual environment {path}."
        case "packages":
            return f"Python cells also import from the virtual environment {path}; its packages come first."
        case "commands":
            return f"Only commands use the virtual environment {path}: it has no packages for the Python that runs cells."
    return None


def packages_notes(report: Mapping[str, Any]) -> list[str]:
    """Return notes on new packages with other versions in cells, from the kernel's message."""
    notes = []
    if hidden := _list_packages(report.get("hidden")):
        notes.append(f"{hidden}: installed, but cells keep the version that is loaded until the session restarts.")
    if kept := _list_packages(report.get("kept")):
        notes.append(f"Only commands have {kept}: cells have the version that their kernel needs.")
    return notes


def _list_packages(value: object) -> str:
    return ", ".join(read_text(each, _NAME_CHARS) for each in read_list(value)[:_PREFIX_MAX] if isinstance(each, str))


def read_venv_use(value: object) -> Served | None:
    """Return a valid value; None for others."""
    match value:
        case "interpreter" | "packages" | "commands" | "own":
            return value
    return None


def _read_packages(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        return {}
    pairs = ((name, version) for name, version in value.items() if isinstance(name, str) and isinstance(version, str))
    return {read_text(name, _NAME_CHARS): read_text(version, _NAME_CHARS) for name, version in list(pairs)[:PACKAGES_MAX]}
