"""Answers for a model: a cell's result as bounded text, tables and pictures, with a machine-readable record.

A table has one line per row, without the padding and wrapping of tables for people. Pictures have formats that clients support.
Kernels are not trusted, so the header of a picture is checked before it is decoded, and a huge picture is never decoded.
"""

from __future__ import annotations

import base64
import json
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from html.parser import HTMLParser
from io import BytesIO
from typing import TYPE_CHECKING, Any, TypeVar, cast
from zlib import crc32

import anyio
import anyio.to_thread
from fastmcp.tools import ToolResult
from mcp.types import ImageContent, TextContent

from kernelexec.mcp.calls.progress import PartialResult
from kernelexec.results import DisplayData, ExecuteResult, Image, Output, Stream, best_image, model_notes, output_text
from kernelexec.results.result import JOINED_MAX, join_names
from kernelexec.text import apply_returns, clean, utf8_size

if TYPE_CHECKING:
    import PIL.Image

logger = logging.getLogger("kernelexec")

#: Characters of output that one answer shows; ``read_output`` has the rest.
PREVIEW_CHARS = 20_000

T = TypeVar("T")
#: The key of the machine-readable record in an answer's ``_meta``.
RECORD = "kernelexec/result"
#: The largest answer that clients accept.
ANSWER_BYTES = 900_000
_LATE_CHARS = 2000
#: What else helps a cell over its timeout here.
TIMEOUT_ADVICE = ", and a small wait to continue meanwhile"
_NOT_READABLE = "it ran before, and its output is no longer available"
_MARGIN_BYTES = 2000
_BULKY = ("outputs", "late")
#: The largest table that is parsed, in characters of HTML.
_HTML_CHARS = 2_000_000
#: Characters allowed for a table even if its plain text is shorter, since that omits columns by terminal width.
_WIDE_CHARS = 8000
_FRAME = re.compile(r'<table\b[^>]*\bclass="[^"]*\bdataframe\b')
#: The default text of an object without a repr.
_NO_REPR = re.compile(r"<[\w.]+ (?:object )?at 0x[0-9a-f]+>\s*")
_SAVED = re.compile(r"outputs/cell-\d+-(\d+)(?:-\d+)?\.(?:png|jpg|gif|webp|svg)")
#: Limits of an answer: number of pictures, bytes of each, pixels of a side; models see no more.
PICTURES_MAX = 4
PICTURE_BYTES = 500_000
SIDE_PIXELS = 1568
#: The largest picture that is decoded: 64 megapixels take 256 MB of memory; pictures are decoded one by one.
_DECODED_PIXELS = 64_000_000
#: Number of pictures to try, as some may be unusable.
_TRIED = 2 * PICTURES_MAX
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_FORMATS = ("PNG", "JPEG", "GIF", "WEBP")
_QUALITY, _SMALLER, _STEPS = 85, 0.7, 6
_ENVELOPE_BYTES = 100
_ONE_THREAD = anyio.CapacityLimiter(1)


async def render_answer(partial_result: PartialResult) -> ToolResult:
    """Return the answer to a call: content only, since some clients hide the content of an answer with structure."""
    record = _make_record(partial_result)
    text = _render_text(replace(partial_result, outputs=tuple(map(_compact_table, partial_result.outputs))))
    room = ANSWER_BYTES - _MARGIN_BYTES - len(json.dumps(text)) - len(json.dumps(record))
    images = [image for output in partial_result.outputs if (image := best_image(output)) is not None]
    pictures = await select_pictures(images, room)
    text += "".join(f"\n{line}" for line in _describe_hidden_pictures(pictures, len(images), partial_result))
    content = [TextContent(type="text", text=text), *pictures.shown]
    return ToolResult(content=content, meta={RECORD: record}, is_error=partial_result.result.status == "aborted")


def count_json_bytes(value: object) -> int:
    """Return the size of a value in an answer."""
    return utf8_size(json.dumps(value, ensure_ascii=False))


def fit_answer(make: Callable[[int], T], limit: int) -> T:
    """Return a structured answer with ``limit`` items or characters, halved until clients accept the size."""
    while True:
        answer: Any = make(limit)
        text = json.dumps(asdict(answer), ensure_ascii=False)  # it is sent a second time as text
        if limit <= 1 or utf8_size(text) + count_json_bytes(text) <= ANSWER_BYTES - _MARGIN_BYTES:
            return cast("T", answer)
        limit //= 2


