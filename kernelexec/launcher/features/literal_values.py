"""The value of a cell as a literal of Python, by which the driver has it too; usually the shown text is one."""

from __future__ import annotations

import ast
from typing import Any

#: The text of a larger value is not looked at, and neither are more parts.
_TEXT_CHARS, _PARTS_MAX = 64 * 1024, 10_000
_PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes))
_CONTAINERS = frozenset((list, tuple, set, dict))


def find_literal(value: Any, text: object) -> bool | str | None:
    """Return True if the shown text is a literal of the value, else a literal of it; None if there is none.

    Only values of built-in classes have one, so that no user's code takes part.
    """
    if not _is_built_in(value):
        return None
    if _says(text, value):
        return True
    try:
        full = repr(value)  # the shown one may be cut, or formatted
    except (ValueError, RecursionError):
        return None
    return full if _says(full, value) else None


def _says(text: object, value: Any) -> bool:
    if type(text) is not str or len(text) > _TEXT_CHARS:
        return False
    try:
        return bool(ast.literal_eval(text) == value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False


def _is_built_in(value: Any) -> bool:
    """Return whether a value and its parts are of built-in classes, and not too many."""
    waiting, count = [value], 0
    while waiting:
        part = waiting.pop()
        count += 1
        kind = type(part)
        if kind in _PLAIN:
            continue
        if kind not in _CONTAINERS or count + len(waiting) + len(part) > _PARTS_MAX:
            return False
        waiting.extend(part)
        if kind is dict:
            waiting.extend(part.values())
    return True
