"""Values in their file format: carried ones are equal afterwards, others are refused by name, and no file harms a reader."""

from __future__ import annotations

import datetime as dt
import math
import struct
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from kernelexec.launcher import values
from kernelexec.launcher.values import MAGIC, NESTING_MAX, EncodedValues, ValueDecoder, ValueRefused
from tests.support.carried_values import LIMIT, carried, content, file_of, outcomes_of_changed_bytes
from tests.support.night import at_night, named_cases

UTC, ZURICH = dt.UTC, ZoneInfo("Europe/Zurich")


class Own:
    pass


class OwnInt(int):
    pass


PLAIN: dict[str, Any] = {
    "none": None,
    "booleans": [True, False],
    "integers": [0, -5, 2**64, -(10**5000)],
    "floats": [1.5, -0.0, 1e308, math.inf, -math.inf],
    "a complex": complex(2, -3),
    "text": ["", "ü\n\0", "\U0001f600", "\ud800"],
    "bytes": [b"", b"\0\xff", bytearray(b"x")],
    "lists": [[], [[1], [[]]]],
    "tuples": ((), (1, ("a",))),
    "sets": [{1, "a"}, frozenset({(1, 2)}), set()],
    "a dictionary": {"a": {"b": [1]}, "": None},
    "keys of other types": {1: "a", (1, "x"): {None: 2.5}, b"k": 0},
    "the key of tags": {"$": "tuple", "items": [1]},
    "times": [dt.date(2020, 2, 29), dt.time(1, 2, 3, 4), dt.time(1, fold=1, tzinfo=UTC), dt.timedelta(-1, 2, 3)],
    "dates": [dt.datetime(2020, 1, 2, 3, 4, 5, 6), dt.datetime(2020, 1, 2, tzinfo=UTC)],  # noqa: DTZ001
    "a zone": dt.datetime(2020, 10, 25, 2, 30, fold=1, tzinfo=ZURICH),
    "numbers": [Decimal("1.10"), Decimal("NaN").is_nan(), Fraction(-1, 3)],
    "others": [UUID(int=5), Path("/a/b"), range(1, 9, 2)],
}
ARRAYS: dict[str, Any] = {
    "integers": np.arange(6).reshape(2, 3),
    "columns first": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "every second": np.arange(10)[::2],
    "big endian": np.arange(3, dtype=">i2"),
    "booleans": np.array([True, False]),
    "text": np.array(["a", "bcd"]),
    "bytes": np.array([b"a", b"bcd"]),
    "times": np.array(["2020-01-01", "NaT"], "M8[D]"),
    "durations": np.array([1, 2], "m8[ns]"),
    "complex": np.array([1j]),
    "objects": np.array([1, "a", None, {"b": (1,)}], object).reshape(2, 2),
    "nothing": np.zeros((0, 3)),
    "no dimension": np.array(5),
}


def types_of(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: (type(key), types_of(item)) for key, item in value.items()}
    return (type(value), [types_of(item) for item in value] if isinstance(value, list | tuple) else None)


@pytest.mark.parametrize("value", PLAIN.values(), ids=PLAIN)
def test_a_value_is_equal_and_of_the_same_type(value: Any) -> None:
    assert carried(value) == value
    assert types_of(carried(value)) == types_of(value)


def test_values_that_equal_nothing_are_themselves() -> None:
    assert math.isnan(carried(math.nan))
    assert math.copysign(1, carried(-0.0)) == -1
    zoned = carried(PLAIN["a zone"])
    assert (zoned.utcoffset(), zoned.tzinfo.key, zoned.fold) == (dt.timedelta(hours=1), "Europe/Zurich", 1)


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_an_array_has_the_same_type_shape_and_order_and_can_be_written(array: Any) -> None:
    actual = carried(array)
    assert (actual.dtype, actual.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(actual, array)
    assert actual.flags.writeable
    if array.ndim > 1 and array.size:
        assert actual.flags.f_contiguous == array.flags.f_contiguous


@pytest.mark.parametrize("scalar", [np.float32(1.5), np.int64(-3), np.bool_(True), np.str_("ab"), np.datetime64("2020-01-01")])  # noqa: FBT003
def test_a_scalar_of_numpy_is_one(scalar: Any) -> None:
    assert carried(scalar) == scalar
    assert carried(scalar).dtype == scalar.dtype


REFUSED: dict[str, tuple[Any, str]] = {
    "an instance": (Own(), "x is of the class tests.unit.launcher.test_values.Own, which has no form here"),
    "inside": ({"a": [1, {"b": Own()}]}, r"x\['a'\]\[1\]\['b'\] is of the class"),
    "a subclass": (OwnInt(3), "x is of the class tests.unit.launcher.test_values.OwnInt"),
    "a class": (Own, "x is of the class builtins.type"),
    "a function": (len, "x is of the class builtins.builtin_function_or_method"),
    "a module": (math, "x is of the class builtins.module"),
    "a masked array": (np.ma.array([1]), "MaskedArray"),
    "a record": (np.array([(1, 2)], "i4,i4"), "x is an array of"),
    "an array of instances": (np.array([Own()], object), r"x\[0\] is of the class"),
    "an own zone": (dt.datetime(2020, 1, 1, tzinfo=type("Z", (dt.tzinfo,), {})()), "time zone is of the class"),
}


@pytest.mark.parametrize(("value", "text"), REFUSED.values(), ids=REFUSED)
def test_other_values_are_refused_by_place_and_class(value: Any, text: str) -> None:
    with pytest.raises(ValueRefused, match=text):
        EncodedValues({"x": value}, LIMIT)


def test_a_value_in_itself_is_refused_and_so_is_too_much() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ValueRefused, match=f"nested more than {NESTING_MAX} deep"):
        EncodedValues({"x": endless}, LIMIT)
    with pytest.raises(ValueRefused, match="more than 100 bytes"):
        EncodedValues({"x": np.zeros(100)}, 100)


