"""JSON with the types of values, as smolagents sends final answers, read within bounds.

The library's own reader starts programs for pictures of some formats, and makes arrays of any size.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelexec.results.media import open_picture
from kernelexec.text import NESTING_MAX, parse_untrusted_json

if TYPE_CHECKING:
    import PIL.Image

_Node = dict[str, Any]
#: The largest array, in bytes.
_ARRAY_BYTES = 64 * 1024 * 1024
#: The dtypes of arrays by their letter and as numpy writes them; a structure of several could have any size.
_KINDS = "biufcSUmMO"
_DTYPE = re.compile(rf"[<>|=]?(?:[{_KINDS}]|[a-z]{{3,10}})\d{{0,9}}(?:\[\d{{0,6}}[A-Za-z]{{1,7}}\])?", re.ASCII)


def read_typed_json(json_text: str) -> Any:  # noqa: ANN401 - any of the types
    """Return the value of untrusted JSON, where ``{"__type__": name, ...}`` is a value of another type.

    Raises:
        ValueError: the JSON is malformed, nested too deep or too large, or has a picture of an unknown format.
    """
    try:
        return _read(parse_untrusted_json(json_text), 0)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError) as exc:  # of the types
        raise ValueError(f"it has a malformed value: {exc!s:.200}") from exc


def _read(value: Any, depth: int) -> Any:  # noqa: ANN401 - JSON in
    if depth > NESTING_MAX:
        raise ValueError(f"it is nested more than {NESTING_MAX} deep")
    if isinstance(value, list):
        return [_read(item, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    # The table is the limit of what the kernel can ask for: no name leads to a class or a module.
    name = value.get("__type__")
    reader = _READERS.get(name) if isinstance(name, str) else None
    return _read_fields(value, depth) if reader is None else reader(value, depth)


def _read_fields(fields: _Node, depth: int) -> dict[str, Any]:
    return {key: _read(item, depth + 1) for key, item in fields.items()}


def _read_items(collect: Callable[..., Any], node: _Node, depth: int) -> Any:  # noqa: ANN401 - a tuple or a set
    return collect(_read(item, depth + 1) for item in node["data"])


def _read_pairs(node: _Node, depth: int) -> dict[Any, Any]:
    return {_read(key, depth + 1): _read(item, depth + 1) for key, item in node["data"]}


def _read_dataclass(node: _Node, depth: int) -> dict[str, Any]:
    return {"__dataclass__": node["class_name"], "__module__": node["module"], **_read_fields(node["data"], depth)}


def _read_text(parse: Callable[[str], Any], node: _Node, _depth: int) -> Any:  # noqa: ANN401 - of any type
    return parse(node["data"])


def _read_picture(node: _Node, _depth: int) -> PIL.Image.Image:
    picture = open_picture(base64.b64decode(node["data"]))
    if picture is None:
        raise ValueError("it has a picture that cannot be shown")
    return picture


def _read_array(node: _Node, _depth: int) -> Any:  # noqa: ANN401 - an array of numpy; without numpy, its items
    try:
        numpy = import_module("numpy")
    except ImportError:
        return node["data"]
    dtype = numpy.dtype(node["dtype"]) if _DTYPE.fullmatch(node["dtype"]) else None
    # Measured before it is made: a dtype such as U999999999 makes gigabytes of one item.
    if dtype is None or dtype.kind not in _KINDS or dtype.itemsize * _count_items(node["data"]) > _ARRAY_BYTES:
        raise ValueError("it has an array of an unknown type, or one that is too large")
    return numpy.array(node["data"], dtype)


def _count_items(data: Any) -> int:  # noqa: ANN401 - JSON
    return sum(map(_count_items, data)) if isinstance(data, list) else 1


_READERS: Mapping[str, Callable[[_Node, int], Any]] = {
    "bytes": partial(_read_text, base64.b64decode),
    "complex": lambda node, _: complex(node["real"], node["imag"]),
    "dataclass": _read_dataclass,
    "date": partial(_read_text, date.fromisoformat),
    "datetime": partial(_read_text, datetime.fromisoformat),
    "Decimal": partial(_read_text, Decimal),
    "dict_with_complex_keys": _read_pairs,
    "frozenset": partial(_read_items, frozenset),
    "ndarray": _read_array,
    "Path": partial(_read_text, Path),
    "PIL.Image": _read_picture,
    "set": partial(_read_items, set),
    "time": partial(_read_text, time.fromisoformat),
    "timedelta": lambda node, _: timedelta(seconds=node["total_seconds"]),
    "tuple": partial(_read_items, tuple),
}
