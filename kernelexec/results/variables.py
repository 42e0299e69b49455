"""Variables of a live session and of its snapshots, and completions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Self

from kernelexec.results.json_values import JsonReadable, is_count, read_list, read_text
from kernelexec.results.one_line import count_things, format_bytes, join_parts, join_some, list_some

#: Whether code can be run as it stands; ``unknown`` if the kernel cannot decide.
CodeStatus = Literal["complete", "incomplete", "invalid", "unknown"]

#: The limit of variables in one call.
VARIABLES_MAX = 1000
_TEXT_CHARS, _DIMENSIONS, _MATCHES_MAX = 200, 64, 1000


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable of the user.

    ``type`` is the class with its module, or ``module``, ``function``, ``class``. ``shape`` is that of an array or table, or
    the length of a built-in collection; ``size_bytes`` is the size of the value itself, without the objects that it refers
    to. Both are None if they cannot be known without running the user's code. ``text`` is a view of at most 200 characters.
    """

    name: str
    type: str
    shape: tuple[int, ...] | None
    size_bytes: int | None
    text: str

    @classmethod
    def from_reply(cls, reply: object) -> Self | None:
        """Read a kernel's reply; return None if it is invalid."""
        if not isinstance(reply, dict):
            return None
        name, kind, text = (reply.get(key) for key in ("name", "type", "text"))
        if not (isinstance(name, str) and isinstance(kind, str) and isinstance(text, str)):
            return None
        size = reply.get("size_bytes")
        return cls(
            read_text(name, _TEXT_CHARS),
            read_text(kind, _TEXT_CHARS),
            _read_shape(reply.get("shape")),
            size if is_count(size) else None,
            read_text(text, _TEXT_CHARS),
        )


@dataclass(frozen=True, slots=True)
class Variables(JsonReadable):
    """The variables of a session, sorted by name; ``total`` counts also those beyond the limit."""

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
        """Read a kernel's reply; an invalid one gives no match."""
        start, end, matches = reply.get("cursor_start"), reply.get("cursor_end"), reply.get("matches")
        if not (isinstance(start, int) and isinstance(end, int) and 0 <= start <= end <= len(code)):
            return cls((), cursor, cursor)
        candidates = read_list(matches)[:_MATCHES_MAX]
        return cls(tuple(read_text(match, _TEXT_CHARS) for match in candidates if isinstance(match, str)), start, end)


def _read_shape(value: object) -> tuple[int, ...] | None:
    if isinstance(value, list) and len(value) <= _DIMENSIONS and all(is_count(length) for length in value):
        return tuple(value)
    return None


@dataclass(frozen=True, slots=True)
class SavedVariable:
    """A saved variable. ``file`` is the name of its file in the snapshot's directory, ``sha256`` the digest of the file.

    ``seconds`` is the time to save it; loading takes about as long.
    """

    name: str
    type: str
    size_bytes: int
    seconds: float
    file: str
    sha256: str


@dataclass(frozen=True, slots=True)
class SkippedVariable:
    """A variable that is not in a snapshot, with the reason; ``defined`` says that it is a module, function or class."""

    name: str
    reason: str
    defined: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot(JsonReadable):
    """The variables of a session at one moment; the kernel pickled each into a file of its own.

    Objects that several variables share are restored as separate copies. The files are pickles: only a kernel reads them.
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

    ``names`` are the restored variables: of a checkpoint, all that there are. ``missing`` are those of a snapshot that could
    not be loaded, with reasons. ``gone`` are the variables that there were and that the checkpoint does not have, and ``cells``
    is the number of cells that were undone, where it is known. ``files`` are the files that were changed or removed, if the
    files went back too.
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