def test_the_memory_of_an_array_is_that_of_the_file() -> None:
    file = content({"x": np.arange(1000)})
    array = ValueDecoder(memoryview(file), LIMIT).decode()["x"]
    file[:] = bytes(len(file))
    assert not array.any()


def node(**fields: object) -> dict[str, object]:
    return {"values": {"x": fields}, "sizes": [8]}


def array(**fields: object) -> dict[str, object]:
    return node(**{"$": "ndarray", "dtype": "<i8", "shape": [1], "buffer": 0, **fields})


HOSTILE: dict[str, object] = {
    "no object": [],
    "no values": {"sizes": []},
    "sizes that are none": {"values": {}, "sizes": [-1]},
    "sizes that do not fit": {"values": {}, "sizes": [9]},
    "sizes of another type": {"values": {}, "sizes": ["8"]},
    "an unknown tag": node(**{"$": "pickle", "buffer": 0}),
    "a tag that is none": node(**{"$": 5}) | {"sizes": ["x"]},
    "a buffer that is missing": array(buffer=1),
    "a buffer that is none": array(buffer=-1),
    "objects": array(dtype="O"),
    "a record": array(dtype="i4,i4"),
    "a class": array(dtype="<V8"),
    "a dtype by name": array(dtype="datetime64"),
    "an empty dtype": array(dtype="<U0", shape=[2**40]),
    "a shape that is too large": array(shape=[2**47, 2**47]),
    "a negative shape": array(shape=[-1]),
    "a shape of text": array(shape=["1"]),
    "more dimensions than numpy has": array(shape=[1] * 65),
    "another size": array(shape=[2]),
    "a buffer of many values": {"values": {"x": [{"$": "bytes", "buffer": 0}] * 2}, "sizes": [8]},
    "a fraction that takes hours": node(**{"$": "Fraction", "value": ["f" * 10**6, "e" * 10**6]}),
    "a float of many digits": node(**{"$": "float", "value": "9" * 10**6}),
    "objects without items": node(**{"$": "objects", "shape": [5], "items": []}),
    "keys that have no hash": node(**{"$": "dict", "items": [[[], 1]]}),
    "pairs that are none": node(**{"$": "dict", "items": [[1]]}),
    "a set of lists": node(**{"$": "set", "items": [[]]}),
    "a float that is none": node(**{"$": "float", "value": "x"}),
    "an integer that is none": node(**{"$": "int", "value": 5}),
    "a range of text": node(**{"$": "range", "value": ["a", "b", "c"]}),
    "a time that is none": node(**{"$": "datetime", "value": ["x", None, 0]}),
    "a zone that is a path": node(**{"$": "datetime", "value": ["2020-01-01", "../../etc/passwd", 0]}),
    "a time of pandas in a zone that is a file": node(
        **{"$": "pandas.Timestamp", "value": ["2020-01-01", "dateutil//etc/hostname"]}
    ),
    "a duration without end": node(**{"$": "timedelta", "value": [10**30, 0, 0]}),
    "a fraction by zero": node(**{"$": "Fraction", "value": ["1", "0"]}),
    "a stream that is none": node(**{"$": "pyarrow.Table", "buffer": 0}),
    "a table that is none": node(**{"$": "pandas.DataFrame", "buffer": 0}),
    "a table of polars that is none": node(**{"$": "polars.DataFrame", "buffer": 0}),
}


DIGITS = "1" * 6000
LONG_TEXTS: dict[str, object] = {
    **dict.fromkeys(("float", "complex", "date", "Decimal", "UUID"), DIGITS),
    "pandas.Timestamp": [DIGITS, None],
    "time": [DIGITS, 0],
    "pandas.Timedelta": DIGITS,
    "datetime": ["2020-01-01", DIGITS, 0],
    "Fraction": ["1", DIGITS],
}


