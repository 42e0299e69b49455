"""What a kernel that is broken or hostile may send: every field of every message with every kind of wrong value."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

#: JSON values that fit nowhere, or are strange where they fit.
VALUES: list[Any] = [
    None,
    True,
    -5,
    10**400,
    1.5,
    1e308,
    "",
    "text",
    "\ud800",
    "\x00\x1b[31m",
    "\u65e5" * 10_000,
    [],
    ["a", 1, None, ["b"]],
    {},
    {"": {"\udfff": [1]}},
    json.loads("[" * 600 + "]" * 600),
    json.loads('{"a":' * 300 + "1" + "}" * 300),
]
_BUNDLE = {"data": {"text/plain": "p"}, "metadata": {}, "transient": {"display_id": "d"}}
MESSAGES: dict[str, dict[str, Any]] = {
    "stream": {"name": "stdout", "text": "t"},
    "display_data": _BUNDLE,
    "update_display_data": _BUNDLE,
    "execute_result": {**_BUNDLE, "execution_count": 1},
    "error": {"ename": "E", "evalue": "v", "traceback": ["l"]},
    "clear_output": {"wait": True},
}
MIMES = ["text/plain", "text/html", "image/png", "application/json", "image/svg+xml", "application/pdf", "\ud800", ""]


def feeds() -> Iterator[tuple[str, dict[str, Any]]]:
    """Type and content of each message."""
    for msg_type, content in MESSAGES.items():
        yield msg_type, {}
        yield msg_type, dict.fromkeys(content)
        for name in content:
            for value in VALUES:
                yield msg_type, {**content, name: value}
    for msg_type in ("display_data", "update_display_data", "execute_result"):
        for value in VALUES:
            for mime in MIMES:
                yield msg_type, {**_BUNDLE, "data": {mime: value}}
            yield msg_type, {**_BUNDLE, "metadata": {"k": value}}
            yield msg_type, {**_BUNDLE, "transient": {"display_id": value}}
    for value in VALUES:
        yield "error", {"ename": value, "evalue": value, "traceback": [value, value]}
