"""Mime bundles of a kernel, prepared for storage: clean JSON, long text cut, and the size of every part measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernelexec.text import clean, clean_text, cut_middle, utf8_size

#: The cost of a display, and of each value of its JSON, in addition to its text, in bytes.
OVERHEAD_BYTES, _ITEM_BYTES = 256, 32


@dataclass(frozen=True, slots=True)
class Bundle:
    """A display's content. ``size`` is its text in bytes, ``cost`` its approximate memory."""

    data: dict[str, Any]
    metadata: dict[str, Any]
    size: int
    cost: int
    dropped_bytes: int


def read_bundle(content: Mapping[str, Any], text_bytes: int) -> Bundle:
    """Return the bundle of a message's content; a text representation keeps ``text_bytes`` of its head and tail."""
    data: dict[str, Any] = {}
    size = dropped = 0
    cost = OVERHEAD_BYTES
    bundle = content.get("data")
    for mime, value in (bundle if isinstance(bundle, dict) else {}).items():
        content_value, full_size = clean(value), None
        if isinstance(content_value, str) and str(mime).startswith("text/"):
            full_size = utf8_size(content_value)
            content_value = cut_middle(content_value, text_bytes) if full_size > text_bytes else content_value
        name = clean_text(str(mime))
        kept_size, kept_cost = _measure(content_value)
        size += kept_size if full_size is None else full_size
        dropped += 0 if full_size is None or full_size <= text_bytes else full_size - kept_size
        cost += kept_cost + utf8_size(name)
        data[name] = content_value
    metadata_value = content.get("metadata")
    metadata = clean(metadata_value) if isinstance(metadata_value, dict) else {}
    return Bundle(data, metadata, size, cost + _measure(metadata)[1], dropped)


def read_whole_bundle(content: Mapping[str, Any], room_bytes: int) -> Bundle:
    """Return the bundle of a message's content without the largest representations, if all do not fit into ``room_bytes``.

    Nothing is cut inside, since half of a picture or of a page cannot be shown. The plain text names what is left out.
    """
    data = content.get("data")
    representations, left_out = dict(data) if isinstance(data, dict) else {}, list[str]()
    while True:
        plain = representations.get("text/plain")
        lines = [plain, *left_out] if isinstance(plain, str) else left_out
        named = {"text/plain": "\n".join(lines)} if left_out else {}
        bundle = read_bundle({**content, "data": {**representations, **named}}, max(2, room_bytes))
        if not representations or (bundle.cost <= room_bytes and not bundle.dropped_bytes):
            return bundle
        sizes = {mime: _measure(value)[0] for mime, value in representations.items()}
        largest = max(sizes, key=lambda mime: sizes[mime])
        del representations[largest]
        left_out.append(f"[{clean_text(str(largest))} is left out: {sizes[largest]} bytes]")


def estimate_size(content: object) -> int:
    """Return about the bytes of text in a JSON value."""
    return _measure(content)[0]


def _measure(value: object) -> tuple[int, int]:
    """Return the bytes of text in a JSON value, and its approximate memory."""
    match value:
        case str():
            size = utf8_size(value)
            return size, size + _ITEM_BYTES
        case dict() | list():
            weights = [_measure(item) for item in (value if isinstance(value, list) else (*value, *value.values()))]
            return sum(size for size, _ in weights), _ITEM_BYTES + sum(cost for _, cost in weights)
        case _:
            return 8, _ITEM_BYTES