@pytest.mark.parametrize(("tag", "value"), LONG_TEXTS.items(), ids=LONG_TEXTS)
def test_a_text_too_long_for_the_reader_of_its_type_is_refused_before_it_is_read(tag: str, value: object) -> None:
    with pytest.raises(ValueRefused, match=r"a number or a time of more than \d+ characters"):
        ValueDecoder(file_of(node(**{"$": tag, "value": value}), bytes(8)), LIMIT).decode()


def test_digits_of_a_decimal_in_a_list_are_refused() -> None:
    with pytest.raises(ValueRefused, match="not of this format"):
        ValueDecoder(file_of(node(**{"$": "Decimal", "value": [0, [1, 2], 0]}), bytes(8)), LIMIT).decode()


HUGE = 1 << 4096
HUGE_KEYS: dict[str, Any] = {
    "an item": {Decimal(5), HUGE},
    "a key": {HUGE: 1},
    "a part of a tuple": {("a", (HUGE,)): 1},
    "a fraction": {Fraction(1, HUGE)},
}


@pytest.mark.parametrize("value", HUGE_KEYS.values(), ids=HUGE_KEYS)
def test_a_key_whose_comparison_may_take_long_is_refused(value: Any) -> None:
    with pytest.raises(ValueRefused, match="a number of more than 4096 bits"):
        carried(value)


def test_a_key_of_4096_bits_is_carried() -> None:
    numbers = {HUGE - 1, -(HUGE - 1), Fraction(1, HUGE - 1), (HUGE - 1, "a")}
    assert carried(numbers) == numbers


