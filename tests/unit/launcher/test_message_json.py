"""JSON of messages is that of jupyter_client, whatever is in them."""

from __future__ import annotations

from typing import Any

import jupyter_client.session as jupyter
import pytest

from kernelexec.launcher.ipython.messages import pack

ODD = {"text": '\u65e5\n"', "nested": {"a": [1, None, True, 1.5]}, "when": jupyter.utcnow()}


def test_a_lone_surrogate_is_escaped() -> None:
    assert pack({"a": "\ud800"}) == b'{"a": "\\ud800"}'


class Word(str):
    __slots__ = ()


@pytest.mark.parametrize(
    "value",
    [
        ODD,
        "text",
        {"a": {1: (1, 2.5, None)}, Word("b"): Word("c")},
        {"when": [jupyter.utcnow()]},
        {"b": b"bytes"},
        {"s": {1, 2}},
        [],
    ],
    ids=["odd", "text", "keys", "dates", "bytes", "a set", "nothing"],
)
def test_a_value_is_packed_as_theirs(value: Any) -> None:
    assert pack(value) == jupyter.json_packer(value)


@pytest.mark.parametrize("value", [object(), pytest], ids=["an object", "a module"])
def test_values_without_json_are_refused(value: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        pack({"a": value})


def test_recursive_values_are_refused() -> None:
    circle: dict[str, object] = {}
    circle["itself"] = circle
    with pytest.raises(RecursionError):
        pack(circle)
