"""Values on their way between driver and kernel: a tree of JSON and buffers of bytes, in a file. Both sides import this module.

Never pickle: nothing of a file is run, and no class is looked up by name. Values have the types below, by their
exact class; a subclass may mean something else. Arrays and tables are buffers (tables in Arrow's IPC format), so a large value
is written from memory and read into memory without a copy in between.

The file: ``MAGIC``, the length of the tree (u64, little endian), the tree, then each buffer at a multiple of ``ALIGNMENT``.
In the tree, types unknown to JSON are ``{"$": type, ...}``.
"""

from __future__ import annotations

import json
import math
import re
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import PosixPath
from time import thread_time
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from .arrow_stream import StreamRefused, count_pandas_bytes, count_polars_bytes, read_table, write_table

MAGIC = b"kernelexec value 1\n"
ALIGNMENT = 64
#: Limits of a tree: its bytes, and how deep values are nested.
TREE_BYTES, NESTING_MAX = 16 * 2**20, 100
_TAG = "$"
_HEAD = struct.Struct("<Q")
#: The room for a tree beyond the limit of a value, and the memory of its elements and characters, as JSON and as a value.
SLACK_BYTES, _ELEMENT_BYTES, _WIDE_CHAR_BYTES = 2**26, 200, 8
#: The elements of a tree at most: other threads wait while the reader of JSON makes them, for about 0.3 s.
_ELEMENTS_MAX = 1_000_000
_TOO_MANY_ELEMENTS = "it has too many parts besides arrays and tables"
#: The first pandas whose texts are Arrow's.
_ARROW_TEXTS = 3
#: Numbers of more bits are written in base 16, since Python bounds the digits of decimal ones, and are no keys: a comparison
#: with a ``Decimal`` converts them in quadratic time.
_DECIMAL_BITS = 4096
#: The characters of a text that becomes another type, as most readers take quadratic time; and those of exact numbers.
_TEXT_CHARS, _FRACTION_CHARS = 100, 5000
#: Processor time for the sets and dictionaries of a file and for each of their items, in seconds: usual items take a tenth.
_HASH_SECONDS, _ITEM_SECONDS = 1.0, 5e-6
#: The dtypes of numpy that are buffers: booleans, numbers, times and texts of a fixed length.
_DTYPE = re.compile(r"[<>|=]?[biufcSUmM]\d{1,6}(?:\[\d{0,6}[A-Za-z]{1,7}\])?", re.ASCII)


#: The numbers of numpy that ``struct`` reads too, by their dtypes.
_NUMBERS = {
    f"<{kind}": f"<{code}"
    for kind, code in zip(("i2", "i4", "i8", "u2", "u4", "u8", "f2", "f4", "f8"), "hiqHIQefd", strict=True)
}
_NUMBERS |= {"|b1": "?", "|i1": "b", "|u1": "B"}


class ValueRefused(Exception):
    """A value without a form here, or a file of another format; the message is a part of a sentence.

    ``missing`` is the name of a required library that is not installed.
    """

    def __init__(self, message: str, missing: str = "") -> None:
        super().__init__(message)
        self.missing = missing


