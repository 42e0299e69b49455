"""Snapshots of a session's variables, and the outcome of restoring one."""

from __future__ import annotations

from dataclasses import dataclass

from kernelexec.results.json_values import JsonReadable
from kernelexec.results.readable.one_line import count_things, format_bytes, join_parts, list_some


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
