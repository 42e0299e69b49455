"""The words of a snapshot: which variables were saved, which were not and why, and what came back of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernelexec.results.result import plain_json


@dataclass(frozen=True, slots=True)
class SavedVariable:
    """One variable in a file of its own. ``file`` is its name in the snapshot's directory, ``sha256`` its content's.

    ``seconds`` is what saving it took; loading takes about as long.
    """

    name: str
    type: str
    size_bytes: int
    seconds: float
    file: str
    sha256: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A variable that is not in a snapshot, and why; ``defined`` says that it is made by code: a module, function or class."""

    name: str
    why: str
    defined: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Variables of a session as they were at one moment, each pickled by the kernel into a file of its own.

    Objects that several variables share come back as separate copies. The files hold pickles: they are read in a kernel only.
    """

    snapshot_id: str
    directory: str
    variables: tuple[SavedVariable, ...] = ()
    left_out: tuple[LeftOut, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """The names of the variables that are in it."""
        return frozenset(variable.name for variable in self.variables)

    @property
    def total_bytes(self) -> int:
        """How large its files are together."""
        return sum(variable.size_bytes for variable in self.variables)

    def to_dict(self) -> dict[str, Any]:
        """The snapshot as JSON types only."""
        plain: dict[str, Any] = plain_json(self)
        return plain

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> Snapshot:
        """Read what ``to_dict`` gave.

        Raises:
            ValueError: it is not of that form.
        """
        from pydantic import TypeAdapter  # noqa: PLC0415 - imported where it is needed only

        return TypeAdapter(cls).validate_python(given)


@dataclass(frozen=True, slots=True)
class Restored:
    """What came back of a snapshot: the names, and why the others did not."""

    names: tuple[str, ...]
    missing: tuple[LeftOut, ...] = ()