class EncodedValues:
    """Values in this format; ``buffers`` are views of their memory."""

    def __init__(self, values: Mapping[str, Any], limit_bytes: int) -> None:
        self.buffers: list[memoryview] = []
        self._limit, self._size = limit_bytes, 0
        tree = {name: self._encode(value, name, 0) for name, value in values.items()}
        sizes = [buffer.nbytes for buffer in self.buffers]
        source = json.dumps({"values": tree, "sizes": sizes}, allow_nan=False)
        if len(source) > TREE_BYTES:
            raise ValueRefused(f"it takes more than {TREE_BYTES // 2**20} MiB besides arrays and tables")
        if _has_more_elements(source, _ELEMENTS_MAX):
            raise ValueRefused(_TOO_MANY_ELEMENTS)
        self._tree = source.encode("ascii")

    def pieces(self) -> Iterator[bytes | memoryview]:
        """Yield the content of the file."""
        position = len(MAGIC) + _HEAD.size + len(self._tree)
        yield MAGIC + _HEAD.pack(len(self._tree)) + self._tree
        for buffer in self.buffers:
            padding = -position % ALIGNMENT
            yield bytes(padding)
            yield buffer
            position += padding + buffer.nbytes

    def _add(self, content: Any) -> int:
        view = memoryview(content)
        view = view.cast("B") if view.nbytes else memoryview(b"")
        self._size += view.nbytes
        if self._size > self._limit:
            raise ValueRefused(f"it takes more than {self._limit} bytes")
        self.buffers.append(view)
        return len(self.buffers) - 1

    def _encode(self, value: Any, path: str, depth: int) -> Any:
        if depth > NESTING_MAX:
            raise ValueRefused(f"{path[:200]} is nested more than {NESTING_MAX} deep")
        kind = type(value)
        encoder = _ENCODERS.get(kind) or _find_encoder(kind)
        if encoder is None:
            raise ValueRefused(f"{path[:200]} is of the class {_class_name(kind)}, which has no form here")
        return encoder(self, value, path, depth)

    def _encode_bytes(self, value: bytes | bytearray, _place: str, _depth: int) -> Any:
        return {_TAG: type(value).__name__, "buffer": self._add(value)}

    def _encode_items(self, value: Any, path: str, depth: int) -> Any:
        items = [self._encode(item, f"{path}[{number}]", depth + 1) for number, item in enumerate(value)]
        return items if type(value) is list else {_TAG: type(value).__name__, "items": items}

    def _encode_dict(self, value: dict[Any, Any], path: str, depth: int) -> Any:
        if all(type(key) is str for key in value) and _TAG not in value:
            return {key: self._encode(item, f"{path}[{key!r:.50}]", depth + 1) for key, item in value.items()}
        pairs = [
            [self._encode(key, f"{path}'s key", depth + 1), self._encode(item, f"{path}[{key!r:.50}]", depth + 1)]
            for key, item in value.items()
        ]
        return {_TAG: "dict", "items": pairs}

    def _encode_array(self, array: Any, path: str, depth: int) -> Any:
        kind = array.dtype.kind
        if kind == "O":
            items = [self._encode(item, f"{path}[{number}]", depth + 1) for number, item in enumerate(array.ravel().tolist())]
            return {_TAG: "objects", "shape": list(array.shape), "items": items}
        if kind not in "biufcSUmM" or array.dtype.names is not None:
            raise ValueRefused(f"{path[:200]} is an array of {array.dtype}, which has no form here")
        numpy = sys.modules["numpy"]
        is_fortran = array.ndim > 1 and array.flags.f_contiguous and not array.flags.c_contiguous
        plain = numpy.ascontiguousarray(array.T if is_fortran else array)
        content = plain.reshape(-1).view("u1") if plain.size and plain.itemsize else b""
        shape = list(array.shape)
        return {_TAG: "ndarray", "dtype": array.dtype.str, "shape": shape, "fortran": is_fortran, "buffer": self._add(content)}

    def _encode_scalar(self, scalar: Any, path: str, depth: int) -> Any:
        return {**self._encode_array(sys.modules["numpy"].asarray(scalar), path, depth), _TAG: "scalar"}

    def _encode_pandas(self, value: Any, path: str, _depth: int) -> Any:
        arrow, kind = _import("pyarrow", f"to send {path}"), type(value).__name__
        name = getattr(value, "name", None)
        frame = value if kind == "DataFrame" else value.to_frame("value")
        _check_labels(frame, path)
        try:
            table = arrow.Table.from_pandas(frame, preserve_index=None if kind in ("DataFrame", "Series") else False)
        except Exception as exc:  # whatever its converters, and objects in the cells, raise
            reason = (str(exc) or type(exc).__name__).splitlines()[0][:300]
            raise ValueRefused(f"{path[:200]} has values that Arrow cannot carry: {reason}") from exc
        node: dict[str, Any] = {_TAG: "pandas.DataFrame", "lists": _find_lists(frame, table, path)}
        index = frame.index if kind in ("DataFrame", "Series") else value
        if (frequency := getattr(index, "freqstr", None)) is not None:
            node["frequency"] = frequency
        if kind != "DataFrame":
            tag = "pandas.Series" if kind == "Series" else "pandas.Index"
            node |= {_TAG: tag, "name": self._encode(name, f"{path}.name", 0)}
        return node | {"buffer": self._add(write_table(table))}

    def _encode_polars(self, value: Any, _place: str, _depth: int) -> Any:
        kind = type(value).__name__
        frame = value if kind == "DataFrame" else value.to_frame()
        level = sys.modules["polars"].CompatLevel.oldest()  # without views, which name the same bytes many times
        stream = frame.write_ipc_stream(None, compression="uncompressed", compat_level=level)
        return {_TAG: f"polars.{kind}", "buffer": self._add(stream.getbuffer())}

    def _encode_arrow(self, table: Any, _place: str, _depth: int) -> Any:
        return {_TAG: "pyarrow.Table", "buffer": self._add(write_table(table))}


