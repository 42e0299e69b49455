"""Descriptions of the user's variables, without running user code: the thread that serves interrupts makes them.

Only values whose exact type is built in are looked into: a class of the user's may hang in its ``__repr__``, ``__len__`` or
``__class__``, its metaclass in ``__hash__`` or ``__name__``. Of other values only the type is described.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from itertools import islice
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

_ITEMS, _DEPTH, _TRIES = 6, 3, 3
_TEXT_CHARS, _INNER_CHARS, _NAME_CHARS = 200, 40, 100
_COLUMNS, _COLUMNS_LOOKED_AT = 8, 1000
#: Seconds for the values of one request; of later values only the types are described.
_LOOK_SECONDS = 0.25
_BIG_BITS = 1024
_IMMUTABLE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE: no class that was made in Python has it
# What a class says of itself without its metaclass being asked.
_flags, _qualname, _module, _mro = (type.__dict__[f"__{name}__"].__get__ for name in ("flags", "qualname", "module", "mro"))
_NUMPY_SCALARS = frozenset(
    {"bool", "bool_", "str_", "bytes_", "complex64", "complex128"}
    | {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
    | {f"float{bits}" for bits in (16, 32, 64)}
)
_NUMPY_KINDS = {
    "b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex",
    "O": "object", "U": "str", "S": "bytes", "M": "datetime64", "m": "timedelta64",
}  # fmt: skip


@dataclass
class _Seen:
    """Description of one value."""

    type: str
    shape: tuple[int, ...] | None = None
    size_bytes: int | None = None
    text: str = ""


def listing(names: Iterable[str], namespace: Mapping[str, Any], limit: int) -> dict[str, Any]:
    """The variables of these names, ``limit`` of them in the order of their names, and how many there are in all."""
    every = sorted(names)
    matches = _found(every[:limit], namespace)
    until = time.monotonic() + _LOOK_SECONDS
    described = []
    for name in every[:limit]:
        with suppress(KeyError):  # deleted meanwhile
            seen = _see(matches[name], look=time.monotonic() < until)
            shape = None if seen.shape is None else list(seen.shape)
            text = _cut(seen.text, _TEXT_CHARS)
            described.append({"name": name, "type": seen.type, "shape": shape, "size_bytes": seen.size_bytes, "text": text})
    return {"status": "ok", "variables": described, "total": len(every)}


def _found(names: list[str], namespace: Mapping[str, Any]) -> Mapping[str, Any]:
    """Where these names can be looked up. A key of the user's own class would be asked whether it equals one of them."""
    if all(type(key) is str for key in list(namespace)):
        return namespace
    wanted = set(names)
    return {name: value for name, value in list(namespace.items()) if type(name) is str and name in wanted}


def _see(value: Any, *, look: bool) -> _Seen:
    kind = type(value)
    seen = _Seen(_type_name(kind))
    if look:
        try:
            _look_at(value, kind, seen)
        except Exception:  # another thread changes it at this moment
            seen.text = seen.text or _stranger(kind)
    return seen


def _look_at(value: Any, kind: type, seen: _Seen) -> None:
    if issubclass(kind, ModuleType):
        seen.type, seen.text = "module", _module_name(value, kind)
    elif issubclass(kind, type):
        seen.type, seen.text = "class", _type_name(value)
    elif kind is FunctionType or kind is BuiltinFunctionType or kind is MethodType:
        seen.type, seen.text = "function", _signature(value, kind)
    elif _is_numpy(kind, "ndarray"):
        _see_array(value, seen)
    elif table := _pandas_name(kind):
        seen.type = f"pandas.{table}"
        _see_table(value, table, seen)
    else:
        if id(kind) in _SIZED:
            seen.shape = (len(value),)
        if id(kind) in _VIEWS:
            seen.size_bytes = sys.getsizeof(value)
        seen.text = _view(value, 0)


