"""The results of an inspection of a live session: variables and completions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Self

from kernelexec.results.json_values import JsonReadable, is_count, read_list, read_text
from kernelexec.results.readable.one_line import join_some

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
