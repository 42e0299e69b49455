"""The outputs of a cell, and their conversion to text and images."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from kernelexec.results.readable import read_bundle_text
from kernelexec.text import apply_cursor_moves

#: One object in several representations: media type to content. Text is str, binary is base64 text, JSON is JSON.
MimeBundle = dict[str, Any]

#: A sound in HTML, as ``IPython.display.Audio`` embeds it.
_EMBEDDED_AUDIO = re.compile(r"""<(?:audio|source)\s[^>]{0,200}?\bsrc=["']data:(audio/[\w.+-]{1,40});base64,([\w+/=\s]+)["']""")
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]+[0-~]|[0-~])")  # ECMA-48


@dataclass(frozen=True, slots=True)
class Stream:
    """Text that the cell wrote to stdout or stderr, with carriage returns applied."""

    name: str
    text: str
    output_type: Literal["stream"] = "stream"


@dataclass(frozen=True, slots=True)
class DisplayData:
    """A display of the cell; later updates of its ``display_id`` are applied."""

    data: MimeBundle
    metadata: dict[str, Any] = field(default_factory=dict)
    display_id: str | None = None
    output_type: Literal["display_data"] = "display_data"


@dataclass(frozen=True, slots=True)
class ExecuteResult:
    """The value of the cell's last expression."""

    data: MimeBundle
    metadata: dict[str, Any] = field(default_factory=dict)
    execution_count: int | None = None
    display_id: str | None = None
    output_type: Literal["execute_result"] = "execute_result"


@dataclass(frozen=True, slots=True)
class Error:
    """An exception that ended the cell, with its traceback line by line."""

    ename: str
    evalue: str
    traceback: tuple[str, ...] = ()
    output_type: Literal["error"] = "error"


Output = Stream | DisplayData | ExecuteResult | Error


@dataclass(frozen=True, slots=True)
class Image:
    """An image among a cell's outputs, with its media type."""

    mime: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Audio:
    """A sound among a cell's outputs, with its media type."""

    mime: str
    content: bytes


def strip_ansi(text: str) -> str:
    """Return the text without terminal escape sequences."""
    return _ANSI.sub("", text) if "\x1b" in text else text


def stream_text(outputs: Iterable[Output], name: str) -> str:
    """Return the text of one stream, without ANSI codes."""
    return strip_ansi(apply_cursor_moves("".join(o.text for o in outputs if isinstance(o, Stream) and o.name == name)))


def output_text(outputs: Iterable[Output]) -> str:
    """Return the outputs as text: streams unchanged, every other output on lines of its own.

    An exception without a traceback, as of an unknown magic, is left out if its line is shown already.
    """
    pieces: list[str] = []
    for output in outputs:
        text, is_block = _plain_text(output)
        if isinstance(output, Error) and not output.traceback and pieces and strip_ansi(pieces[-1]).rstrip().endswith(text):
            continue
        if is_block and pieces and not pieces[-1].endswith("\n"):
            pieces.append("\n")
        pieces.append(text + "\n" if is_block and text else text)
    return strip_ansi(apply_cursor_moves("".join(pieces)))


def _plain_text(output: Output) -> tuple[str, bool]:
    match output:
        case Stream():
            return output.text, False
        case Error():
            return "\n".join(output.traceback) or f"{output.ename}: {output.evalue}", True
        case _:
            return read_bundle_text(output.data), True


def best_image(output: Output) -> Image | None:
    """Return the best image of an output, decoded; None if it has none."""
    if not isinstance(output, DisplayData | ExecuteResult):
        return None
    for mime in ("image/png", "image/jpeg", "image/gif", "image/webp", "image/svg+xml"):
        content = output.data.get(mime)
        if isinstance(content, str) and (decoded := content.encode() if mime == "image/svg+xml" else decode_base64(content)):
            return Image(mime, decoded)
    return None


def read_audio(output: Output) -> Audio | None:
    """Return the sound of an output, decoded, also from its HTML; None if it has none."""
    if not isinstance(output, DisplayData | ExecuteResult):
        return None
    html = output.data.get("text/html")
    embedded = _EMBEDDED_AUDIO.search(html) if isinstance(html, str) and "data:audio/" in html else None  # most have none
    candidates = [(embedded[1], embedded[2])] if embedded else []
    candidates += [item for item in output.data.items() if item[0].startswith("audio/") and isinstance(item[1], str)]
    sounds = ((mime, decode_base64(content)) for mime, content in candidates)
    return next((Audio(mime, decoded) for mime, decoded in sounds if decoded), None)


def decode_base64(text: str) -> bytes | None:
    """Return the bytes of a binary representation; None if it is not base64."""
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        return None
