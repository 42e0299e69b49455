"""The outputs of a cell, and their conversion to text and images."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Literal

from kernelexec.results.media import Audio, Image
from kernelexec.results.one_line import format_bytes, join_parts, join_some, quote_head, quote_line
from kernelexec.results.readable import DisplayReader
from kernelexec.text import apply_cursor_moves, escape_line, utf8_size

#: One object in several representations: media type to content. Text is str, binary is base64 text, JSON is JSON.
MimeBundle = dict[str, Any]

#: A sound in HTML, as embedded by ``IPython.display.Audio``. Only the last element before a sound counts as the start, and the
#: content is never tried again with fewer characters: a page may have many starts before a long content without an end.
_EMBEDDED_AUDIO = re.compile(
    r"""<(?:audio|source)\s(?:[^<>]|<(?!(?:audio|source)\s)){0,200}?"""
    r"""\bsrc=["']data:(audio/[\w.+-]{1,40});base64,([\w+/=\s]++)["']"""
)
#: Limits of a quotation: characters of a stream, and outputs.
_QUOTED_FROM_CHARS, _QUOTED_FROM = 1000, 20
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]+[0-~]|[0-~])")  # ECMA-48


@dataclass(frozen=True, slots=True)
class Stream:
    """Text written by the cell to stdout or stderr, with carriage returns applied."""

    name: str
    text: str
    output_type: Literal["stream"] = "stream"

    def __repr__(self) -> str:
        return f"<Stream {join_parts(self.name, quote_head(self.text), format_bytes(utf8_size(self.text)))}>"


@dataclass(frozen=True, slots=True)
class DisplayData:
    """A display of the cell, with later updates of the ``display_id`` applied."""

    data: MimeBundle
    metadata: dict[str, Any] = field(default_factory=dict)
    display_id: str | None = None
    output_type: Literal["display_data"] = "display_data"

    def __repr__(self) -> str:
        return f"<DisplayData {_describe_bundle(self.data)}>"


@dataclass(frozen=True, slots=True)
class ExecuteResult:
    """The value of the cell's last expression."""

    data: MimeBundle
    metadata: dict[str, Any] = field(default_factory=dict)
    execution_count: int | None = None
    display_id: str | None = None
    output_type: Literal["execute_result"] = "execute_result"

    def __repr__(self) -> str:
        return f"<ExecuteResult {_describe_bundle(self.data)}>"


@dataclass(frozen=True, slots=True)
class Error:
    """An exception that ended the cell, with the lines of the traceback."""

    ename: str
    evalue: str
    traceback: tuple[str, ...] = ()
    output_type: Literal["error"] = "error"

    def __repr__(self) -> str:
        return f"<Error {quote_line(f'{self.ename}: {self.evalue}')}>"


Output = Stream | DisplayData | ExecuteResult | Error


def _describe_bundle(data: MimeBundle) -> str:
    """Return the types of a bundle with their sizes, and its plain text in quotes."""
    plain = data.get("text/plain")
    sizes = (
        f"{escape_line(mime)} {format_bytes(utf8_size(content))}" if isinstance(content, str) else escape_line(mime)
        for mime, content in data.items()
        if mime != "text/plain"
    )
    return join_parts(quote_head(plain) if isinstance(plain, str) else None, join_some(sizes) or None)


def strip_ansi(text: str) -> str:
    """Return the text without terminal escape sequences."""
    return _ANSI.sub("", text) if "\x1b" in text else text


def stream_text(outputs: Iterable[Output], name: str) -> str:
    """Return the text of a stream, without ANSI codes."""
    return strip_ansi(apply_cursor_moves("".join(o.text for o in outputs if isinstance(o, Stream) and o.name == name)))


def output_text(outputs: Iterable[Output], *, is_part: bool = False) -> str:
    """Return the outputs as text: streams unchanged, a newline between every other output and its neighbours.

    An exception without a traceback, as of an unknown magic, is left out if the text before ends with the same line. Text with
    a possible continuation (``is_part``) has the newline after the last output too.
    """
    pieces: list[str] = []
    separator, displays = "", DisplayReader()
    ending: str | None = None  # the last piece as it is shown: made once for all the exceptions that follow it
    for output in outputs:
        text, is_block = _plain_text(output, displays)
        if isinstance(output, Error) and not output.traceback and pieces:
            ending = strip_ansi(pieces[-1]).rstrip() if ending is None else ending
            if ending.endswith(text):
                continue
        if is_block and pieces and not pieces[-1].endswith("\n"):
            separator = "\n"
        if text:
            pieces += separator, text
            ending = None
            separator = "\n" if is_block else ""
    return strip_ansi(apply_cursor_moves("".join([*pieces, separator] if is_part else pieces)))


def last_error(outputs: Sequence[Output]) -> Error | None:
    """Return the last exception among outputs."""
    return next((output for output in reversed(outputs) if isinstance(output, Error)), None)


def read_displays(outputs: Iterable[Output]) -> Iterator[Output]:
    """Yield the outputs with displays reduced to their text; only a bounded part of all HTML and SVG is read."""
    displays = DisplayReader()
    for output in outputs:
        if isinstance(output, DisplayData | ExecuteResult):
            yield replace(output, data={"text/plain": displays.read(output.data)})
        else:
            yield output


def _plain_text(output: Output, displays: DisplayReader) -> tuple[str, bool]:
    match output:
        case Stream():
            return output.text, False
        case Error():
            return "\n".join(output.traceback) or f"{output.ename}: {output.evalue}", True
        case _:
            return displays.read(output.data), True


def quote_outputs(outputs: Iterable[Output]) -> str | None:
    """Return the first line of the outputs in quotes, without images and errors; only a part of long streams is read."""
    shown = (output for output in outputs if not isinstance(output, Error) and best_image(output) is None)
    parts = (
        Stream(output.name, output.text[:_QUOTED_FROM_CHARS]) if isinstance(output, Stream) else output
        for output in islice(shown, _QUOTED_FROM)
    )
    return quote_head(output_text(parts))


def best_image(output: Output) -> Image | None:
    """Return the best image of an output, decoded; None without an image."""
    if not isinstance(output, DisplayData | ExecuteResult):
        return None
    for mime in ("image/png", "image/jpeg", "image/gif", "image/webp", "image/svg+xml"):
        content = output.data.get(mime)
        if isinstance(content, str) and (decoded := content.encode() if mime == "image/svg+xml" else decode_base64(content)):
            return Image(mime, decoded)
    return None


def read_audio(output: Output) -> Audio | None:
    """Return the sound of an output, decoded, also from HTML; None without a sound."""
    if not isinstance(output, DisplayData | ExecuteResult):
        return None
    html = output.data.get("text/html")
    embedded = _EMBEDDED_AUDIO.search(html) if isinstance(html, str) and "data:audio/" in html else None  # most have none
    candidates = [(embedded[1], embedded[2])] if embedded else []
    candidates += [item for item in output.data.items() if item[0].startswith("audio/") and isinstance(item[1], str)]
    sounds = ((mime, decode_base64(content)) for mime, content in candidates)
    return next((Audio(mime, decoded) for mime, decoded in sounds if decoded), None)


def decode_base64(text: str) -> bytes | None:
    """Return the bytes of a binary representation; None for a text other than base64."""
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        return None
