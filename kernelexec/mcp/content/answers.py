"""What a cell's outcome looks like to a model: text within bounds, pictures that clients take, the record beside them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeVar

from fastmcp.tools import ToolResult
from mcp.types import TextContent

from kernelexec.mcp.calls.progress import Seen
from kernelexec.mcp.content.pictures import PICTURE_BYTES, PICTURES_MAX, Inline, inline
from kernelexec.mcp.content.tables import compacted
from kernelexec.mcp.tools.descriptions import PREVIEW_CHARS
from kernelexec.results import ExecutionResult, Stream, image_of, output_text, remarks
from kernelexec.results.notes import LISTED, listed
from kernelexec.text import apply_returns, clean, utf8_size

T = TypeVar("T")
#: The key of the machine-readable record in an answer's ``_meta``.
RECORD = "kernelexec/result"
#: What clients take of an answer.
ANSWER_BYTES = 900_000
_LATE_CHARS = 2000
#: What is said of a timeout.
OVER_TIME = "Over its timeout: give a larger timeout if it needs more time, and a small wait to go on meanwhile."
_NO_MORE = "it ran before, and its output is no longer held"
_MARGIN_BYTES = 2000
_BULKY = ("outputs", "late")
_SAVED = re.compile(r"outputs/cell-\d+-(\d+)(?:-\d+)?\.(?:png|jpg|gif|webp|svg)")


async def answer(seen: Seen) -> ToolResult:
    """The answer to a call: content only, since some clients show their model nothing else where there is structure too."""
    record = _record(seen)
    text = _text(replace(seen, outputs=compacted(seen.outputs)))
    room = ANSWER_BYTES - _MARGIN_BYTES - len(json.dumps(text)) - len(json.dumps(record))
    images = [image for output in seen.outputs if (image := image_of(output)) is not None]
    pictures = await inline(images, room)
    text += "".join(f"\n{line}" for line in _elsewhere(pictures, len(images), seen))
    content = [TextContent(type="text", text=text), *pictures.shown]
    return ToolResult(content=content, meta={RECORD: record}, is_error=seen.result.status == "aborted")


def json_bytes(value: object) -> int:
    """How much of an answer something takes."""
    return utf8_size(json.dumps(value, ensure_ascii=False))


def fitted(make: Callable[[int], T], most: int) -> T:
    """A structured answer with ``most`` of something, or with so much of it that clients take it."""
    answered = make(most)
    while most > 1 and _travels(answered) > ANSWER_BYTES - _MARGIN_BYTES:
        most //= 2
        answered = make(most)
    return answered


def _travels(answered: Any) -> int:  # noqa: ANN401 - any of our dataclasses
    """How much clients get of a structured answer: it comes a second time, as text."""
    text = json.dumps(asdict(answered), ensure_ascii=False)
    return utf8_size(text) + json_bytes(text)


def preview(text: str, more: str, *, cut: bool = False, chars: int = PREVIEW_CHARS) -> str:
    """The text if it fits an answer, else its head and tail, and between them what is missing and where it is.

    ``cut`` says that the text itself may lack something, and ``chars`` how much of it fits.
    """
    if len(text) <= chars:
        return text
    half = max(chars // 2, 1)
    return f"{text[:half]}\n[... {'at least ' * cut}{len(text) - 2 * half} characters left out: {more} ...]\n{text[-half:]}"


def _text(seen: Seen) -> str:
    result = seen.result
    output = apply_returns(output_text(seen.outputs))
    parts = [_headline(seen)]
    if seen.missed_bytes:
        parts.append(f"[{seen.missed_bytes} earlier bytes are no longer held here: read_output has them]")
    more = f"read_output(execution_id='{result.execution_id}'{_offset(seen)}) reads on" if seen.held else _NO_MORE
    parts.append(str(clean(preview(output, more, cut=result.truncated))).rstrip("\n") if output.strip() else _nothing(seen))
    if result.late:
        parts.append("[output that came after the cell had ended:]\n" + str(clean(output_text(result.late)[:_LATE_CHARS])))
    parts.extend(f"[{line}]" for line in remarks(result, over_time=OVER_TIME))
    return "\n".join(parts)


def _headline(seen: Seen) -> str:
    result = seen.result
    who = f"session {result.session}"
    if result.status == "running":
        waits = f"it waits behind {seen.place} other(s)" if seen.place else "it goes on"
        call = f"wait_execution(execution_id='{result.execution_id}', cursor={seen.cursor})"
        return f"[running: {who}; {waits}. Call {call} to collect it; do not send it again.]"
    if result.status in ("unknown", "aborted"):
        return f"[{result.status}: {who}; {'how it ended is not known' if result.status == 'unknown' else 'it did not run'}]"
    facts = [who, f"exit code {result.exit_code}"] if result.status != "ok" else [who]
    if result.interrupted:
        facts.append(f"ended by {result.interrupted}")
    return f"[{result.status}: {', '.join(facts)}, state {result.state}, {result.timing.run:.2f} s]"


def _nothing(seen: Seen) -> str:
    """What stands where there is no text, and is true."""
    if seen.result.status in ("unknown", "aborted"):
        return "(no output is known)" if seen.result.status == "unknown" else "(no output)"
    if seen.result.truncated:
        return "(nothing of the output could be kept)"
    return "(no new output)" if seen.since else "(no output)"


def _offset(seen: Seen) -> str:
    """Where in the streams the head of the preview ends: displays are not among them, so it is never too far."""
    left, size = PREVIEW_CHARS // 2, 0
    for output in seen.outputs if not seen.since else ():
        if left <= 0:
            break
        text = output_text([output])
        size += utf8_size(text[:left]) if isinstance(output, Stream) else 0
        left -= len(text)
    return f", offset={size}" if size else ""


def record_schema() -> dict[str, Any]:
    """The JSON Schema of the record beside an answer: that of results without what the content shows."""
    schema = ExecutionResult.json_schema()
    properties = {name: said for name, said in schema["properties"].items() if name not in _BULKY}
    places = {name: {"type": "integer", "minimum": 0} for name in ("cursor", "place")}
    required = [name for name in schema["required"] if name not in _BULKY]
    return {**schema, "title": RECORD, "properties": properties | places, "required": required, "additionalProperties": False}


def _record(seen: Seen) -> dict[str, Any]:
    """The result without its outputs, and with bounded lists."""
    plain = {key: value for key, value in seen.result.to_dict().items() if key not in _BULKY}
    for key in ("lost_names", "files", "notes"):
        plain[key] = plain[key][:LISTED]
    if seen.result.status == "running":
        plain |= {"cursor": seen.cursor, "place": seen.place}
    found: dict[str, Any] = clean(plain)
    return found


def _elsewhere(pictures: Inline, count: int, seen: Seen) -> Iterator[str]:
    """Which files of the workspace hold the pictures that are not inline, or not as large as they are."""
    if pictures.smaller:
        yield f"[{len(pictures.smaller)} picture(s) shown smaller than they are; {_saved(pictures.smaller, count, seen)}]"
    if pictures.left_out:
        limits = (
            f"at most {PICTURES_MAX} pictures are shown, of what can be brought to {PICTURE_BYTES // 1000} kB, while the whole "
            f"answer, pictures in base64, is within {ANSWER_BYTES // 1000} kB"
        )
        yield f"[{len(pictures.left_out)} picture(s) not shown here: {limits}; {_saved(pictures.left_out, count, seen)}]"


def _saved(numbers: Sequence[int], count: int, seen: Seen) -> str:
    if seen.result.status == "running":
        return "they are saved when the cell ends"
    saved = sorted((int(match[1]), name) for name in seen.result.files if (match := _SAVED.fullmatch(name)))
    names = [name for _, name in saved]
    if len(names) == count:  # else some were not saved, or belong to an earlier answer: then all are named
        names = [names[number] for number in numbers]
    return f"see {listed(names)} in the workspace" if names else "and not saved either"


def streams(seen: Seen, name: str) -> str:
    """One stream's text as it reads, within the bounds of an answer."""
    text = apply_returns(output_text([output for output in seen.outputs if isinstance(output, Stream) and output.name == name]))
    more = "read_output(execution_id) has all of it" if seen.held else _NO_MORE
    return str(clean(preview(text, more, cut=seen.result.truncated)))
