"""Names and descriptions of the user's variables, without running user code.

The thread of interrupts reads them, and must not hang. Only values of an exact built-in type are read: a user's class may
hang in ``__repr__``, ``__len__`` or ``__class__``, and a metaclass in ``__hash__`` or ``__name__``. Other values are described
by their type only.
"""

from __future__ import annotations

import re
import sys
import time
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
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
_NEWEST_KEYS = 32
_INPUT = re.compile(r"_i\d+")
_IMMUTABLE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE: classes that are defined in Python lack it
# Attributes of a class, read without its metaclass.
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


def describe_variables(names: Iterable[str], namespace: Mapping[str, Any], limit: int) -> dict[str, Any]:
    """Describe the first ``limit`` variables of these names in alphabetical order, with the total number."""
    ordered = sorted(names)
    matches = _select(ordered[:limit], namespace)
    until = time.monotonic() + _LOOK_SECONDS
    descriptions = []
    for name in ordered[:limit]:
        with suppress(KeyError):  # deleted meanwhile
            description = _describe(matches[name], with_details=time.monotonic() < until)
            descriptions.append({"name": name, **description, "text": _cut(description["text"], _TEXT_CHARS)})
    return {"status": "ok", "variables": descriptions, "total": len(ordered)}


def _select(names: list[str], namespace: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a mapping for the look-up of these names, without a key of a user's class, whose ``__eq__`` could run."""
    if all(type(key) is str for key in list(namespace)):
        return namespace
    wanted = set(names)
    return {name: value for name, value in list(namespace.items()) if type(name) is str and name in wanted}


def _describe(value: Any, *, with_details: bool) -> dict[str, Any]:
    """Return the type, shape, size and text of a value; ``_describe_*`` below refine the description."""
    kind = type(value)
    description = {"type": _type_name(kind), "shape": None, "size_bytes": None, "text": ""}
    if with_details:
        try:
            _describe_value(value, kind, description)
        except Exception:  # another thread changes it at this moment
            description["text"] = description["text"] or _format_type_only(kind)
    return description


def _describe_value(value: Any, kind: type, description: dict[str, Any]) -> None:
    if issubclass(kind, ModuleType):
        name = vars(value).get("__name__") if kind is ModuleType else None
        description |= {"type": "module", "text": name if type(name) is str else ""}
    elif issubclass(kind, type):
        description |= {"type": "class", "text": _type_name(value)}
    elif kind is FunctionType or kind is BuiltinFunctionType or kind is MethodType:
        description |= {"type": "function", "text": _signature(value) if kind is FunctionType else ""}
    elif _is_numpy(kind, "ndarray"):
        _describe_array(value, description)
    elif table := _pandas_name(kind):
        description["type"] = f"pandas.{table}"
        _describe_table(value, table, description)
    else:
        if id(kind) in _SIZED:
            description["shape"] = [len(value)]
        if id(kind) in _VIEWS:
            description["size_bytes"] = sys.getsizeof(value)
        description["text"] = _format(value, 0)


def _type_name(kind: type) -> str:
    """Return the name of a class with the module, or without a module for built-in classes."""
    name, module = _as_plain_text(_qualname(kind)), None
    with suppress(AttributeError):
        module = _module(kind)
    if type(module) is not str or module == "builtins":
        return _cut(name, _NAME_CHARS)
    return _cut(f"{module}.{name}", _NAME_CHARS)


#: Returns a text as a plain ``str``, whatever subclass it is of.
_as_plain_text = str.__str__


def _format_type_only(kind: type) -> str:
    return f"<{_type_name(kind)} object>"


def _signature(function: Any) -> str:
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return f"{_as_plain_text(function.__qualname__)}({', '.join(names)})"


def _format(value: Any, depth: int) -> str:
    """Return a short form of a value, like ``repr``; for unknown classes only the type."""
    kind = type(value)
    if (view := _VIEWS.get(id(kind))) is not None:
        text = view(value, depth)
    elif _is_numpy(kind) and _qualname(kind) in _NUMPY_SCALARS:
        text = f"{_qualname(kind)}({_format(value.item(), depth)})"
    else:
        text = _format_type_only(kind)
    return _cut(text, _INNER_CHARS) if depth == _DEPTH else text


def _view_number(value: Any, _depth: int) -> str:
    if type(value) is int and value.bit_length() > _BIG_BITS:
        return f"<int of {value.bit_length()} bits>"
    return repr(value)


def _view_string(value: Any, depth: int) -> str:
    room = _INNER_CHARS if depth else _TEXT_CHARS
    return repr(value) if len(value) <= room else f"{value[:room]!r}..."


def _view_time(value: Any, _depth: int) -> str:
    has_foreign_timezone = type(value) is datetime and value.tzinfo is not None and type(value.tzinfo) is not timezone
    return _format_type_only(datetime) if has_foreign_timezone else str(value)  # a time zone may be of a user's class


def _view_items(opening: str, closing: str, *, are_pairs: bool = False) -> Callable[[Any, int], str]:
    def view(value: Any, depth: int) -> str:
        if type(value) is set and not value:
            return "set()"
        if depth >= _DEPTH:
            return f"{opening}...{closing}"
        if are_pairs:  # not the items of OrderedDict itself, which looks up each key and so calls the key's ``__hash__``
            shown = [f"{_format(key, depth + 1)}: {_format(item, depth + 1)}" for key, item in _take_first(dict.items(value))]
        else:
            shown = [_format(item, depth + 1) for item in _take_first(value)]
        more = ["..."] * (len(value) > len(shown))
        comma = "," * (type(value) is tuple and len(value) == 1)
        return f"{opening}{', '.join(shown + more)}{comma}{closing}"

    return view


def _take_first(items: Any) -> list[Any]:
    """Return the first items; none if another thread changes the container all the time."""
    # Iterators of sets and dictionaries raise RuntimeError when the size changes, as by the cell that runs meanwhile.
    for _ in range(_TRIES):
        with suppress(RuntimeError):
            return list(islice(items, _ITEMS))
    return []


# By the identity of classes: a dictionary of classes would call the hash of an unknown one.
_VIEWS: dict[int, Callable[[Any, int], str]] = {
    **{id(kind): _view_number for kind in (int, float, complex, bool, type(None), type(...), type(NotImplemented), range)},
    **{id(kind): _view_string for kind in (str, bytes, bytearray)},
    **{id(kind): _view_time for kind in (date, datetime, timedelta)},
    id(list): _view_items("[", "]"),
    id(tuple): _view_items("(", ")"),
    id(set): _view_items("{", "}"),
    id(frozenset): _view_items("frozenset({", "})"),
    id(deque): _view_items("deque([", "])"),
    id(dict): _view_items("{", "}", are_pairs=True),
    id(OrderedDict): _view_items("OrderedDict({", "})", are_pairs=True),
    id(defaultdict): _view_items("defaultdict({", "})", are_pairs=True),
    id(Counter): _view_items("Counter({", "})", are_pairs=True),
}
_SIZED = frozenset(
    id(kind)
    for kind in (str, bytes, bytearray, list, tuple, set, frozenset, deque, dict, OrderedDict, defaultdict, Counter, range)
)


def _is_numpy(kind: type, name: str | None = None) -> bool:
    """Return whether a class is numpy's own, defined in C, with attributes free of user code."""
    # The module alone is no proof, since user code can set ``__module__``; Python code cannot set the flag of classes from C.
    if not _flags(kind) & _IMMUTABLE or (name is not None and _qualname(kind) != name):
        return False
    module = _module(kind)
    return type(module) is str and module.split(".")[0] == "numpy"


def _dtype_name(dtype: Any) -> str:
    """Return the C name of a numpy dtype, the name of a pandas dtype, or for other dtypes the name of the class."""
    kind = getattr(dtype, "kind", None) if _comes_from(dtype, "numpy") else None
    if type(kind) is not str:
        return str(dtype) if _comes_from(dtype, "pandas") else _type_name(type(dtype))
    name = _NUMPY_KINDS.get(kind, "void")
    return f"{name}{dtype.itemsize * 8}" if kind in "iufc" else name


def _describe_array(array: Any, description: dict[str, Any]) -> None:
    description |= {"shape": list(array.shape), "size_bytes": array.nbytes}
    text = _dtype_name(array.dtype)
    if array.size and array.dtype.kind in "biufcSU":
        shown = [_format(item, 1) for item in array.flat[:_ITEMS].tolist()]
        text += f" [{', '.join(shown + ['...'] * (array.size > _ITEMS))}]"
    description["text"] = text


def _pandas_name(kind: type) -> str | None:
    """Return DataFrame or Series for these classes of pandas, and None for others."""
    module = sys.modules.get("pandas")
    if type(module) is not ModuleType or not _find_module(kind).startswith("pandas"):
        return None
    return next((name for name in ("DataFrame", "Series") if vars(module).get(name) is kind), None)


def _find_module(kind: type) -> str:
    with suppress(AttributeError):
        module = _module(kind)
        return module if type(module) is str else ""
    return ""


def _comes_from(value: Any, package: str) -> bool:
    """Return whether the class of a value and all bases belong to a package, to numpy, or to Python."""
    modules = {_find_module(kind).split(".")[0] for kind in _mro(type(value))}
    return package in modules and modules <= {package, "numpy", "builtins", "abc"}


def _describe_table(table: Any, name: str, description: dict[str, Any]) -> None:
    """Describe the shape, columns and size of a table, as far as all parts are numpy's and pandas' own."""
    if not all(_comes_from(axis, "pandas") for axis in table.axes):
        description["text"] = _format_type_only(type(table))
        return
    columns = len(table.columns) if name == "DataFrame" else 1
    if columns > _COLUMNS_LOOKED_AT:
        description["text"] = f"{columns} columns"
        return
    dtypes = list(table.dtypes) if name == "DataFrame" else [table.dtype]
    description["shape"] = [len(table.index), columns][: 1 + (name == "DataFrame")]
    if name == "DataFrame":
        labels = list(table.columns[:_COLUMNS])
        shown = [f"{_label(label)}: {_dtype_name(dtype)}" for label, dtype in zip(labels, dtypes, strict=False)]
        description["text"] = ", ".join(shown + ["..."] * (columns > len(shown)))
    else:
        description["text"] = f"{_label(table.name)}: {_dtype_name(dtypes[0])}"
    if all(_comes_from(dtype, "pandas") or _comes_from(dtype, "numpy") for dtype in dtypes):
        usage = table.memory_usage(index=True, deep=False)
        description["size_bytes"] = int(usage.sum()) if name == "DataFrame" else int(usage)


def _label(label: Any) -> str:
    return label[:_INNER_CHARS] if type(label) is str else _format(label, 1)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


class UserNames:
    """A finder of the user's names after each cell. IPython adds two numbered names a cell, thousands in the long run.

    Dictionaries keep the order of insertion. So only keys after IPython's name of the newest input are checked, as long as the
    number of keys before is the same. To hide a name, code must add the name, and then remove and add this very key of
    IPython. If any key is not a plain ``str``, all keys are checked each time, without calling their methods. Any thread may
    call this.
    """

    def __init__(self) -> None:
        self._known: tuple[Any, int, frozenset[str]] = (None, 0, frozenset())
        """IPython's name of the newest input, the number of keys up to it, and all names of the user."""

    def __call__(self, namespace: dict[Any, Any], hidden: Mapping[str, Any]) -> set[str]:
        """Return the user's names of at most 100 characters without a leading underscore."""
        newest, count, names = self._known
        newest_keys = list(islice(reversed(namespace), _NEWEST_KEYS))
        since = next((index for index, key in enumerate(newest_keys) if key is newest), None)
        keys = newest_keys[:since][::-1]
        as_before = newest is not None and since is not None and len(namespace) == count + since
        if not (as_before and _are_plain(keys) and names <= namespace.keys()):
            keys, newest, count, names = list(namespace), None, 0, frozenset()
        inputs = [index for index, key in enumerate(keys) if type(key) is str and _INPUT.fullmatch(key) and key in hidden]
        if inputs and _are_plain(keys):
            newest, count = keys[inputs[-1]], count + inputs[-1] + 1
        names |= _select_names(keys)
        self._known = newest, count, names
        return set(names.difference(hidden))  # ``difference`` reads the user's names only


class NameChanges:
    """The names of the user's variables, with the changes since the last report to the owner."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._find = UserNames()
        self._reported = self.current()

    def current(self) -> set[str]:
        """Return the present names."""
        return self._find(self._shell.user_ns, self._shell.user_ns_hidden)

    def report(self) -> set[str]:
        """Return the present names; later changes are counted from here."""
        self._reported = self.current()
        return self._reported

    def changes(self, *, report: bool) -> tuple[list[str], list[str], int]:
        """Return added names, removed names and the count of all; ``report`` counts later changes from here."""
        before, names = self._reported, self.current()
        if report:
            self._reported = names
        return sorted(names - before), sorted(before - names), len(names)


def _are_plain(keys: Iterable[Any]) -> bool:
    return all(type(key) is str for key in keys)


def _select_names(keys: Iterable[Any]) -> frozenset[str]:
    """Return the keys which are names of a user's variables, without calling methods of other keys."""
    return frozenset(key for key in keys if type(key) is str and key[:1] != "_" and len(key) <= _NAME_CHARS)
