"""Mime bundles of a kernel, prepared for storage: portable JSON, long text cut, and the size of every part measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kernelexec.text import NESTING_MAX, clean, clean_text, count_elements, cut_middle, make_json_encoder, utf8_size

#: The cost of a display, and of each value of its JSON, in addition to its text, in bytes.
OVERHEAD_BYTES, _ITEM_BYTES = 256, 32
#: The representations of one display; a library has about five.
_TYPES_MAX = 100
_encode = make_json_encoder(separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True, slots=True)
class Bundle:
    """A display's content. ``size`` is its text in bytes, ``cost`` its approximate memory."""

    data: dict[str, Any]
    metadata: dict[str, Any]
    size: int
    cost: int
    dropped_bytes: int


@dataclass(frozen=True, slots=True)
class Part:
    """One value of a bundle as portable JSON, with the bytes of its text and its approximate memory."""

    value: Any
    size: int
    cost: int


def read_bundle(content: Mapping[str, Any], text_bytes: int) -> Bundle:
    """Return the bundle of a message's content; a text representation keeps ``text_bytes`` of its head and tail."""
    parts, left_out = _read_parts(content)
    cut = 0
    for name, part in parts.items():
        if name.startswith("text/") and isinstance(part.value, str) and part.size > text_bytes:
            parts[name] = read_part(cut_middle(part.value, text_bytes))
            cut += part.size - parts[name].size
    return _make_bundle(parts, _read_metadata(content), left_out, cut)


class WholeBundles:
    """The bundle of a message's content, whole or without its largest representations; it is read once for all who ask.

    Nothing is cut inside, since half of a picture or of a page cannot be shown. The plain text names what is left out.
    """

    def __init__(self, content: Mapping[str, Any]) -> None:
        self._bundles: list[Bundle] = []
        self._smaller = _read_smaller_bundles(content)

    def within(self, room_bytes: int) -> Bundle:
        """Return the largest bundle of at most that cost; the smallest one if there is none."""
        for bundle in self._bundles:
            if bundle.cost <= room_bytes:
                return bundle
        for bundle in self._smaller:
            self._bundles.append(bundle)
            if bundle.cost <= room_bytes:
                break
        return self._bundles[-1]


def _read_smaller_bundles(content: Mapping[str, Any]) -> Iterator[Bundle]:
    """Yield the whole bundle, then always one without its largest representation, until there is none."""
    parts, dropped = _read_parts(content)
    metadata, left_out = _read_metadata(content), list[str]()
    while True:
        plain = parts.get("text/plain")
        lines = [plain.value, *left_out] if plain is not None and isinstance(plain.value, str) else left_out
        named = {"text/plain": read_part("\n".join(lines))} if left_out else {}
        yield _make_bundle({**parts, **named}, metadata, dropped)
        if not parts:
            return
        largest = max(parts, key=lambda name: parts[name].size)
        left_out.append(f"[{largest} is left out: {parts.pop(largest).size} bytes]")


def _read_parts(content: Mapping[str, Any]) -> tuple[dict[str, Part], int]:
    """Return the representations by their types, and the bytes of those beyond the limit of their number."""
    data = content.get("data")
    items = list(data.items()) if isinstance(data, dict) else []
    parts = {clean_text(str(mime)): read_part(value) for mime, value in items[:_TYPES_MAX]}
    return parts, sum(read_part(value).size for _, value in items[_TYPES_MAX:])


def _read_metadata(content: Mapping[str, Any]) -> Part:
    metadata = content.get("metadata")
    return read_part(metadata if isinstance(metadata, dict) else {})


def _make_bundle(parts: Mapping[str, Part], metadata: Part, left_out_bytes: int, cut_bytes: int = 0) -> Bundle:
    size = sum(part.size for part in parts.values()) + cut_bytes
    cost = OVERHEAD_BYTES + sum(part.cost + utf8_size(name) for name, part in parts.items()) + metadata.cost
    return Bundle({name: part.value for name, part in parts.items()}, metadata.value, size, cost, left_out_bytes + cut_bytes)


def read_part(value: Any) -> Part:  # noqa: ANN401 - JSON
    """Return a value of parsed JSON. A walk through millions of parts takes seconds, so C code looks at them."""
    if not isinstance(value, dict | list):
        value = clean(value)
        size = utf8_size(value) if isinstance(value, str) else 8
        return Part(value, size, size + _ITEM_BYTES)
    text = _encode_portable(value)
    if text is None:
        value = clean(value)
        text = _encode(value)
    size = utf8_size(text)
    return Part(value, size, size + _ITEM_BYTES * count_elements(text))


def _encode_portable(value: Any) -> str | None:  # noqa: ANN401 - JSON
    """Return the JSON text of a value; None if it is not portable as it is."""
    level = [value]
    for _ in range(NESTING_MAX):
        items = [item for each in level for item in (each.values() if isinstance(each, dict) else each)]
        level = [item for item in items if isinstance(item, dict | list)]
        if not level:
            break
    else:
        return None
    try:
        text = _encode(value)
        text.encode()
    except ValueError:  # NaN and infinity, or half a character
        return None
    return text