class ValueDecoder:
    """The values of a file of this format. All content is checked, since a hostile kernel may be the writer.

    ``content`` becomes the memory of the arrays; the values take at most ``limit_bytes`` and 64 MiB besides. Raises
    ``ValueRefused`` for any other content.
    """

    def __init__(self, content: memoryview, limit_bytes: int) -> None:
        try:
            self._values, sizes, position = _read_tree(content, limit_bytes)
            self._buffers: list[memoryview] = []
            self._is_used = bytearray(len(sizes))  # no set: its numbers could be chosen to collide
            self._left = limit_bytes + SLACK_BYTES // 2
            self._hash_seconds = _HASH_SECONDS
            for size in sizes:
                # By exact type: True is an int too. Each begin follows from the sizes, so buffers cannot overlap.
                position += -position % ALIGNMENT
                if type(size) is not int or not 0 <= size <= len(content) - position:
                    raise ValueRefused("its buffers do not fit")
                self._buffers.append(content[position : position + size])
                position += size
        except (ValueError, KeyError, TypeError, AttributeError, struct.error, RecursionError) as exc:
            raise ValueRefused("it is not of this format") from exc

    def decode(self) -> dict[str, Any]:
        """Return the values by name."""
        try:
            return {name: self._decode(node, 0) for name, node in self._values.items()}
        except ValueRefused:
            raise
        except StreamRefused as exc:
            raise ValueRefused(str(exc)) from exc
        except ImportError as exc:
            raise ValueRefused(f"{exc.name} is not installed, and is needed to read it") from exc
        except Exception as exc:  # whatever the libraries that read arrays and tables raise
            raise ValueRefused(f"it is not of this format ({type(exc).__name__})") from exc

    def _decode(self, node: Any, depth: int) -> Any:
        if depth > NESTING_MAX:
            raise ValueRefused(f"it is nested more than {NESTING_MAX} deep")
        match node:
            case list():
                return [self._decode(item, depth + 1) for item in node]
            case {"$": str(tag)}:
                return self._decode_tagged(tag, node, depth)
            case dict():
                return {key: self._decode(item, depth + 1) for key, item in node.items()}
        return node

    def _decode_tagged(self, tag: str, node: dict[str, Any], depth: int) -> Any:
        if (simple := _FROM_PLAIN.get(tag)) is not None:
            value = node["value"]
            _check_lengths(value, _LONGER_TEXTS.get(tag, _TEXT_CHARS))
            return simple(value)
        if (decoder := _DECODERS.get(tag)) is None:
            raise ValueRefused(f"it has a value of an unknown type {tag[:50]!r}")
        return decoder(self, node, depth)

    def _decode_items(self, node: dict[str, Any], depth: int) -> Any:
        items = [self._decode(item, depth + 1) for item in node["items"]]
        if node[_TAG] == "tuple":
            return tuple(items)
        unique: set[Any] = set()
        self._hash_each(unique.add, ((item,) for item in items))
        return unique if node[_TAG] == "set" else frozenset(unique)

    def _decode_dict(self, node: dict[str, Any], depth: int) -> Any:
        pairs = [(self._decode(key, depth + 1), self._decode(item, depth + 1)) for key, item in node["items"]]
        mapping: dict[Any, Any] = {}
        self._hash_each(mapping.__setitem__, pairs)
        return mapping

    def _hash_each(self, add: Callable[..., object], items: Iterable[tuple[Any, ...]]) -> None:
        """Fill a set or a dictionary item by item, while other threads run; raise ``ValueRefused`` if that takes too long.

        The hashes of numbers, and of tuples of numbers, are no secret: a hostile kernel can choose numbers with colliding
        hashes, and then filling the table takes quadratic time.
        """
        began = thread_time()
        for item in items:
            _check_key(item[0])
            add(*item)
            self._hash_seconds += _ITEM_SECONDS
            if thread_time() - began > self._hash_seconds:
                raise ValueRefused("too many items of sets or keys of dictionaries have hashes that collide")
        self._hash_seconds -= thread_time() - began

    def _decode_polars(self, node: dict[str, Any], _depth: int) -> Any:
        table = read_table(self._buffer(node))
        self._take(count_polars_bytes(table), "polars")
        frame = _import("polars", "to read it").from_arrow(table)
        return frame if node[_TAG] == "polars.DataFrame" else frame.to_series()

    def _buffer(self, node: dict[str, Any]) -> memoryview:
        number = node["buffer"]
        if type(number) is not int or not 0 <= number < len(self._buffers):
            raise ValueRefused("a buffer is missing")
        if self._is_used[number]:  # copies of one would take any amount of memory
            raise ValueRefused("a buffer is of two values")
        self._is_used[number] = True
        return self._buffers[number]

    def _take(self, size: int, library: str) -> None:
        """Count the memory of a table in a library; raise ``ValueRefused`` beyond the limit."""
        self._left -= size
        if self._left < 0:
            raise ValueRefused(f"its tables take more memory in {library} than the limit: send one as a table of pyarrow")

    def _decode_array(self, node: dict[str, Any], _depth: int) -> Any:
        numpy, buffer, shape = _import("numpy", "to read it"), self._buffer(node), _read_shape(node)
        if not _DTYPE.fullmatch(node["dtype"]):
            raise ValueRefused("it has an array of an unknown type")
        # The pattern allows no "O": elements of an object array are pointers, which a hostile kernel could choose.
        dtype = numpy.dtype(node["dtype"])
        if math.prod(shape) * dtype.itemsize != len(buffer) or (not dtype.itemsize and math.prod(shape)):
            raise ValueRefused("an array's size is not that of its buffer")
        array = numpy.frombuffer(buffer, dtype) if len(buffer) else numpy.empty(0, dtype)
        if dtype.kind == "b":
            array = array.view("u1") != 0  # numpy relies on 0 and 1
        return array.reshape(shape[::-1]).T if node.get("fortran") is True else array.reshape(shape)

    def _decode_scalar(self, node: dict[str, Any], depth: int) -> Any:
        """Return a scalar of numpy, or a number of Python if numpy is not installed."""
        code = _NUMBERS.get(node["dtype"])
        if code is not None and find_spec("numpy") is None:
            return struct.unpack(code, self._buffer(node))[0]
        return self._decode_array(node, depth)[()]

    def _decode_objects(self, node: dict[str, Any], depth: int) -> Any:
        numpy, shape, items = _import("numpy", "to read it"), _read_shape(node), node["items"]
        if math.prod(shape) != len(items):
            raise ValueRefused("an array's size is not that of its items")
        array = numpy.empty(len(items), object)
        for number, item in enumerate(items):
            array[number] = self._decode(item, depth + 1)
        return array.reshape(shape)

    def _decode_pandas(self, node: dict[str, Any], _depth: int) -> Any:
        pandas = _import("pandas", "to read it")
        table = read_table(self._buffer(node))
        has_arrow_texts, lists = int(pandas.__version__.partition(".")[0]) >= _ARROW_TEXTS, node.get("lists", [])
        self._take(count_pandas_bytes(table, has_arrow_texts=has_arrow_texts, has_lists=bool(lists)), "pandas")
        frame = table.to_pandas()
        for number in sorted(set(lists)):
            items = pandas.Series(table.column(number).to_pylist(), index=frame.index, dtype=object)
            frame.isetitem(number, items)
        value: Any = frame
        if node[_TAG] != "pandas.DataFrame":
            value = frame.iloc[:, 0]
            value.name = self._decode(node["name"], 0)
        if node[_TAG] == "pandas.Index":
            value = pandas.Index(value)
        if isinstance(frequency := node.get("frequency"), str) and len(frequency) <= _TEXT_CHARS:
            with suppress(ValueError):  # no index that has it
                (value if node[_TAG] == "pandas.Index" else value.index).freq = frequency
        return value


