"""Single values as a look tells them, within their bounds; what a kernel says of them is checked again on our side."""

from __future__ import annotations

from typing import Any

import pytest

from kernelexec.launcher.features.variables import describe_variables
from kernelexec.results import Variable, Variables


def description(value: object) -> dict[str, Any]:
    [variable] = describe_variables(["x"], {"x": value}, 10)["variables"]
    assert isinstance(variable, dict)
    return variable


RECURSIVE: list[object] = []
RECURSIVE.append(RECURSIVE)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None"),
        (1.5, "1.5"),
        ([1, "a", b"b"], "[1, 'a', b'b']"),
        ((1,), "(1,)"),
        ((), "()"),
        (set(), "set()"),
        ({"a": [1, {2: 3}]}, "{'a': [1, {2: 3}]}"),
        (list(range(100)), "[0, 1, 2, 3, 4, 5, ...]"),
        ([[[[1]]]], "[[[[...]]]]"),
        (RECURSIVE, "[[[[...]]]]"),
        (2**9999, "<int of 10000 bits>"),
        ("\udc80", "'\\udc80'"),
    ],
    ids=range(12),
)
def test_a_value_is_shown_in_short(value: object, text: str) -> None:
    assert description(value)["text"] == text


@pytest.mark.parametrize(
    "value",
    ["x" * 10**6, b"x" * 10**6, ["x" * 10**6] * 10, {"x" * 1000: {"y" * 1000: ["z" * 1000] * 9}}, type("x" * 999, (), {})],
)
def test_no_value_is_shown_at_length(value: object) -> None:
    actual = description(value)
    assert len(actual["text"]) <= 200
    assert len(actual["type"]) <= 100


def test_a_name_that_goes_meanwhile_is_left_out() -> None:
    assert describe_variables(["gone", "x"], {"x": 1}, 10)["variables"] == [
        {"name": "x", "type": "int", "shape": None, "size_bytes": 28, "text": "1"}
    ]


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"variables": 3, "total": "x"},
        {"variables": [None, 1, {"name": 1, "type": "int", "text": ""}], "total": -1},
        {"variables": [{"name": "x", "type": None, "text": ""}], "total": True},
    ],
)
def test_invalid_variables_of_a_reply_are_left_out(message: dict[str, Any]) -> None:
    assert len(Variables.from_reply(message, 10)) == 0


def test_a_reply_is_bounded_and_cleaned() -> None:
    item = {"name": "n" * 9999, "type": "t\udc80", "text": "x" * 9999, "shape": [2**70], "size_bytes": -1}
    actual = Variables.from_reply({"variables": [item] * 50, "total": 2**70}, 10)
    assert (len(actual), actual.total) == (10, 10)
    assert actual.variables[0] == Variable("n" * 200, "t\\udc80", None, None, "x" * 200)
