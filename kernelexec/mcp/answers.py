"""Answers for a model: a text, with the server's status line, notes and the cell's output, and then pictures.

The status line has the first place, where output cannot be, so models can trust it, also with clients that pass only the first
block to a model. Lines of notes are marked as ``[kernelexec: ...]``, and such marks in output are changed.
"""

from __future__ import annotations

import base64
import json
import mimetypes
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self, TypeVar, cast
from urllib.parse import quote

import anyio
import anyio.to_thread
from fastmcp import Context
from fastmcp.tools import ToolResult
from mcp.types import AudioContent, ImageContent, ResourceLink, TextContent

from kernelexec.mcp.elicitation import PartialResult
from kernelexec.mcp.server_options import PicturePlace
from kernelexec.mcp.sessions import SessionService
from kernelexec.results import (
    Audio,
    ExecutionResult,
    Image,
    Stream,
    best_image,
    model_notes,
    output_text,
    read_audio,
)
from kernelexec.results.media import PICTURE_BYTES, PICTURES_MAX, fit_picture, is_fit
from kernelexec.results.model_answers import head_line, late_text, shown_outputs
from kernelexec.results.one_line import JOINED_MAX, join_names
from kernelexec.session.lifecycle import short_turns
from kernelexec.text import apply_returns, clean, format_note, format_notes, quote_line, quote_output, utf8_size

#: Characters of output that one answer shows; ``read_output`` has the rest.
PREVIEW_CHARS = 20_000

