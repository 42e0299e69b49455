"""Final answers of smolagents: values of many types, read within bounds, and one error for all else."""

from __future__ import annotations

import base64
import io
import json
import tracemalloc
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from kernelexec.adapters.shared.typed_json import read_typed_json

VALUES: list[tuple[object, object]] = [
    ([1, "a", None, {"b": [2.5, True]}], [1, "a", None, {"b": [2.5, True]}]),
    ({"__type__": "tuple", "data": [1, {"__type__": "set", "data": [2]}]}, (1, {2})),
    ({"__type__": "frozenset", "data": [1]}, frozenset({1})),
    ({"__type__": "dict_with_complex_keys", "data": [[1, 2], [{"__type__": "tuple", "data": []}, 3]]}, {1: 2, (): 3}),
    ({"__type__": "bytes", "data": "YQ=="}, b"a"),
    ({"__type__": "complex", "real": 1.0, "imag": 2.0}, 1 + 2j),
    ({"__type__": "datetime", "data": "2026-01-02T03:04:05+00:00"}, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
    ({"__type__": "date", "data": "2026-01-02"}, date(2026, 1, 2)),
    ({"__type__": "time", "data": "03:04:05"}, time(3, 4, 5)),
    ({"__type__": "timedelta", "total_seconds": 1.5}, timedelta(seconds=1.5)),
    ({"__type__": "Decimal", "data": "1.50"}, Decimal("1.50")),
    ({"__type__": "Path", "data": "a/b"}, Path("a/b")),
    (
        {"__type__": "dataclass", "class_name": "C", "module": "m", "data": {"x": {"__type__": "tuple", "data": []}}},
        {"__dataclass__": "C", "__module__": "m", "x": ()},
    ),
    ({"__type__": "a type of the agent's own", "data": 1}, {"__type__": "a type of the agent's own", "data": 1}),
]


@pytest.mark.parametrize(("tree", "value"), VALUES, ids=[str(value) for _, value in VALUES])
def test_a_value_has_its_type(tree: object, value: object) -> None:
    assert read_typed_json(json.dumps(tree)) == value


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6).reshape(2, 3),
        np.array([0.5], ">f4"),
        np.array([True]),
        np.array(["a", "bc"]),
        np.array(["a", None, [1]], object),
        np.zeros((0, 2)),
    ],
    ids=lambda array: str(array.dtype),
)
def test_an_array_has_its_dtype(array: np.ndarray[Any, Any]) -> None:
    tree = {"__type__": "ndarray", "data": array.tolist(), "dtype": str(array.dtype)}
    actual = read_typed_json(json.dumps(tree))
    assert (actual.dtype, actual.tolist()) == (array.dtype, array.tolist())


def test_a_picture_is_opened() -> None:
    written = io.BytesIO()
    PIL.Image.new("RGB", (3, 2), "red").save(written, "PNG")
    picture = read_typed_json(json.dumps({"__type__": "PIL.Image", "data": base64.b64encode(written.getvalue()).decode()}))
    assert (picture.size, picture.getpixel((0, 0))) == ((3, 2), (255, 0, 0))


def refused_picture(content: bytes) -> dict[str, str]:
    return {"__type__": "PIL.Image", "data": base64.b64encode(content).decode()}


REFUSED: list[object] = [
    refused_picture(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n"),
    refused_picture(b"no picture"),
    {"__type__": "PIL.Image", "data": "A"},
    {"__type__": "ndarray", "data": [1], "dtype": "no"},
    {"__type__": "ndarray", "data": [1], "dtype": "i4,i4"},
    {"__type__": "ndarray", "data": [1], "dtype": "(1000000,)i4"},
    {"__type__": "ndarray", "data": [1], "dtype": "V80"},
    {"__type__": "ndarray", "data": ["a"], "dtype": "int64"},
    {"__type__": "ndarray", "data": [[1], [2, 3]], "dtype": "int64"},
    {"__type__": "Decimal", "data": "x"},
    {"__type__": "Decimal", "data": []},
    {"__type__": "tuple"},
    {"__type__": "set", "data": [[1]]},
    {"__type__": "complex", "data": []},
    {"__type__": "complex", "real": [], "imag": 1},
    {"__type__": "timedelta", "total_seconds": 1e300},
    {"__type__": "date", "data": "2026-13-01"},
    {"__type__": "dict_with_complex_keys", "data": [[1]]},
    {"__type__": "dataclass", "class_name": "C", "module": "m", "data": []},
]


@pytest.mark.parametrize("tree", REFUSED, ids=str)
def test_a_malformed_value_is_one_kind_of_error(tree: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_typed_json(json.dumps([tree]))


@pytest.mark.parametrize("json_text", ["", "{", "[" * 60_000, "[" * 150 + "]" * 150, "1" * 5000])
def test_text_that_is_no_json_within_bounds_is_an_error(json_text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_typed_json(json_text)


@pytest.mark.parametrize("dtype", ["U80000000", "<U20000000", "S80000000", "a80000000"])
def test_an_array_that_is_larger_than_its_text_is_not_made(dtype: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="array"):
            read_typed_json(json.dumps({"__type__": "ndarray", "data": ["a", "a"], "dtype": dtype}))
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