def preview(text: str, more: str, *, is_cut: bool = False, chars: int = PREVIEW_CHARS) -> str:
    """Return a text that fits an answer: its head and tail, with the size of the omitted part and ``more``, its location.

    With ``is_cut`` the text itself may be incomplete; ``chars`` is the number of characters that fit.
    """
    if len(text) <= chars:
        return text
    half = max(chars // 2, 1)
    return f"{text[:half]}\n[... {'at least ' * is_cut}{len(text) - 2 * half} characters left out: {more} ...]\n{text[-half:]}"


def _render_text(partial_result: PartialResult) -> str:
    result = partial_result.result
    output = apply_returns(output_text(partial_result.outputs))
    parts = [_render_headline(partial_result)]
    if partial_result.missed_bytes:
        parts.append(f"[{partial_result.missed_bytes} earlier bytes are no longer kept here; read_output has them]")
    if output.strip():
        more = f"read_output(execution_id='{result.execution_id}'{_render_offset(partial_result)}) continues"
        shown = preview(output, more if partial_result.is_readable else _NOT_READABLE, is_cut=result.truncated)
        parts.append(str(clean(shown)).rstrip("\n"))
    else:
        parts.append(_describe_no_output(partial_result))
    if result.late:
        parts.append("[output after the end of the cell:]\n" + str(clean(output_text(result.late)[:_LATE_CHARS])))
    parts.extend(f"[{line}]" for line in model_notes(result, timeout_advice=TIMEOUT_ADVICE))
    return "\n".join(parts)


def _render_headline(partial_result: PartialResult) -> str:
    result = partial_result.result
    session = f"session {result.session}"
    if result.status == "running":
        waits = f"it waits behind {partial_result.queue_position} other(s)" if partial_result.queue_position else "it continues"
        call = f"wait_execution(execution_id='{result.execution_id}', cursor={partial_result.cursor})"
        return f"[running: {session}; {waits}. Call {call} to collect it; do not send it again.]"
    if result.status in ("unknown", "aborted"):
        return f"[{result.status}: {session}; {'its result is unknown' if result.status == 'unknown' else 'it did not run'}]"
    facts = [session, f"exit code {result.exit_code}"] if result.status != "ok" else [session]
    if result.interrupted:
        facts.append(f"ended by {result.interrupted}")
    return f"[{result.status}: {', '.join(facts)}, state {result.state}, {result.timing.run:.2f} s]"


def _describe_no_output(partial_result: PartialResult) -> str:
    result = partial_result.result
    if result.status == "unknown":
        return "(its output is unknown)"
    if result.status != "aborted" and result.truncated:
        return "(no output could be kept)"
    return "(no new output)" if result.status != "aborted" and partial_result.since else "(no output)"


def _render_offset(partial_result: PartialResult) -> str:
    """Return the offset argument: the end of the preview's head in the streams, without displays, so never too large."""
    left, size = PREVIEW_CHARS // 2, 0
    for output in partial_result.outputs if not partial_result.since else ():
        if left <= 0:
            break
        text = output_text([output])
        size += utf8_size(text[:left]) if isinstance(output, Stream) else 0
        left -= len(text)
    return f", offset={size}" if size else ""


def _make_record(partial_result: PartialResult) -> dict[str, Any]:
    """Return the result as a record, without outputs and with bounded lists."""
    plain = {key: value for key, value in partial_result.result.to_dict().items() if key not in _BULKY}
    for key in ("lost_names", "files", "notes"):
        plain[key] = plain[key][:JOINED_MAX]
    if partial_result.result.status == "running":
        plain |= {"cursor": partial_result.cursor, "place": partial_result.queue_position}
    record: dict[str, Any] = clean(plain)
    return record


def _describe_hidden_pictures(pictures: InlinePictures, count: int, partial_result: PartialResult) -> Iterator[str]:
    """Describe the workspace files with pictures that are omitted or shown smaller."""
    if pictures.smaller:
        files = _describe_saved_files(pictures.smaller, count, partial_result)
        yield f"[{len(pictures.smaller)} picture(s) shown smaller; {files}]"
    if pictures.left_out:
        limits = (
            f"an answer has at most {PICTURES_MAX} pictures of at most {PICTURE_BYTES // 1000} kB each, "
            f"and {ANSWER_BYTES // 1000} kB in all, pictures in base64"
        )
        files = _describe_saved_files(pictures.left_out, count, partial_result)
        yield f"[{len(pictures.left_out)} picture(s) not shown here: {limits}; {files}]"


def _describe_saved_files(numbers: Sequence[int], count: int, partial_result: PartialResult) -> str:
    if partial_result.result.status == "running":
        return "they will be saved when the cell ends"
    saved = sorted((int(match[1]), name) for name in partial_result.result.files if (match := _SAVED.fullmatch(name)))
    names = [name for _, name in saved]
    if len(names) == count:  # else some were not saved or belong to an earlier answer: list all
        names = [names[number] for number in numbers]
    return f"see {join_names(names)} in the workspace" if names else "they were not saved"


def render_stream(partial_result: PartialResult, name: str) -> str:
    """Return one stream's text, shortened to fit an answer."""
    outputs = [output for output in partial_result.outputs if isinstance(output, Stream) and output.name == name]
    text = apply_returns(output_text(outputs))
    more = "read_output(execution_id) has all of it" if partial_result.is_readable else _NOT_READABLE
    return str(clean(preview(text, more, is_cut=partial_result.result.truncated)))


def _compact_table(output: Output) -> Output:
    """Return an output with its table as one line per row; any other output as it is."""
    if not isinstance(output, DisplayData | ExecuteResult):
        return output
    html, plain = output.data.get("text/html"), output.data.get("text/plain")
    if not isinstance(html, str) or not isinstance(plain, str) or len(html) > _HTML_CHARS:
        return output
    has_no_repr = _NO_REPR.fullmatch(plain) is not None and "<table" in html
    if not has_no_repr and _FRAME.search(html) is None:
        return output
    text = render_table(html)
    if text is None or len(text) > max(len(plain), _WIDE_CHARS):
        return output
    return replace(output, data=output.data | {"text/plain": text})


def render_table(html: str) -> str | None:
    """Return an HTML table as one line per row, with the paragraphs below it; None if cells span several."""
    reader = _TableReader()
    reader.feed(html)
    reader.close()
    if reader.is_irregular or not reader.rows:
        return None
    return "\n".join([*(" | ".join(row).rstrip() for row in reader.rows), *reader.below])


class _TableReader(HTMLParser):
    """Parser of one table: the texts of its cells, and paragraphs below it."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.below: list[str] = []
        self.is_irregular = False
        self._tables = 0
        self._cell: list[str] | None = None
        self._skipped = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """See ``HTMLParser``."""
        if tag == "table":
            self._tables += 1
            self.is_irregular |= self._tables > 1
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.is_irregular |= any(name in ("rowspan", "colspan") and value != "1" for name, value in attrs) or not self.rows
            self._cell = []
        elif tag == "p":
            self._cell = []
        elif tag in ("style", "script"):
            self._skipped += 1

    def handle_endtag(self, tag: str) -> None:
        """See ``HTMLParser``."""
        if tag in ("style", "script"):
            self._skipped -= 1
        if tag not in ("td", "th", "p") or self._cell is None:
            return
        text, self._cell = " ".join("".join(self._cell).split()), None
        if tag == "p":
            self.below.append(text)
        elif self.rows:
            self.rows[-1].append(text)

    def handle_data(self, data: str) -> None:
        """See ``HTMLParser``."""
        if self._cell is not None and not self._skipped:
            self._cell.append(data)


@dataclass(frozen=True, slots=True)
class InlinePictures:
    """Pictures of an answer, and the numbers of those that are shown smaller or left out."""

    shown: list[ImageContent]
    smaller: list[int]
    left_out: list[int]


async def select_pictures(images: Sequence[Image], room: int) -> InlinePictures:
    """Return the first usable pictures that fit into ``room`` bytes of an answer."""
    pictures = InlinePictures([], [], [])
    for number, image in enumerate(images):
        fit, smaller = None, False
        if len(pictures.shown) < PICTURES_MAX and number < _TRIED:
            fit, smaller = await anyio.to_thread.run_sync(_fit, image, limiter=_ONE_THREAD)
        encoded_bytes = 0 if fit is None else (len(fit.content) + 2) // 3 * 4 + _ENVELOPE_BYTES
        if fit is None or encoded_bytes > room:
            pictures.left_out.append(number)
            continue
        room -= encoded_bytes
        if smaller:
            pictures.smaller.append(number)
        data = base64.b64encode(fit.content).decode("ascii")
        pictures.shown.append(ImageContent(type="image", data=data, mime_type=fit.mime))
    return pictures


def _is_fit(image: Image) -> bool:
    """Return whether a picture needs no change; an invalid picture would break the whole conversation."""
    content = image.content
    if image.mime != "image/png" or len(content) > PICTURE_BYTES or not content.startswith(_SIGNATURE):
        return False
    sides = int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big")
    return all(0 < side <= SIDE_PIXELS for side in sides) and _is_whole(content)


def _is_whole(png: bytes) -> bool:
    """Return whether a PNG is complete and undamaged; models reject any other."""
    at, kind, data = len(_SIGNATURE), b"", 0
    while kind != b"IEND":
        length, kind = int.from_bytes(png[at : at + 4], "big"), png[at + 4 : at + 8]
        end = at + 8 + length
        if end + 4 > len(png) or crc32(png[at + 4 : end]) != int.from_bytes(png[end : end + 4], "big"):
            return False
        data += length if kind == b"IDAT" else 0
        at = end + 4
    return data > 0


def _fit(image: Image) -> tuple[Image | None, bool]:
    """Return a picture converted for models, or None, and whether it has fewer pixels. Blocks: run it in a thread."""
    if _is_fit(image):
        return image, False
    try:
        import PIL.Image  # noqa: PLC0415 - few pictures need it
    except ImportError:
        return None, False
    bombs = PIL.Image.DecompressionBombError, PIL.Image.DecompressionBombWarning
    try:
        with PIL.Image.open(BytesIO(image.content), formats=_FORMATS) as opened:
            width, height = opened.size
            if not 0 < width * height <= _DECODED_PIXELS:
                return None, False
            is_small = max(width, height) <= SIDE_PIXELS and len(image.content) <= PICTURE_BYTES
            if opened.format == "JPEG" and image.mime == "image/jpeg" and is_small:
                opened.load()  # raises for a truncated picture
                return image, False
            opened.draft("RGB", (SIDE_PIXELS, SIDE_PIXELS))  # decodes a JPEG at a reduced size
            plain = opened.convert("RGBA" if opened.has_transparency_data else "RGB")
            plain.thumbnail((SIDE_PIXELS, SIDE_PIXELS))
            encoded = _encode(plain)
    except (OSError, ValueError, SyntaxError, ArithmeticError, MemoryError, *bombs) as exc:
        logger.info("kernelexec.picture_not_shown", extra={"mime": image.mime, "why": repr(exc)[:200]})
        return None, False
    return (None, False) if encoded is None else (encoded[0], encoded[1] != (width, height))


def _encode(picture: PIL.Image.Image) -> tuple[Image, tuple[int, int]] | None:
    """Return a picture as PNG if small enough, else as JPEG on white, scaled down until it fits; with its size in pixels."""
    import PIL.Image  # noqa: PLC0415 - as above

    written = BytesIO()
    picture.save(written, "PNG")
    if len(written.getvalue()) <= PICTURE_BYTES:
        return Image("image/png", written.getvalue()), picture.size
    if picture.mode == "RGBA":
        white = PIL.Image.new("RGB", picture.size, "white")
        white.paste(picture, mask=picture.getchannel("A"))
        picture = white
    for _ in range(_STEPS):
        written = BytesIO()
        picture.save(written, "JPEG", quality=_QUALITY)
        if len(written.getvalue()) <= PICTURE_BYTES:
            return Image("image/jpeg", written.getvalue()), picture.size
        picture = picture.resize((max(1, int(picture.width * _SMALLER)), max(1, int(picture.height * _SMALLER))))
    return None