@pytest.mark.parametrize("document", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_is_refused(document: object) -> None:
    with pytest.raises(ValueRefused):
        ValueDecoder(file_of(document, bytes(8)), LIMIT).decode()


def chain_numbers(bits: int) -> list[int]:
    """Return numbers of different hashes that walk along one chain in a dictionary's table of ``2**bits`` slots.

    The first 45 % fill neighbours on the orbit that a walk follows when all bits of a hash are used up; the steps of the others
    are all among these.
    """
    size = 2**bits
    orbit, places, slot = [0] * size, np.zeros(size, np.int64), 0
    for step in range(size):
        orbit[step], places[slot], slot = slot, step, (5 * slot + 1) % size
    length = int(0.45 * size)
    numbers = np.arange(size, size * 32)
    slots, perturbs, is_inside = numbers % size, numbers.copy(), np.ones(len(numbers), bool)
    while perturbs.any():
        is_inside &= places[slots] < length
        perturbs >>= 5
        slots = (5 * slots + perturbs + 1) % size
    is_inside &= places[slots] < length
    chosen = numbers[is_inside][np.argsort(places[slots[is_inside]], kind="stable")][: size // 5]
    return orbit[:length] + [int(number) for number in chosen]


OF_ONE_HASH = [number * (2**61 - 1) for number in range(80_000)]
COLLIDING: dict[str, Callable[[], Any]] = {
    "a set of one hash": lambda: {"$": "set", "items": OF_ONE_HASH},
    "a frozenset of tuples": lambda: {"$": "frozenset", "items": [{"$": "tuple", "items": [n]} for n in OF_ONE_HASH]},
    "a dictionary of one chain": lambda: {"$": "dict", "items": [[number, 0] for number in chain_numbers(17)]},
    "many sets": lambda: [{"$": "set", "items": OF_ONE_HASH[:10_000]}] * 40,
}


@pytest.mark.parametrize("make", COLLIDING.values(), ids=COLLIDING)
def test_numbers_whose_hashes_are_chosen_to_collide_are_refused(
    make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(values, "_HASH_SECONDS", 0.2)
    decoder = ValueDecoder(file_of({"values": {"a": make()}, "sizes": []}), 2**30)
    with pytest.raises(ValueRefused, match="hashes that collide"):
        decoder.decode()


COUNT = 30_000
LARGE: dict[str, list[Any]] = {
    "numbers in turn": list(range(COUNT)),
    "negative numbers": list(range(-COUNT, 0)),
    **{f"multiples of 2**{bits}": [number << bits for number in range(COUNT)] for bits in (3, 10, 20, 30, 41)},
    "random numbers": np.random.default_rng(1).integers(-(2**63), 2**63 - 1, COUNT).tolist(),
    "a shuffled range": np.random.default_rng(1).permutation(COUNT).tolist(),
    "fractions of a power of two": [number / 2**20 for number in range(COUNT)],
    "decimal fractions": [number * 0.1 for number in range(COUNT)],
    "tuples": [(number % 300 - 150, number // 300) for number in range(COUNT)],
    "text": [f"key {number}" for number in range(COUNT)],
    "text and numbers": [f"key {number}" if number % 2 else number for number in range(COUNT)],
    "dates": [dt.date.fromordinal(1 + number) for number in range(COUNT)],
    "times": [dt.datetime.fromtimestamp(number, UTC) for number in range(COUNT // 10)],
    "decimals": [Decimal(number) / 100 for number in range(COUNT // 10)],
}


@pytest.mark.parametrize(
    "items",
    named_cases(
        LARGE,
        {"negative numbers", "multiples of 2**20", "random numbers", "fractions of a power of two", "tuples", "text", "times"},
    ),
)
def test_large_sets_and_dictionaries_of_usual_items_are_carried(items: list[Any]) -> None:
    assert carried(set(items)) == set(items)
    pairs = dict(zip(items, range(len(items)), strict=True))
    assert list(carried(pairs).items()) == list(pairs.items())


def test_repeated_items_are_decoded_once() -> None:
    numbers = [*range(1000), *range(50)]
    pairs = [[number, index] for index, number in enumerate(numbers)]
    fields = {"a": {"$": "set", "items": numbers}, "b": {"$": "dict", "items": pairs}}
    values = ValueDecoder(file_of({"values": fields, "sizes": []}), LIMIT).decode()
    assert values["a"] == set(range(1000))
    assert list(values["b"].items()) == list(dict(zip(numbers, range(1050), strict=True)).items())


@pytest.mark.parametrize(
    "file", [b"", b"kernelexec", MAGIC, MAGIC + b"\xff" * 8, MAGIC + struct.pack("<Q", 2) + b"{", b"\x80\x05."]
)
def test_invalid_files_of_values_are_refused(file: bytes) -> None:
    with pytest.raises(ValueRefused):
        ValueDecoder(memoryview(file), LIMIT).decode()


@pytest.mark.parametrize("part", ["{}", "[]", "1", *at_night('{"$": "set", "items": []}')])
def test_more_parts_than_the_memory_has_room_for_are_refused_before_they_are_read(part: str) -> None:
    count = 900_000 // (1 + sum(map(part.count, ",:[{")))
    file = file_of(f'{{"values": {{"x": [{",".join([part] * count)}]}}, "sizes": []}}')
    with pytest.raises(ValueRefused, match="too many parts"):
        ValueDecoder(file, 0)
    assert len(ValueDecoder(file, 10**9).decode()["x"]) == count


def test_more_parts_than_other_threads_can_wait_for_are_refused_in_both_directions() -> None:
    with pytest.raises(ValueRefused, match="too many parts"):
        ValueDecoder(file_of(f'{{"values": {{"x": [{",".join(["1"] * 1_000_001)}]}}, "sizes": []}}'), 10**9)
    with pytest.raises(ValueRefused, match="too many parts"):
        EncodedValues({"x": [1] * 1_000_001}, 10**9)


def test_a_text_is_one_part_whatever_is_in_it() -> None:
    text = ',:[{"\\' * 500_000
    assert carried(text) == text


def test_texts_of_wide_characters_that_the_memory_has_no_room_for_are_refused_before_they_are_read() -> None:
    text = "a" * (9 * 2**20)
    assert ValueDecoder(file_of({"values": {"x": text}, "sizes": []}), 0).decode() == {"x": text}
    with pytest.raises(ValueRefused, match="texts take too much memory"):
        ValueDecoder(file_of({"values": {"x": text + "\U0001f600"}, "sizes": []}), 0)
    with pytest.raises(ValueRefused, match="not of this format"):
        ValueDecoder(file_of('{"values": {"x": "\U0001f600"}, "sizes": []}'), 0)


def test_booleans_are_zero_or_one() -> None:
    values = ValueDecoder(file_of(array(dtype="|b1", shape=[8]), bytes(range(8))), LIMIT).decode()["x"]
    assert values.view("u1").tolist() == [0] + [1] * 7


def test_a_deep_tree_is_refused() -> None:
    text = b'{"values": {"x": ' + b"[" * 10**5 + b"]" * 10**5 + b'}, "sizes": []}'
    with pytest.raises(ValueRefused):
        ValueDecoder(memoryview(MAGIC + struct.pack("<Q", len(text)) + text), LIMIT).decode()


def test_changed_bytes_give_a_value_or_a_refusal() -> None:
    original = content({"x": [np.arange(50), PLAIN["others"], {1: b"abc"}]})
    assert outcomes_of_changed_bytes(original) == {"a value", "refused"}


@pytest.mark.parametrize("value", [np.float64(1.5), np.int8(-3), np.uint32(7), np.bool_(True), np.float16(0.5)])  # noqa: FBT003
def test_a_scalar_is_a_number_where_numpy_is_missing(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "find_spec", lambda _name: None)
    actual = carried(value)
    assert actual == value
    assert type(actual) in (bool, int, float)
