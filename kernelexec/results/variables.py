"""What a look into a live session shows: its variables, and what the kernel knows of a name or of code not yet run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Self

from kernelexec.text import clean_text

#: Whether code can be run as it stands; ``unknown`` where the kernel cannot tell.
CodeStatus = Literal["complete", "incomplete", "invalid", "unknown"]

#: How many variables a look shows at most.
VARIABLES_MAX = 1000
_TEXT_CHARS, _DIMENSIONS, _LARGEST = 200, 64, 2**63
_MATCHES_MAX = 1000


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable of the user's.

    ``type`` is the class with its module, or module, function, class. ``shape`` is that of an array or table, and the length
    of a built-in collection; ``size_bytes`` what the value itself holds, without what it refers to; None where it cannot be
    known without running the user's code. ``text`` is a short view of 200 characters at most.
    """

    name: str
    type: str
    shape: tuple[int, ...] | None
    size_bytes: int | None
    text: str

    @classmethod
    def of(cls, said: object) -> Self | None:
        """From what a kernel said; None where it makes no sense."""
        if not isinstance(said, dict):
            return None
        name, kind, text = (said.get(key) for key in ("name", "type", "text"))
        if not (isinstance(name, str) and isinstance(kind, str) and isinstance(text, str)):
            return None
        size = said.get("size_bytes")
        return cls(_short(name), _short(kind), _shape(said.get("shape")), size if _is_count(size) else None, _short(text))


@dataclass(frozen=True, slots=True)
class Variables:
    """The variables that a look found, in the order of their names; ``total`` says how many there are, shown or not."""

    found: tuple[Variable, ...] = ()
    total: int = 0

    @classmethod
    def of(cls, said: dict[str, Any], limit: int) -> Self:
        """From a kernel's reply; what makes no sense in it is left out."""
        items = said.get("variables")
        found = tuple(filter(None, map(Variable.of, (items if isinstance(items, list) else [])[:limit])))
        total = said.get("total")
        return cls(found, max(total if isinstance(total, int) and _is_count(total) else 0, len(found)))

    def __iter__(self) -> Iterator[Variable]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of what was found."""
        return tuple(variable.name for variable in self.found)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {"total": self.total, "variables": [dataclasses.asdict(variable) for variable in self.found]}


@dataclass(frozen=True, slots=True)
class Completion:
    """What could stand in the place of ``code[start:end]``, positions being characters of the code."""

    matches: tuple[str, ...]
    start: int
    end: int

    @classmethod
    def of(cls, said: dict[str, Any], code: str, cursor: int) -> Self:
        """From a kernel's reply; without a match where it makes no sense."""
        start, end, matches = said.get("cursor_start"), said.get("cursor_end"), said.get("matches")
        if not (isinstance(start, int) and isinstance(end, int) and 0 <= start <= end <= len(code)):
            return cls((), cursor, cursor)
        known = (matches if isinstance(matches, list) else [])[:_MATCHES_MAX]
        return cls(tuple(_short(match) for match in known if isinstance(match, str)), start, end)


def _shape(said: object) -> tuple[int, ...] | None:
    if isinstance(said, list) and len(said) <= _DIMENSIONS and all(_is_count(length) for length in said):
        return tuple(said)
    return None


def _short(text: str) -> str:
    return clean_text(text[:_TEXT_CHARS])


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST
