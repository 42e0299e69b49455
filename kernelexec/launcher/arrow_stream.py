"""Tables as Arrow's IPC streams: a stream of a hostile kernel takes no more memory than its own size.

Readers of Arrow decompress buffers of any stated size, and turn columns of only nulls, which take no bytes, into objects. So
the messages of a stream are checked before a reader gets them. Their form is Arrow's ``Message.fbs``
(https://arrow.apache.org/docs/format/Columnar.html, "Encapsulated message format"), in flatbuffers. Small values of a
stream may become large in the library receiving the table, so their size there is counted before.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from importlib import import_module
from typing import Any

#: Kinds of messages: ``MessageHeader`` of ``Message.fbs``.
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
_CONTINUATION = 0xFFFFFFFF
#: The version of Arrow's metadata since 1.0; earlier ones mark compression in another way.
_V5 = 4
#: Fields of the tables ``Message``, ``RecordBatch`` and ``DictionaryBatch``, in their order.
_VERSION, _HEADER_TYPE, _HEADER, _BODY_LENGTH = 0, 1, 2, 3
_NODES, _BUFFERS, _COMPRESSION = 1, 2, 3
_DATA = 1
#: ``FieldNode`` and ``Buffer``: two numbers each, of which the length is the first or the second.
_PAIR_BYTES, _NODE_LENGTH, _BUFFER_LENGTH = 16, 0, 8
#: Schemas are read as JSON too, and the names of nested columns as Python's literals.
_SCHEMA_BYTES, _NAMES_CHARS = 4 * 2**20, 2**18
#: Bytes of one value with the pointer to it: an object of Python, a nested one, a view of a text in polars, and a number or a
#: bit of a column that lacks some.
_OBJECT_BYTES, _NESTED_BYTES, _VIEW_BYTES, _WIDE_BYTES = 128, 400, 24, 8


class StreamRefused(Exception):
    """The stream is damaged, compressed, of an early version, or has more values than bits."""


def write_table(table: Any) -> Any:
    """Return a table as an uncompressed stream."""
    arrow = import_module("pyarrow")
    sink = arrow.BufferOutputStream()
    with arrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def read_table(content: memoryview) -> Any:
    """Return the table of a stream, a view of the memory of ``content``; raise ``StreamRefused`` for a damaged stream."""
    check_stream(content)
    arrow = import_module("pyarrow")
    try:
        with arrow.ipc.open_stream(arrow.py_buffer(content)) as reader:
            if sum(map(len, reader.schema.names)) > _NAMES_CHARS:
                raise StreamRefused(f"its columns have names of more than {_NAMES_CHARS} characters")
            for field in reader.schema:
                _check_type(field.type, arrow.types, is_inner=False)
            table = reader.read_all()
        table.validate(full=True)
    except (arrow.ArrowException, OSError, ValueError) as exc:
        raise StreamRefused(str(exc)[:200]) from exc
    return table


def _check_type(kind: Any, types: Any, *, is_inner: bool) -> None:
    """Raise ``StreamRefused`` if values of a type may take more memory as objects than in the stream.

    Views and inner dictionaries refer to the same bytes many times, and each reference becomes a copy.
    """
    is_repeated = types.is_run_end_encoded(kind) or (is_inner and types.is_dictionary(kind)) or str(kind).endswith("_view")
    if is_repeated or "_view<" in str(kind) or getattr(kind, "extension_name", None) is not None:
        raise StreamRefused(f"it has a column of type {str(kind)[:100]}")
    if types.is_dictionary(kind):
        _check_type(kind.value_type, types, is_inner=True)
        return
    for number in range(kind.num_fields):
        _check_type(kind.field(number).type, types, is_inner=True)


def check_stream(content: memoryview) -> None:
    """Raise ``StreamRefused`` unless a stream is whole, uncompressed, and has at most as many values as bits.

    The buffers of a message must have no more bytes together than its body: buffers with shared bytes become a copy each.
    """
    # A message: 0xFFFFFFFF (u32), length of the metadata (u32), metadata (a flatbuffer), body. A length of 0 ends the stream.
    position, values = 0, 0
    try:
        while position < len(content):
            mark, length = struct.unpack_from("<II", content, position)
            if mark != _CONTINUATION:
                raise StreamRefused("a message does not begin as one")
            if length == 0:
                break
            message = _Table.of_root(content[position + 8 : position + 8 + length])
            body = message.read("<q", _BODY_LENGTH)
            values += _count_values(message, body)
            if message.read("<B", _HEADER_TYPE) == _SCHEMA and length > _SCHEMA_BYTES:
                raise StreamRefused(f"its schema has more than {_SCHEMA_BYTES} bytes")
            if length > len(content) or not 0 <= body <= len(content) or values > 8 * len(content):
                raise StreamRefused("it has more values than bits")
            position += 8 + length + body  # by eight at least, so a hostile stream cannot hold this loop
    except struct.error as exc:
        raise StreamRefused("it is cut off") from exc


def _count_values(message: _Table, body: int) -> int:
    """Return the number of values in the columns of a message, nested values included."""
    if message.read("<h", _VERSION) != _V5:
        raise StreamRefused("it is of an early version of Arrow")
    kind, header = message.read("<B", _HEADER_TYPE), message.follow(_HEADER)
    if kind == _SCHEMA:
        return 0
    if kind == _DICTIONARY:
        header = header.follow(_DATA)
    elif kind != _BATCH:
        raise StreamRefused("it has a message of another kind")
    if header.has(_COMPRESSION):
        raise StreamRefused("it is compressed")
    if header.sum_lengths(_BUFFERS, _BUFFER_LENGTH) > body:
        raise StreamRefused("its buffers share bytes")
    return header.sum_lengths(_NODES, _NODE_LENGTH)


class _Table:
    """A table of flatbuffers: an offset to a list of offsets of fields, 0 for a missing field."""

    def __init__(self, memory: memoryview, position: int) -> None:
        # The list ("vtable"): its size in bytes (u16), the size of the table (u16), then an offset (u16) for each field. Every
        # number may be a hostile kernel's choice. `unpack_from` fails past the memory, but takes a negative position.
        self._memory, self._position = memory, position
        (back,) = struct.unpack_from("<i", memory, position)
        self._fields = position - back
        if self._fields < 0:
            raise StreamRefused("it is damaged")
        (size,) = struct.unpack_from("<H", memory, self._fields)
        self._count = max(0, size - 4) // 2

    @classmethod
    def of_root(cls, memory: memoryview) -> _Table:
        """Return the outermost table."""
        (position,) = struct.unpack_from("<I", memory, 0)
        return cls(memory, position)

    def _find(self, field: int) -> int | None:
        if field >= self._count:
            return None
        (offset,) = struct.unpack_from("<H", self._memory, self._fields + 4 + 2 * field)
        return self._position + offset if offset else None

    def has(self, field: int) -> bool:
        """Return whether a field is present."""
        return self._find(field) is not None

    def read(self, form: str, field: int) -> int:
        """Return a number field; 0 for a missing field."""
        position = self._find(field)
        return 0 if position is None else int(struct.unpack_from(form, self._memory, position)[0])

    def follow(self, field: int) -> _Table:
        """Return the table of a field; raise ``StreamRefused`` for a missing field."""
        position = self._find(field)
        if position is None:
            raise StreamRefused("a message is empty")
        return _Table(self._memory, position + struct.unpack_from("<I", self._memory, position)[0])

    def sum_lengths(self, field: int, offset: int) -> int:
        """Return the sum of the lengths in a vector of ``FieldNode`` or ``Buffer``, at their offset in each."""
        position = self._find(field)
        if position is None:
            return 0
        begin = position + struct.unpack_from("<I", self._memory, position)[0]
        (count,) = struct.unpack_from("<I", self._memory, begin)
        if count > len(self._memory) // _PAIR_BYTES:
            raise StreamRefused("it is damaged")
        first = begin + 4 + offset
        lengths = [struct.unpack_from("<q", self._memory, first + _PAIR_BYTES * number)[0] for number in range(count)]
        if min(lengths, default=0) < 0:
            raise StreamRefused("it is damaged")
        return sum(lengths)


def count_pandas_bytes(table: Any, *, has_arrow_texts: bool, has_lists: bool = False) -> int:
    """Return the most bytes of a table in pandas, which has Python objects for values without a type of numpy.

    ``has_arrow_texts``: texts of columns stay in Arrow's form, as since pandas 3. ``has_lists``: lists become Python's.
    """
    types = import_module("pyarrow").types
    return sum(
        _count_pandas_bytes(array, types, has_arrow_texts=has_arrow_texts and level == 0, is_object=is_object)
        for array, level, is_object in _walk_columns(table, types, has_lists=has_lists)
    )


def count_polars_bytes(table: Any) -> int:
    """Return the most bytes of a table in polars, which has a view for each text."""
    types = import_module("pyarrow").types
    arrays = (array for array, _, _ in _walk_columns(table, types))
    return int(table.nbytes) + sum(_VIEW_BYTES * len(array) for array in arrays if not _is_number(array.type, types))


def _walk_columns(table: Any, types: Any, *, has_lists: bool = False) -> Iterator[tuple[Any, int, bool]]:
    """Yield the arrays of all columns with their levels, and whether their values always become Python objects."""
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
    """Return the most bytes of an array in pandas, without nested arrays."""
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
    """Return whether a type is a number or a time of numpy."""
    kinds = types.is_integer, types.is_floating, types.is_boolean, types.is_timestamp, types.is_duration
    return any(is_kind(kind) for is_kind in kinds)