def _type_name(kind: type) -> str:
    """The name of a class with its module's; bare where it is built in."""
    name, module = _exact(_qualname(kind)), None
    with suppress(AttributeError):
        module = _module(kind)
    if type(module) is not str or module == "builtins":
        return _cut(name, _NAME_CHARS)
    return _cut(f"{module}.{name}", _NAME_CHARS)


def _exact(text: str) -> str:
    """A text without the methods of a class of the user's that it may be of."""
    return str.__str__(text)


def _stranger(kind: type) -> str:
    return f"<{_type_name(kind)} object>"


def _module_name(value: Any, kind: type) -> str:
    name = vars(value).get("__name__") if kind is ModuleType else None
    return name if type(name) is str else ""


def _signature(value: Any, kind: type) -> str:
    if kind is not FunctionType:
        return ""
    code = value.__code__
    return f"{_exact(value.__qualname__)}({', '.join(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])})"


def _view(value: Any, depth: int) -> str:
    """A value in short, like its repr; of a stranger's only the type."""
    kind = type(value)
    if (view := _VIEWS.get(id(kind))) is not None:
        text = view(value, depth)
    elif _is_numpy(kind) and _qualname(kind) in _NUMPY_SCALARS:
        text = f"{_qualname(kind)}({_view(value.item(), depth)})"
    else:
        text = _stranger(kind)
    return _cut(text, _INNER_CHARS) if depth == _DEPTH else text


def _number(value: Any, _depth: int) -> str:
    if type(value) is int and value.bit_length() > _BIG_BITS:
        return f"<int of {value.bit_length()} bits>"
    return repr(value)


def _string(value: Any, depth: int) -> str:
    room = _INNER_CHARS if depth else _TEXT_CHARS
    return repr(value) if len(value) <= room else f"{value[:room]!r}..."


def _moment(value: Any, _depth: int) -> str:
    own = type(value) is datetime and value.tzinfo is not None and type(value.tzinfo) is not timezone
    return _stranger(datetime) if own else str(value)  # a time zone may be a class of the user's


def _several(opening: str, closing: str) -> Callable[[Any, int], str]:
    def view(value: Any, depth: int) -> str:
        if type(value) is set and not value:
            return "set()"
        if depth >= _DEPTH:
            return f"{opening}...{closing}"
        shown = [_view(item, depth + 1) for item in _first(value)]
        more = ["..."] * (len(value) > len(shown))
        comma = "," * (type(value) is tuple and len(value) == 1)
        return f"{opening}{', '.join(shown + more)}{comma}{closing}"

    return view


def _pairs(opening: str, closing: str) -> Callable[[Any, int], str]:
    def view(value: Any, depth: int) -> str:
        if depth >= _DEPTH:
            return f"{opening}...{closing}"
        # Not an OrderedDict's own items: for these it looks up each key, which asks the key for its hash.
        shown = [f"{_view(key, depth + 1)}: {_view(item, depth + 1)}" for key, item in _first(dict.items(value))]
        more = ["..."] * (len(value) > len(shown))
        return f"{opening}{', '.join(shown + more)}{closing}"

    return view


def _first(items: Any) -> list[Any]:
    """The first items; none where another thread changes them all the time."""
    for _ in range(_TRIES):
        with suppress(RuntimeError):
            return list(islice(items, _ITEMS))
    return []


# By the classes' identity: a dictionary of classes would ask an unknown one for its hash.
_VIEWS: dict[int, Callable[[Any, int], str]] = {
    **{id(kind): _number for kind in (int, float, complex, bool, type(None), type(...), type(NotImplemented), range)},
    **{id(kind): _string for kind in (str, bytes, bytearray)},
    **{id(kind): _moment for kind in (date, datetime, timedelta)},
    id(list): _several("[", "]"),
    id(tuple): _several("(", ")"),
    id(set): _several("{", "}"),
    id(frozenset): _several("frozenset({", "})"),
    id(deque): _several("deque([", "])"),
    id(dict): _pairs("{", "}"),
    id(OrderedDict): _pairs("OrderedDict({", "})"),
    id(defaultdict): _pairs("defaultdict({", "})"),
    id(Counter): _pairs("Counter({", "})"),
}
_SIZED = frozenset(
    id(kind)
    for kind in (str, bytes, bytearray, list, tuple, set, frozenset, deque, dict, OrderedDict, defaultdict, Counter, range)
)


