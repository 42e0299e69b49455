"""How much memory a table of Arrow takes in the library that reads it: small values of a stream may become large ones."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

#: Bytes of one value with the pointer to it: an object of Python, a nested one, a view of a text in polars, and a number or a
#: bit of a column that lacks some.
_OBJECT_BYTES, _NESTED_BYTES, _VIEW_BYTES, _WIDE_BYTES = 128, 400, 24, 8


def count_pandas_bytes(table: Any, *, has_arrow_texts: bool, has_lists: bool = False) -> int:
    """Return how many bytes a table takes at most in pandas, which has Python's objects for what numpy does not know.

    ``has_arrow_texts``: texts of columns stay as they are in Arrow, as since pandas 3. ``has_lists``: lists become Python's.
    """
    types = import_module("pyarrow").types
    return sum(
        _count_pandas_bytes(array, types, has_arrow_texts=has_arrow_texts and level == 0, is_object=is_object)
        for array, level, is_object in _walk_columns(table, types, has_lists=has_lists)
    )


def count_polars_bytes(table: Any) -> int:
    """Return how many bytes a table takes at most in polars, which has a view for each text."""
    types = import_module("pyarrow").types
    arrays = (array for array, _, _ in _walk_columns(table, types))
    return int(table.nbytes) + sum(_VIEW_BYTES * len(array) for array in arrays if not _is_number(array.type, types))


def _walk_columns(table: Any, types: Any, *, has_lists: bool = False) -> Iterator[tuple[Any, int, bool]]:
    """Yield the arrays of all columns with their levels, and whether their values become Python's objects in any case."""
    pending = [(chunk, 0, False) for column in table.columns for chunk in column.chunks]
    while pending:
        array, level, is_object = pending.pop()
        yield array, level, is_object
        kind = array.type
        if types.is_dictionary(kind):
            pending.append((array.dictionary, level, is_object))
        elif types.is_map(kind):
            pending += [(part, level + 1, True) for part in (array.keys, array.items)]
        elif types.is_struct(kind):
            pending += [(part, level + 1, True) for part in array.flatten()]
        elif types.is_union(kind):
            pending += [(array.field(number), level + 1, True) for number in range(kind.num_fields)]
        elif types.is_nested(kind):
            pending.append((array.flatten(), level + 1, is_object or has_lists))


def _count_pandas_bytes(array: Any, types: Any, *, has_arrow_texts: bool, is_object: bool) -> int:
    """Return how many bytes an array takes at most, without those in it."""
    kind, count = array.type, len(array)
    if types.is_nested(kind):
        return _NESTED_BYTES * count
    if types.is_dictionary(kind) and not is_object:
        return int(count * kind.index_type.bit_width // 8)
    if _is_number(kind, types) and not is_object:
        return int(count * (_WIDE_BYTES if array.null_count else max(1, kind.bit_width // 8)))
    is_text = types.is_string(kind) or types.is_large_string(kind)
    return int(array.nbytes) + (0 if is_text and has_arrow_texts else _OBJECT_BYTES * count)


def _is_number(kind: Any, types: Any) -> bool:
    """Return whether values of a type are numbers or times as numpy has them."""
    kinds = types.is_integer, types.is_floating, types.is_boolean, types.is_timestamp, types.is_duration
    return any(is_kind(kind) for is_kind in kinds)
