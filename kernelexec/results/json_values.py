"""JSON types: the conversion of results, and the reading of values in replies of kernels, which may send anything."""

from __future__ import annotations

import ast
import base64
import dataclasses
import functools
import math
from collections.abc import Hashable
from typing import Any, Self, TypeGuard, cast

from kernelexec.launcher.protocol import ENCODED_VALUE
from kernelexec.text import clean_text, count_elements

_COUNT_END, _SECONDS_END = 2**63, 2**40
#: The largest readable literal, in characters.
LITERAL_CHARS = 64 * 1024
#: Memory for an encoded value beyond the allowance of every value, in bytes.
_VALUE_BYTES = 1024 * 1024
#: The limit of JSON elements read from a text or written to a text: Python takes up to 100 bytes and 100 ns for each.
_ELEMENTS_MAX = 100_000


class JsonConvertible:
    """A dataclass with a conversion to JSON types."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON types."""
        plain: dict[str, Any] = to_plain_json(self)
        return plain


class JsonReadable(JsonConvertible):
    """A dataclass with a conversion to JSON types and back."""

    __slots__ = ()

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Self:
        """Read the fields of ``to_dict``; raise ``ValueError`` for fields of another form."""
        value: Self = json_adapter(cast("Hashable", cls)).validate_python(fields)
        return value


@functools.cache
def json_adapter(kind: Hashable) -> Any:  # noqa: ANN401 - pydantic is imported where it is needed only
    """Return pydantic's ``TypeAdapter`` of a dataclass."""
    from pydantic import TypeAdapter  # noqa: PLC0415

    return TypeAdapter(cast("Any", kind))


def to_plain_json(value: Any) -> Any:  # noqa: ANN401 - a tree of dataclasses in, JSON out
    """Convert a value of this package to JSON types."""
    match value:
        case str() | bool() | int() | None:
            return value
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: to_plain_json(item) for key, item in value.items()}
        case tuple() | list():
            return [to_plain_json(item) for item in value]
        case _:
            return {f.name: to_plain_json(getattr(value, f.name)) for f in dataclasses.fields(value)}


def is_count(value: object) -> TypeGuard[int]:
    """Return whether a value is a whole number from 0 to 2**63 - 1."""
    # True is an int in Python, and no number in JSON.
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _COUNT_END


def is_seconds(value: object) -> TypeGuard[float]:
    """Return whether a value is a number of seconds from 0 to 2**40."""
    return isinstance(value, int | float) and 0 <= value < _SECONDS_END


def read_list(value: object) -> list[Any]:
    """Return a list unchanged, and an empty list for another value."""
    return value if isinstance(value, list) else []


def is_small_text(json_text: str) -> bool:
    """Return whether a JSON text has at most 100,000 elements."""
    return count_elements(json_text) <= _ELEMENTS_MAX


def is_small_tree(value: object) -> bool:
    """Return whether a JSON value has at most 100,000 elements."""
    # Without recursion, since the value may be nested deeply; a list above the limit is not walked through.
    pending, left = [value], _ELEMENTS_MAX
    while pending and left >= 0:
        item = pending.pop()
        if isinstance(item, dict | list):
            left -= len(item)
            if left >= 0:
                pending.extend(item if isinstance(item, list) else item.values())
    return left >= 0


def read_text(value: object, limit: int) -> str:
    """Return at most ``limit`` characters of a text, valid ones only; an empty text for another value."""
    return clean_text(value[:limit])[:limit] if isinstance(value, str) else ""


def read_literal(text: str) -> Any:  # noqa: ANN401 - any value
    """Return the value of a Python literal, or of an encoded value.

    Raises:
        ValueError: the text is neither, has more than 64 Ki characters, or needs a missing library.
    """
    if len(text) > LITERAL_CHARS:
        raise ValueError("too long")
    if text.startswith(ENCODED_VALUE):
        return _read_encoded(text.removeprefix(ENCODED_VALUE))
    try:
        return ast.literal_eval(text)
    except (SyntaxError, TypeError, MemoryError, RecursionError) as exc:
        raise ValueError("no literal") from exc


def _read_encoded(text: str) -> Any:  # noqa: ANN401 - as above
    from kernelexec.launcher.values import ValueDecoder, ValueRefused  # noqa: PLC0415 - few values need it

    content = bytearray(base64.b64decode(text, validate=True))
    try:
        return ValueDecoder(memoryview(content), _VALUE_BYTES).decode()["value"]
    except (ValueRefused, KeyError) as exc:
        raise ValueError(str(exc)) from exc


def read_seconds(value: object, default: float = 0.0) -> float:
    """Return a number of seconds from 0 to below 2**40, and the default for another value."""
    return float(value) if is_seconds(value) else default
