"""The value of a cell as a literal of Python, by which the driver has it too; usually the shown text is one.

Scalars, dates, numbers that are not finite, and small arrays and tables have none: they are encoded.
"""

from __future__ import annotations

import ast
import sys
from base64 import b64encode
from contextlib import suppress
from typing import Any

from ..protocol import ENCODED_VALUE

#: The text of a larger value is not looked at, and neither are more parts.
_TEXT_CHARS, _PARTS_MAX = 64 * 1024, 10_000
_PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes))
#: Modules with classes of scalars that are encoded.
_LIBRARIES = frozenset(("datetime", "decimal", "fractions", "uuid", "pathlib", "zoneinfo"))
_OF_PANDAS = frozenset(("Timestamp", "Timedelta", "NaTType", "NAType"))
_CONTAINERS = frozenset((list, tuple, set, frozenset, dict))


def find_literal(value: Any, text: object) -> bool | str | None:
    """Return True if the shown text is a literal of the value, else a literal or a code of it; None if there is none.

    Only values of Python's own classes, and of numpy's and pandas' have one, so that no user's code takes part.
    """
    if _has_parts_of(value, _PLAIN):
        if _says(text, value):
            return True
        with suppress(ValueError, RecursionError):
            full = repr(value)  # the shown one may be cut, or formatted
            if _says(full, value):
                return full
    return _encode(value)


def _encode(value: Any) -> str | None:
    """Return a value in the form of ``values``, as text; None for one that has no form there or is large."""
    with suppress(Exception):  # whatever the libraries of arrays and tables raise
        if _is_small(value):
            from ..values import EncodedValues  # noqa: PLC0415 - few values need it

            content = b"".join(EncodedValues({"value": value}, _TEXT_CHARS).pieces())
            text = ENCODED_VALUE + b64encode(content).decode("ascii")
            return text if len(text) <= _TEXT_CHARS else None
    return None


def _is_small(value: Any) -> bool:
    """Return whether encoding a value takes little time: a scalar, a container of some, a small array or table."""
    kind, numpy, pandas = type(value), sys.modules.get("numpy"), sys.modules.get("pandas")
    if numpy is not None and kind is numpy.ndarray:
        return bool(value.nbytes <= _TEXT_CHARS)
    if pandas is not None and kind in (pandas.DataFrame, pandas.Series):  # they need pyarrow, whose import would take a while
        return "pyarrow" in sys.modules and bool(value.size <= _PARTS_MAX)
    return _has_parts_of(value, _Scalars())


class _Scalars:
    """The classes of scalars, by the modules that define them."""

    def __contains__(self, kind: type) -> bool:
        library = str(kind.__module__).partition(".")[0]
        if library == "numpy":
            return issubclass(kind, sys.modules["numpy"].generic)
        return kind in _PLAIN or kind is range or library in _LIBRARIES or (library == "pandas" and kind.__name__ in _OF_PANDAS)


def _says(text: object, value: Any) -> bool:
    if type(text) is not str or len(text) > _TEXT_CHARS:
        return False
    try:
        return bool(ast.literal_eval(text) == value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False


def _has_parts_of(value: Any, plain: Any) -> bool:
    """Return whether a value is of the ``plain`` classes, or a container of such values, and not too many."""
    waiting, count = [value], 0
    while waiting:
        part = waiting.pop()
        count += 1
        kind = type(part)
        if kind in plain:
            continue
        if kind not in _CONTAINERS or count + len(waiting) + len(part) > _PARTS_MAX:
            return False
        waiting.extend(part)
        if kind is dict:
            waiting.extend(part.values())
    return True