def _check_labels(frame: Any, path: str) -> None:
    """Raise ``ValueRefused`` for labels of columns, or an index, that Arrow would change."""
    if any(isinstance(label, bool) for label in frame.columns) or len({isinstance(each, str) for each in frame.columns}) > 1:
        raise ValueRefused(f"{path[:200]} has labels of columns of several types, or true and false: name the columns by text")
    for level in (frame.index, frame.columns):
        if type(level).__name__ in ("PeriodIndex", "IntervalIndex"):
            raise ValueRefused(f"{path[:200]} has an index of {level.dtype}, which has no form here: send it as text")


def _find_lists(frame: Any, table: Any, path: str) -> list[int]:
    """Return the numbers of the columns of lists or dictionaries, which Arrow would turn into arrays.

    Raises:
        ValueRefused: a column would come back as another type.
    """
    types = import_module("pyarrow").types
    lists = []
    for number, (label, field) in enumerate(zip(frame.columns, table.schema, strict=False)):
        subject = f"the column {label!r:.50} of {path[:200]}"
        inner = field.type.value_type if types.is_dictionary(field.type) else field.type
        if isinstance(inner, import_module("pyarrow").BaseExtensionType):
            raise ValueRefused(f"{subject} is of {frame.dtypes.iloc[number]}, which has no form here: send it as text")
        if not types.is_nested(field.type):
            continue
        cells = frame.iloc[:, number].tolist()
        kinds = {type(cell) for cell in cells} - {type(None)}
        if kinds <= {list, dict} and cells == table.column(number).to_pylist():
            lists.append(number)
        elif {kind.__name__ for kind in kinds} != {"ndarray"}:
            names = ", ".join(sorted(kind.__name__ for kind in kinds))
            raise ValueRefused(f"{subject} has cells of {names} that would come back as others: send it as text, or the parts")
    return lists