T = TypeVar("T")
#: The largest answer that clients accept, and what its content may take of it.
ANSWER_BYTES, ROOM_BYTES = 900_000, 898_000
#: What else helps a cell over its timeout here.
TIMEOUT_ADVICE = ", and a small wait to continue meanwhile"
_UNDO_NOTE = "undo takes back what this cell has changed, except for files"
#: Newlines around a display's text.
_SEPARATORS = 2
_NOT_READABLE = "it ran before, and its output is no longer available"
_LINKS_MAX = 10
#: The threads in which texts are made.
_THREADS = anyio.CapacityLimiter(4)
_SAVED = re.compile(r"outputs/cell-\d+-(\d+)(?:-\d+)?\.(?:png|jpg|gif|webp|svg)")
#: The number of sounds in an answer.
SOUNDS_MAX = 2
#: The beginnings of files by their media types; another beginning would break the whole conversation.
_BEGINNINGS: dict[str, tuple[bytes, ...]] = {
    "audio/wav": (b"RIFF",),
    "audio/x-wav": (b"RIFF",),
    "audio/mpeg": (b"ID3", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2"),
    "audio/ogg": (b"OggS",),
    "audio/flac": (b"fLaC",),
}
#: The key of the record.
RECORD = "kernelexec/result"
_BULKY = ("outputs", "late")
#: Fields of the short form that are left out unless they are set.
_OPTIONAL = ("interrupted", "cause", "truncated")
_SECONDS_DIGITS = 3
#: The key in the ``_meta`` of a request by which a program asks for all fields: its value is ``whole``.
RECORD_META = "kernelexec/record"
#: The first protocol revision with sounds; revisions are dates.
_SOUNDS_VERSION = "2025-03-26"
#: Number of pictures to try, as some may be unusable.
_TRIED = 2 * PICTURES_MAX
_ENVELOPE_BYTES = 100
#: One decoder at a time: a picture of 64 megapixels takes 256 MB of memory.
_ONE_THREAD = anyio.CapacityLimiter(1)


async def render_answer(partial_result: PartialResult, options: AnswerOptions) -> ToolResult:
    """Return the answer to a call: content only, since some clients hide the content of an answer with structure.

    The blocks are the text, pictures, sounds and, as an option, links to files.
    """
    result = partial_result.result
    record = make_record(partial_result, is_whole=options.has_whole_record)
    output, late = await anyio.to_thread.run_sync(_render_texts, partial_result, limiter=_THREADS)
    images = [image for output in partial_result.outputs if (image := best_image(output)) is not None]
    shown = [] if options.pictures == "files" else images
    files = [name for name in result.files if options.pictures != "inline" or not _SAVED.fullmatch(name)]
    links = _make_links(result.session, files) if options.has_links else []
    head = head_line(result, has_output=bool(output or images), is_continued=bool(partial_result.since))
    notes = list(_list_notes(partial_result, files[len(links) :]))
    if options.has_undo and _can_be_undone(result):
        notes.append(_UNDO_NOTE)
    blocks = [json.dumps(link.model_dump(mode="json")) for link in links]
    # Clients limit the JSON of the whole answer, so all is counted as JSON with its escapes; pictures and sounds get the rest.
    room = ROOM_BYTES - len(json.dumps([head, notes, output, late, *blocks])) - len(json.dumps(record))
    pictures = await select_pictures(shown, room)
    room -= sum(len(picture.data) for picture in pictures.shown)
    sounds = select_sounds(list(filter(None, map(read_audio, partial_result.outputs))), room) if options.has_sounds else []
    # These notes are known only now, so ROOM_BYTES leaves a margin below ANSWER_BYTES.
    notes += _describe_hidden_pictures(pictures, len(shown), partial_result)
    text = "\n".join(filter(None, (head, format_notes(notes), output, late)))
    content = [TextContent(type="text", text=text), *pictures.shown, *sounds, *links]
    return ToolResult(content=content, meta={RECORD: record}, is_error=result.status == "aborted")


def _can_be_undone(result: ExecutionResult) -> bool:
    """Return whether a failed Python cell may have an earlier checkpoint; a kernel's first cell has none."""
    return (result.status, result.state, result.language) == ("error", "kept", "python") and result.execution_count != 1


def _make_links(session: str, files: Sequence[str]) -> list[ResourceLink]:
    """Return links to the first files of a session's workspace, as resources of this server."""
    return [
        ResourceLink(
            type="resource_link",
            uri=f"kernelexec://sessions/{session}/files/{quote(name)}",
            name=quote_line(name),
            mime_type=mimetypes.guess_type(name)[0],
        )
        for name in files[:_LINKS_MAX]
    ]


def count_json_bytes(value: object) -> int:
    """Return the size of a value in an answer."""
    return utf8_size(json.dumps(value, ensure_ascii=False))


def fit_answer(make: Callable[[int], T], limit: int) -> T:
    """Return a structured answer with ``limit`` items or characters, halved until clients accept the size."""
    while True:
        answer: Any = make(limit)
        text = json.dumps(asdict(answer), ensure_ascii=False)  # it is sent a second time as text
        if limit <= 1 or utf8_size(text) + count_json_bytes(text) <= ROOM_BYTES:
            return cast("T", answer)
        limit //= 2


def preview(text: str, more: str, *, is_cut: bool = False, chars: int = PREVIEW_CHARS, show: Callable[[str], str] = str) -> str:
    """Return head and tail of a text, with a note about the omitted characters and ``more``, a hint where to read them.

    Args:
        text: the text, returned whole if short enough.
        more: location of the omitted part.
        is_cut: whether the text itself may be incomplete.
        chars: number of characters to keep.
        show: escapes the kept text; applied after the cut, since a cut could divide an escaped mark.
    """
    if len(text) <= chars:
        return show(text)
    half = max(chars // 2, 1)
    gap = format_note(f"{'at least ' * is_cut}{len(text) - 2 * half} characters left out: {more}")
    return f"{show(text[:half])}\n{gap}\n{show(text[-half:])}"


def _render_texts(partial_result: PartialResult) -> tuple[str, str]:
    """Return the texts of output and late output, in a thread, since rendering may take a second in all."""
    with short_turns():
        return _render_output(partial_result), late_text(partial_result.result)


def _render_output(partial_result: PartialResult) -> str:
    """Return the text of the output; empty for blank output."""
    result = partial_result.result
    partial_result = replace(partial_result, outputs=tuple(shown_outputs(partial_result.outputs, result.language)))
    text = apply_returns(output_text(partial_result.outputs))
    more = f"read_output(execution_id='{result.execution_id}'{_render_offset(partial_result)}) continues"
    if 2 * sum(len(output.text) for output in partial_result.outputs if isinstance(output, Stream)) < len(text):
        more = "print the part that you need"  # pages are of streams
    output = _preview_output(text, more, partial_result)
    return output if output.strip() else ""


def _preview_output(text: str, more: str, partial_result: PartialResult) -> str:
    more = more if partial_result.is_readable else _NOT_READABLE
    return preview(text, more, is_cut=partial_result.result.truncated, show=quote_output)


def _list_notes(partial_result: PartialResult, files: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the notes."""
    result = partial_result.result
    if result.status == "running":
        waits = f"it waits behind {partial_result.queue_position} other(s)" if partial_result.queue_position else "it continues"
        call = f"wait_execution(execution_id='{result.execution_id}', cursor={partial_result.cursor})"
        yield f"{waits}: call {call} to collect it; do not send it again"
    elif result.status == "aborted":
        yield "it did not run"
    if partial_result.missed_bytes:
        yield f"{partial_result.missed_bytes} earlier bytes are no longer kept here; read_output has them"
    yield from model_notes(replace(result, files=tuple(files)), timeout_advice=TIMEOUT_ADVICE)


def _render_offset(partial_result: PartialResult) -> str:
    """Return the offset argument: the end of the preview's head in the streams, without displays, so never too large."""
    left, size = PREVIEW_CHARS // 2, 0
    for output in partial_result.outputs if not partial_result.since else ():
        if left <= 0:
            break
        text = output_text([output])
        is_stream = isinstance(output, Stream)
        size += utf8_size(text[:left]) if is_stream else 0
        left -= len(text) + (0 if is_stream else _SEPARATORS)
    return f", offset={size}" if size else ""


def _describe_hidden_pictures(pictures: InlinePictures, count: int, partial_result: PartialResult) -> Iterator[str]:
    """Describe the workspace files of omitted or shrunken pictures."""
    if pictures.smaller:
        files = _describe_saved_files(pictures.smaller, count, partial_result)
        yield f"{len(pictures.smaller)} picture(s) shown smaller; {files}"
    if pictures.left_out:
        limits = (
            f"an answer has at most {PICTURES_MAX} pictures of at most {PICTURE_BYTES // 1000} kB each, "
            f"and {ANSWER_BYTES // 1000} kB in all, pictures in base64"
        )
        files = _describe_saved_files(pictures.left_out, count, partial_result)
        yield f"{len(pictures.left_out)} picture(s) not shown here: {limits}; {files}"


def _describe_saved_files(numbers: Sequence[int], count: int, partial_result: PartialResult) -> str:
    if partial_result.result.status == "running":
        return "they will be saved when the cell ends"
    saved = sorted((int(match[1]), name) for name in partial_result.result.files if (match := _SAVED.fullmatch(name)))
    names = [name for _, name in saved]
    if len(names) == count:  # else some were not saved or belong to an earlier answer: list all
        names = [names[number] for number in numbers]
    return f"see {join_names(names)} in the workspace" if names else "they were not saved"


def render_stream(partial_result: PartialResult, name: str) -> str:
    """Return a stream's text, shortened to fit an answer."""
    outputs = [output for output in partial_result.outputs if isinstance(output, Stream) and output.name == name]
    return _preview_output(apply_returns(output_text(outputs)), "read_output(execution_id) has all of it", partial_result)


def select_sounds(sounds: Sequence[Audio], room: int) -> list[AudioContent]:
    """Return the first usable sounds within ``room`` bytes of an answer; the others are files of the workspace."""
    selected: list[AudioContent] = []
    for sound in sounds:
        data = base64.b64encode(sound.content).decode("ascii")
        # An unknown type has no beginnings, and startswith(()) is false. The type is the cell's word, not proven by the bytes.
        if len(selected) < SOUNDS_MAX and len(data) <= room and sound.content.startswith(_BEGINNINGS.get(sound.mime, ())):
            room -= len(data)
            selected.append(AudioContent(type="audio", data=data, mime_type=sound.mime))
    return selected


def make_record(partial_result: PartialResult, *, is_whole: bool) -> dict[str, Any]:
    """Return the result as a record without outputs, whole or in its short form of at most 300 bytes."""
    result = partial_result.result
    progress: dict[str, Any] = {}
    if result.status == "running":
        progress = {"cursor": partial_result.cursor, "place": partial_result.queue_position}
    if not is_whole:
        fields: dict[str, Any] = {"execution_id": result.execution_id, "status": result.status, "state": result.state}
        fields |= {"exit_code": result.exit_code, "kernel_epoch": result.kernel_epoch, "total_bytes": result.total_bytes}
        fields |= {"seconds": round(result.timing.run, _SECONDS_DIGITS)}
        return fields | {name: value for name in _OPTIONAL if (value := getattr(result, name))} | progress
    plain = {key: value for key, value in result.to_dict().items() if key not in _BULKY}
    for key in ("lost_names", "files", "notes"):
        plain[key] = plain[key][:JOINED_MAX]
    record: dict[str, Any] = clean(plain | progress)
    return record


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """Options of an answer: place of pictures, optional contents, and whether a note may name the tool ``undo``."""

    pictures: PicturePlace = "both"
    has_links: bool = False
    has_sounds: bool = False
    has_whole_record: bool = False
    has_undo: bool = False

    @classmethod
    def of(cls, context: Context, sessions: SessionService) -> Self:
        """Return the options of a call's answer."""
        options, request = sessions.options, context.request_context
        return cls(
            options.pictures,
            has_links=options.links and "files" in options.groups,
            has_sounds=options.pictures != "files" and context.session.protocol_version >= _SOUNDS_VERSION,
            has_whole_record=request is not None and (request.meta or {}).get(RECORD_META) == "whole",
            has_undo=sessions.has_checkpoints and "checkpoints" in options.groups,
        )


@dataclass(frozen=True, slots=True)
class InlinePictures:
    """Pictures of an answer, and the numbers of shrunken and omitted pictures."""

    shown: list[ImageContent]
    smaller: list[int]
    left_out: list[int]


async def select_pictures(images: Sequence[Image], room: int) -> InlinePictures:
    """Return the first usable pictures within ``room`` bytes of an answer."""
    pictures = InlinePictures([], [], [])
    for number, image in enumerate(images):
        fit, smaller = None, False
        if len(pictures.shown) < PICTURES_MAX and number < _TRIED:
            if is_fit(image):  # passed on as it is, without a wait for the thread
                fit = image
            else:
                fit, smaller = await anyio.to_thread.run_sync(fit_picture, image, limiter=_ONE_THREAD)
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
