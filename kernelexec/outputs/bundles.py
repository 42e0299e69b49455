"""Mime bundles as a kernel sends them, made fit to keep: clean JSON, long text cut, every part of it weighed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernelexec.text import clean, clean_text, cut_middle, utf8_size

#: What a display, and what each value of its JSON costs beside its text, in bytes.
OVERHEAD_BYTES, _ITEM_BYTES = 256, 32


@dataclass(frozen=True, slots=True)
class Bundle:
    """A display's content. ``size`` is its text in bytes, ``cost`` about what it takes to hold it."""

    data: dict[str, Any]
    metadata: dict[str, Any]
    size: int
    cost: int
    dropped_bytes: int


def read(content: Mapping[str, Any], text_bytes: int) -> Bundle:
    """The bundle of a message's content; a text representation keeps ``text_bytes`` of its head and tail."""
    data: dict[str, Any] = {}
    size = dropped = 0
    cost = OVERHEAD_BYTES
    found = content.get("data")
    for mime, value in (found if isinstance(found, dict) else {}).items():
        kept, whole = clean(value), None
        if isinstance(kept, str) and str(mime).startswith("text/"):
            whole = utf8_size(kept)
            kept = cut_middle(kept, text_bytes) if whole > text_bytes else kept
        name = clean_text(str(mime))
        kept_size, kept_cost = _weigh(kept)
        size += kept_size if whole is None else whole
        dropped += 0 if whole is None or whole <= text_bytes else whole - kept_size
        cost += kept_cost + utf8_size(name)
        data[name] = kept
    said = content.get("metadata")
    metadata = clean(said) if isinstance(said, dict) else {}
    return Bundle(data, metadata, size, cost + _weigh(metadata)[1], dropped)


def _weigh(value: object) -> tuple[int, int]:
    """Bytes of text in a JSON value, and about what it costs to hold the value."""
    match value:
        case str():
            size = utf8_size(value)
            return size, size + _ITEM_BYTES
        case dict() | list():
            weights = [_weigh(item) for item in (value if isinstance(value, list) else (*value, *value.values()))]
            return sum(size for size, _ in weights), _ITEM_BYTES + sum(cost for _, cost in weights)
        case _:
            return 8, _ITEM_BYTES