def _read_tree(content: memoryview, limit_bytes: int) -> tuple[dict[str, Any], list[Any], int]:
    """Return the tree, the sizes of the buffers, and the offset of the first buffer."""
    begin = len(MAGIC) + _HEAD.size
    if bytes(content[: len(MAGIC)]) != MAGIC:
        raise ValueError
    (length,) = _HEAD.unpack(content[len(MAGIC) : begin])
    if length > min(TREE_BYTES, len(content) - begin):
        raise ValueError
    source = str(content[begin : begin + length], "ascii")
    room = limit_bytes + SLACK_BYTES
    if _has_more_elements(source, min(_ELEMENTS_MAX, room // _ELEMENT_BYTES)):
        raise ValueRefused(_TOO_MANY_ELEMENTS)
    if "\\u" in source and length * _WIDE_CHAR_BYTES > room:
        raise ValueRefused("its texts take too much memory")
    document = json.loads(source)
    return dict(document["values"]), list(document["sizes"]), begin + length


def _has_more_elements(source: str, limit: int) -> bool:
    """Return whether unparsed JSON has more elements than ``limit``; a pair of a dictionary counts as two."""
    # First an upper bound by counting characters; only texts full of such signs need the exact count without strings.
    if _count_elements(source) <= limit:
        return False
    unescaped = source.replace(r"\\", "").replace(r"\"", "")
    return unescaped.count('"') > 2 * limit or _count_elements("".join(unescaped.split('"')[::2])) > limit


def _count_elements(source: str) -> int:
    """Return the most elements of a JSON text: signs within strings count too."""
    return sum(map(source.count, ",:[{"))


def _read_shape(node: dict[str, Any]) -> tuple[int, ...]:
    shape = node["shape"]
    if len(shape) > 32 or not all(type(side) is int and 0 <= side < 2**48 for side in shape):  # noqa: PLR2004 - numpy's own
        raise ValueRefused("it has an array of an impossible shape")
    return tuple(shape)


def _encode_int(value: int) -> Any:
    return value if value.bit_length() <= _DECIMAL_BITS else {_TAG: "int", "value": hex(value)}


def _encode_fraction(value: Fraction) -> Any:
    parts = [hex(value.numerator), hex(value.denominator)]
    _check_lengths(parts, _FRACTION_CHARS)
    return {_TAG: "Fraction", "value": parts}


def _check_lengths(value: Any, limit: int) -> None:
    """Raise ``ValueRefused`` for a text, alone or in a list, too long for the reader of its type."""
    for text in value if isinstance(value, list | dict) else (value,):
        if isinstance(text, str) and len(text) > limit:
            raise ValueRefused(f"it has a number or a time of more than {limit} characters")


def _check_key(key: Any) -> None:
    """Raise ``ValueRefused`` for an item of a set or a key of a dictionary with a slow comparison with numbers."""
    match key:
        case int() | Fraction() if max(key.numerator.bit_length(), key.denominator.bit_length()) > _DECIMAL_BITS:
            raise ValueRefused(f"a set or the keys of a dictionary have a number of more than {_DECIMAL_BITS} bits")
        case tuple():
            for item in key:
                _check_key(item)


def _encode_float(value: float) -> Any:
    return value if math.isfinite(value) else {_TAG: "float", "value": repr(value)}


def _encode_datetime(value: datetime) -> Any:
    zone = value.tzinfo
    if zone is None or type(zone) is timezone:
        return {_TAG: "datetime", "value": [value.isoformat(), None, value.fold]}
    if type(zone) is ZoneInfo and zone.key is not None:
        return {_TAG: "datetime", "value": [value.replace(tzinfo=None).isoformat(), zone.key, value.fold]}
    raise ValueRefused(f"its time zone is of the class {_class_name(type(zone))}, which has no form here")


def _decode_datetime(value: list[Any]) -> datetime:
    text, key, fold = value
    plain = datetime.fromisoformat(text).replace(fold=fold)
    return plain if key is None else plain.replace(tzinfo=ZoneInfo(key))


def _encode_time(value: time) -> Any:
    if value.tzinfo is not None and type(value.tzinfo) is not timezone:
        raise ValueRefused(f"its time zone is of the class {_class_name(type(value.tzinfo))}, which has no form here")
    return {_TAG: "time", "value": [value.isoformat(), value.fold]}


#: Types without parts, by their exact class: how they are written, and read.
_PLAIN: dict[type, Callable[[Any], Any]] = {
    int: _encode_int,
    float: _encode_float,
    complex: lambda value: {_TAG: "complex", "value": repr(value)},
    datetime: _encode_datetime,
    time: _encode_time,
    date: lambda value: {_TAG: "date", "value": value.isoformat()},
    timedelta: lambda value: {_TAG: "timedelta", "value": [value.days, value.seconds, value.microseconds]},
    Decimal: lambda value: {_TAG: "Decimal", "value": str(value)},
    Fraction: _encode_fraction,
    UUID: lambda value: {_TAG: "UUID", "value": value.hex},
    PosixPath: lambda value: {_TAG: "Path", "value": str(value)},
    range: lambda value: {_TAG: "range", "value": [value.start, value.stop, value.step]},
}
_FROM_PLAIN: dict[str, Callable[[Any], Any]] = {
    "int": lambda value: int(value, 16),
    "float": float,
    "complex": complex,
    "datetime": _decode_datetime,
    "time": lambda value: time.fromisoformat(value[0]).replace(fold=value[1]),
    "date": date.fromisoformat,
    "timedelta": lambda value: timedelta(*value),
    "Decimal": lambda value: Decimal(str(value)),  # and no list of digits
    "Fraction": lambda value: Fraction(*(int(number, 16) for number in value)),
    "UUID": UUID,
    "Path": PosixPath,
    "range": lambda value: range(*value),
    "pandas.Timestamp": lambda value: _decode_timestamp(*value),
    "pandas.Timedelta": lambda value: _import("pandas", "to read it").Timedelta(value, unit="ns"),
    "pandas.NaT": lambda _: _import("pandas", "to read it").NaT,
    "pandas.NA": lambda _: _import("pandas", "to read it").NA,
}
#: The characters of texts that are read in linear time, or are long by their nature.
_LONGER_TEXTS = {"int": TREE_BYTES, "Path": TREE_BYTES, "Decimal": _FRACTION_CHARS, "Fraction": _FRACTION_CHARS}


def _encode_timestamp(_: EncodedValues, value: Any, path: str, _depth: int) -> Any:
    key = getattr(value.tz, "key", None)
    if value.tz is not None and key is None and type(value.tz) is not timezone:
        raise ValueRefused(f"{path[:200]} has a time zone of the class {_class_name(type(value.tz))}, which has no form here")
    return {_TAG: "pandas.Timestamp", "value": [value.isoformat(), key]}


def _decode_timestamp(text: str, key: str | None) -> Any:
    plain = _import("pandas", "to read it").Timestamp(text)
    return plain if key is None else plain.tz_convert(ZoneInfo(key))  # pandas would open a file that a key names


_Encoder = Callable[[EncodedValues, Any, str, int], Any]


def _encode_plain(encode: Callable[[Any], Any], _encoded: EncodedValues, value: Any, _place: str, _depth: int) -> Any:
    return encode(value)


#: How values with parts are written, and read.
_ENCODERS: dict[type, _Encoder] = {
    **dict.fromkeys((type(None), bool, str), lambda _, value, __, ___: value),
    **{kind: partial(_encode_plain, encode) for kind, encode in _PLAIN.items()},
    **dict.fromkeys((bytes, bytearray), EncodedValues._encode_bytes),  # noqa: SLF001 - of this module
    **dict.fromkeys((list, tuple, set, frozenset), EncodedValues._encode_items),  # noqa: SLF001
    dict: EncodedValues._encode_dict,  # noqa: SLF001
}
_DECODERS: dict[str, Callable[[ValueDecoder, dict[str, Any], int], Any]] = {
    "bytes": lambda decoder, node, _: bytes(decoder._buffer(node)),  # noqa: SLF001
    "bytearray": lambda decoder, node, _: bytearray(decoder._buffer(node)),  # noqa: SLF001
    **dict.fromkeys(("tuple", "set", "frozenset"), ValueDecoder._decode_items),  # noqa: SLF001
    "dict": ValueDecoder._decode_dict,  # noqa: SLF001
    "ndarray": ValueDecoder._decode_array,  # noqa: SLF001
    "scalar": ValueDecoder._decode_scalar,  # noqa: SLF001
    "objects": ValueDecoder._decode_objects,  # noqa: SLF001
    **dict.fromkeys(("pandas.DataFrame", "pandas.Series", "pandas.Index"), ValueDecoder._decode_pandas),  # noqa: SLF001
    **dict.fromkeys(("polars.DataFrame", "polars.Series"), ValueDecoder._decode_polars),  # noqa: SLF001
    "pyarrow.Table": lambda decoder, node, _: read_table(decoder._buffer(node)),  # noqa: SLF001
}


def _find_encoder(kind: type) -> _Encoder | None:
    """Return the encoder of a class of numpy, pandas, polars or pyarrow; a class that only claims to be theirs has none."""
    # User code can set ``__module__``. So the class itself is compared with the library's, and no library is imported for it.
    package = str(kind.__module__).partition(".")[0]
    library: Any = sys.modules.get(package)
    if library is None:
        return None
    if package == "pandas":
        return _find_pandas_encoder(kind, library)
    if package == "numpy":
        is_scalar = issubclass(kind, library.generic)
        return EncodedValues._encode_scalar if is_scalar else EncodedValues._encode_array if kind is library.ndarray else None  # noqa: SLF001
    if package == "polars" and kind in (library.DataFrame, library.Series):
        return EncodedValues._encode_polars  # noqa: SLF001
    return EncodedValues._encode_arrow if package == "pyarrow" and kind is library.Table else None  # noqa: SLF001


def _find_pandas_encoder(kind: type, pandas: Any) -> _Encoder | None:
    if kind in (pandas.DataFrame, pandas.Series) or (issubclass(kind, pandas.Index) and kind is not pandas.MultiIndex):
        return EncodedValues._encode_pandas  # noqa: SLF001
    if kind is pandas.Timestamp:
        return _encode_timestamp
    if kind is pandas.Timedelta:
        return lambda _, value, __, ___: {_TAG: "pandas.Timedelta", "value": value.as_unit("ns").value}
    if kind is type(pandas.NaT):
        return lambda _, __, ___, ____: {_TAG: "pandas.NaT", "value": None}
    if kind is type(pandas.NA):
        return lambda _, __, ___, ____: {_TAG: "pandas.NA", "value": None}
    return None


def _import(module: str, purpose: str) -> Any:
    try:
        return import_module(module)
    except ImportError as exc:
        raise ValueRefused(f"{module} is not installed, and is needed {purpose[:200]}", module) from exc


def _class_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"[:200]
