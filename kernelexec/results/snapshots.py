"""Snapshots of a session's variables, and the outcome of restoring one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernelexec.results.result import to_plain_json


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
class Snapshot:
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

    def to_dict(self) -> dict[str, Any]:
        """Return the snapshot as JSON types."""
        plain: dict[str, Any] = to_plain_json(self)
        return plain

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Snapshot:
        """Read the fields of ``to_dict``.

        Raises:
            ValueError: they are not of that form.
        """
        from pydantic import TypeAdapter  # noqa: PLC0415 - imported where it is needed only

        return TypeAdapter(cls).validate_python(fields)


@dataclass(frozen=True, slots=True)
class Restored:
    """The outcome of restoring a snapshot: the restored names, and the missing ones with reasons."""

    names: tuple[str, ...]
    missing: tuple[SkippedVariable, ...] = ()