def _is_numpy(kind: type, name: str | None = None) -> bool:
    """Whether a class is numpy's own, from C: its attributes run no code of anybody else's."""
    if not _flags(kind) & _IMMUTABLE or (name is not None and _qualname(kind) != name):
        return False
    module = _module(kind)
    return type(module) is str and module.split(".")[0] == "numpy"


def _dtype_name(dtype: Any) -> str:
    """The name of a numpy dtype as C has it, or of a dtype of pandas'; of a stranger's the class."""
    kind = getattr(dtype, "kind", None) if _comes_from(dtype, "numpy") else None
    if type(kind) is not str:
        return str(dtype) if _comes_from(dtype, "pandas") else _type_name(type(dtype))
    name = _NUMPY_KINDS.get(kind, "void")
    return f"{name}{dtype.itemsize * 8}" if kind in "iufc" else name


def _see_array(array: Any, seen: _Seen) -> None:
    seen.shape, seen.size_bytes = tuple(array.shape), array.nbytes
    text = _dtype_name(array.dtype)
    if array.size and array.dtype.kind in "biufcSU":
        shown = [_view(item, 1) for item in array.flat[:_ITEMS].tolist()]
        text += f" [{', '.join(shown + ['...'] * (array.size > _ITEMS))}]"
    seen.text = text


def _pandas_name(kind: type) -> str | None:
    """DataFrame or Series, where a class is that one of pandas'."""
    module = sys.modules.get("pandas")
    if type(module) is not ModuleType or not _module_of(kind).startswith("pandas"):
        return None
    return next((name for name in ("DataFrame", "Series") if vars(module).get(name) is kind), None)


def _module_of(kind: type) -> str:
    with suppress(AttributeError):
        module = _module(kind)
        return module if type(module) is str else ""
    return ""


def _comes_from(value: Any, package: str) -> bool:
    """Whether a value's class, and what it derives from, are of a package or built in."""
    modules = {_module_of(kind).split(".")[0] for kind in _mro(type(value))}
    return package in modules and modules <= {package, "numpy", "builtins", "abc"}


def _see_table(table: Any, name: str, seen: _Seen) -> None:
    """The shape, the columns and the size of a table, as far as all of it is numpy's and pandas' own."""
    if not all(_comes_from(axis, "pandas") for axis in table.axes):
        seen.text = _stranger(type(table))
        return
    columns = len(table.columns) if name == "DataFrame" else 1
    if columns > _COLUMNS_LOOKED_AT:
        seen.text = f"{columns} columns"
        return
    dtypes = list(table.dtypes) if name == "DataFrame" else [table.dtype]
    seen.shape = (len(table.index), columns)[: 1 + (name == "DataFrame")]
    if name == "DataFrame":
        labels = list(table.columns[:_COLUMNS])
        shown = [f"{_label(label)}: {_dtype_name(dtype)}" for label, dtype in zip(labels, dtypes, strict=False)]
        seen.text = ", ".join(shown + ["..."] * (columns > len(shown)))
    else:
        seen.text = f"{_label(table.name)}: {_dtype_name(dtypes[0])}"
    if all(_comes_from(dtype, "pandas") or _comes_from(dtype, "numpy") for dtype in dtypes):
        usage = table.memory_usage(index=True, deep=False)
        seen.size_bytes = int(usage.sum()) if name == "DataFrame" else int(usage)


def _label(label: Any) -> str:
    return label[:_INNER_CHARS] if type(label) is str else _view(label, 1)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
