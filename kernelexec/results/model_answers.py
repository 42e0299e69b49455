"""Answers for models about results: a text, followed by pictures.

The first line of the text is ours, as proven by its place, and gives the end of the cell. Our notes follow, each marked as
``[kernelexec: ...]``: bounded lines about the state, hints and files. The output comes last. Such marks are changed there, and
tables have a line per row, without the padding and wrapping of tables for people.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kernelexec.errors import InvalidRequest
from kernelexec.results.media import Image, select_pictures
from kernelexec.results.one_line import JOINED_MAX, join_names
from kernelexec.results.outputs import (
    DisplayData,
    Error,
    ExecuteResult,
    Output,
    best_image,
    output_text,
    read_displays,
    strip_ansi,
)
from kernelexec.results.readable import Tag, read_markup, read_tags
from kernelexec.results.result import ExecutionResult
from kernelexec.text import apply_returns, cut_middle, escape_line, format_note, format_notes, quote_output

_LATE_CHARS = 2000
#: From this length on a cell's value is shortened, and the shown characters.
_LONG_VALUE_CHARS, _VALUE_CHARS = 4000, 500
#: The shown characters of an exception, the mark of a frame's raising line, and the rule above a traceback.
_ERROR_CHARS = 450
_RAISED = re.compile(r"-+> ")
_RULE = re.compile(r"-{20,}")
_FIGURE = re.compile(r"<Figure size \d+x\d+ with \d+ Axes>")
#: The least limit of an output in bytes: a character.
LIMIT_MIN = 4
#: The limit of the characters of a line.
_LINE_CHARS = 4000
#: The largest readable table, in characters and in tags of HTML: 0.1 s at most.
_HTML_CHARS, _TAGS_MAX = 2_000_000, 40_000
#: The limits of all tables of an answer, in characters and in tags.
_ALL_CHARS, _ALL_TAGS = 4_000_000, 100_000
#: The characters of the first tag of a table.
_TAG_CHARS = 1000
#: Characters allowed for a table even if the plain text is shorter, since plain text omits columns by terminal width.
_WIDE_CHARS = 8000
#: The default text of an object without a repr.
_NO_REPR = re.compile(r"<[\w.]+ (?:object )?at 0x[0-9a-f]+>\s*")


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """The answer of a tool after a cell; ``is_error`` means that the cell did not run."""

    text: str
    pictures: tuple[Image, ...] = ()
    is_error: bool = False

    def openai(self, call_id: str) -> dict[str, Any]:
        """Return the output of a function call for OpenAI's Responses API. A tool message of a chat has only ``text``."""
        pictures = [{"type": "input_image", "image_url": f"data:{each.mime};base64,{_encode(each)}"} for each in self.pictures]
        content = [{"type": "input_text", "text": self.text}, *pictures]
        return {"type": "function_call_output", "call_id": call_id, "output": content}

    def anthropic(self, tool_use_id: str) -> dict[str, Any]:
        """Return the block ``tool_result`` of Anthropic's Messages API."""
        sources = [{"type": "base64", "media_type": each.mime, "data": _encode(each)} for each in self.pictures]
        content = [{"type": "text", "text": self.text}, *({"type": "image", "source": source} for source in sources)]
        return {"type": "tool_result", "tool_use_id": tool_use_id, "content": content, "is_error": self.is_error}


def make_model_answer(result: ExecutionResult, limit: int, notes: Sequence[str] = ()) -> ModelAnswer:
    """Return the answer for a model, with further ``notes``; see ``ExecutionResult.for_model``."""
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < LIMIT_MIN:
        raise InvalidRequest(f"limit={limit!r:.80}: must be a whole number of bytes >= {LIMIT_MIN}.")
    output = apply_returns(output_text(tuple(shown_outputs(result.outputs, result.language)))).rstrip("\n")
    output = cut_middle(output, limit, quote_output) if output.strip() else ""
    pictures = tuple(select_pictures(result.images))
    if missing := len(result.images) - len(pictures):
        notes = (*notes, f"{missing} of {len(result.images)} pictures are not shown here.")
    head = head_line(result, has_output=bool(output or pictures))
    parts = (head, format_notes([*notes, *model_notes(result)]), output, late_text(result))
    return ModelAnswer("\n".join(filter(None, parts)), pictures, result.status == "aborted")


def head_line(result: ExecutionResult, *, has_output: bool, is_continued: bool = False) -> str:
    """Return the first line, on the end of the cell, such as ``[error · exit code 1 · 0.02 s · state kept]``.

    ``is_continued`` means that the answer has only new output, and earlier answers had the rest.
    """
    facts = []
    if result.status not in ("running", "unknown", "aborted"):
        facts += [f"exit code {result.exit_code}"] if result.status != "ok" else []
        facts += [f"ended by {result.interrupted}"] if result.interrupted else []
        facts += [f"{result.timing.run:.2f} s", f"state {result.state}"]
    if not has_output and result.status != "aborted":
        facts.append(_describe_no_output(result, is_continued=is_continued))
    return f"[{' · '.join([result.status, *facts])}]"


def _describe_no_output(result: ExecutionResult, *, is_continued: bool) -> str:
    if result.status == "unknown":
        return "its output is unknown"
    if result.truncated:
        return "no output could be kept"
    return "no new output" if is_continued else "no output"


def late_text(result: ExecutionResult) -> str:
    """Return output from after the cell's end as text below a note; empty without such output."""
    text = quote_output(output_text(result.late)[:_LATE_CHARS]) if result.late else ""
    return f"{format_note('output after the end of the cell')}\n{text}" if text else ""


def shown_outputs(outputs: Iterable[Output], language: str) -> Iterator[Output]:
    """Yield a cell's outputs with texts for a model: tables without padding, long values and tracebacks cut."""
    outputs = (output for output in outputs if _says_something(output, language))
    return map(_shorten_error, map(_shorten_value, read_displays(compact_tables(outputs))))


def _says_something(output: Output, language: str) -> bool:
    """Return whether a model needs the text of an output.

    The text of a figure adds nothing to its picture. The traceback of an interrupted command shows only our code.
    """
    if isinstance(output, Error):
        return language == "python" or output.ename != "KeyboardInterrupt"
    plain = output.data.get("text/plain") if isinstance(output, DisplayData) else None
    return not (isinstance(plain, str) and _FIGURE.fullmatch(plain) and best_image(output) is not None)


def _shorten_value(output: Output) -> Output:
    """Return a cell's value with a long repr cut to head and tail. Printed text is not cut here."""
    plain = output.data.get("text/plain") if isinstance(output, ExecuteResult) else None
    if not isinstance(output, ExecuteResult) or not isinstance(plain, str) or len(plain) <= _LONG_VALUE_CHARS:
        return output
    return replace(output, data=output.data | {"text/plain": _cut(plain, _VALUE_CHARS, ": print the part that you need")})


def _shorten_error(output: Output) -> Output:
    """Return a long exception with fewer lines: of consecutive library frames only the last, with its raising line only."""
    if not isinstance(output, Error):
        return output
    traceback = output.traceback or (f"{output.ename}: {output.evalue}",)
    if sum(map(len, traceback)) <= _ERROR_CHARS:
        return output
    entries: list[str] = []
    for entry in map(strip_ansi, traceback[_RULE.fullmatch(strip_ansi(traceback[0])) is not None :]):
        if entry.startswith("File "):
            head, *lines = entry.splitlines()
            entry = "\n".join([head, *filter(_RAISED.match, lines)])  # noqa: PLW2901 - the entry as it is shown
            if entries and entries[-1].startswith("File "):
                entries.pop()
        entries.append(entry.rstrip("\n"))
    return replace(output, traceback=(_cut("\n".join(entries), _ERROR_CHARS),))


def _cut(text: str, chars: int, advice: str = "") -> str:
    """Return a text of at most ``chars`` characters unchanged, and head and tail of a longer text."""
    if len(text) <= chars:
        return text
    half = chars // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} more characters{advice} ...\n{text[-half:]}"


def _encode(image: Image) -> str:
    return base64.b64encode(image.content).decode("ascii")


def model_notes(result: ExecutionResult, *, timeout_advice: str = "") -> list[str]:
    """Return the notes of a result, its state, hints and files, each on one line.

    Names chosen by the cell cannot break a line. ``timeout_advice`` ends the sentence about a timeout.
    """
    notes = list(result.notes)
    if result.state == "lost":
        names = _list_names(result)
        names_text = f": {names} are gone" if names else ""
        notes.append(f"state lost ({result.cause}){names_text}. Import and define again what you need; files are still there.")
    elif result.state == "restored" and result.lost_names:
        notes.append(f"state restored: {_list_names(result)} are gone. Files are as they are.")
    elif result.state == "new":
        notes.append("state new. Import and define again what you need.")
    if result.interrupted == "timeout":
        notes.append(f"Timeout: it was ended at its limit; give a larger timeout if it needs more time{timeout_advice}.")
    if result.diagnosis is not None and result.status == "error":
        notes.extend(f"hint: {hint}" for hint in result.diagnosis.hints)
    if result.status == "unknown":
        notes.append("Look whether its effects and variables are there. With a new request_id it would run again.")
    if result.files:
        notes.append(f"files made or changed: {join_names(result.files)}")
    return [escape_line(line[:_LINE_CHARS]) for line in notes]


def _list_names(result: ExecutionResult) -> str:
    """Return the names of lost variables. Invalid names of Python stand in quotes: a cell chose their text."""
    return ", ".join(name if name.isidentifier() else repr(name) for name in result.lost_names[:JOINED_MAX])


def compact_tables(outputs: Iterable[Output]) -> Iterator[Output]:
    """Yield the outputs of an answer with tables as a line per row, as far as the limits allow.

    The limits hold for all tables of an answer together, so that many tables take no longer than a few.
    """
    chars, tags = _ALL_CHARS, _ALL_TAGS
    for output in outputs:
        html = _read_table(output)
        html_tags = html.count("<")
        if html and len(html) <= min(chars, _HTML_CHARS) and html_tags <= min(tags, _TAGS_MAX):
            chars, tags = chars - len(html), tags - html_tags
            yield _replace_text(output, render_table(html))
        else:
            yield output


def _read_table(output: Output) -> str:
    """Return the HTML of a data frame, or of a table without a plain text of its own; empty for other outputs."""
    data = output.data if isinstance(output, DisplayData | ExecuteResult) else {}
    html, plain = data.get("text/html"), data.get("text/plain")
    if not isinstance(html, str) or not isinstance(plain, str):
        return ""
    has_no_repr = _NO_REPR.fullmatch(plain) is not None and "<table" in html
    return html if has_no_repr or _is_frame(html) else ""


def _replace_text(output: Output, text: str | None) -> Output:
    """Return an output with another text, unless the text is much longer."""
    assert isinstance(output, DisplayData | ExecuteResult)
    if text is None or len(text) > max(len(str(output.data["text/plain"])), _WIDE_CHARS):
        return output
    return replace(output, data=output.data | {"text/plain": text})


def _is_frame(html: str) -> bool:
    """Return whether the first table is a data frame of pandas."""
    begin = html.find("<table")
    tag = Tag("table", html[begin : begin + _TAG_CHARS].partition(">")[0])
    return begin >= 0 and "dataframe" in tag.attributes.get("class", "").split()


def render_table(html: str) -> str | None:
    """Return an HTML table as a line per row, with the text around the table; None for large tables and spanning cells."""
    if html.count("<") > _TAGS_MAX:
        return None
    tags = [token for token in read_tags(html, _TAGS_MAX + 1) if isinstance(token, Tag)]
    names = [tag.name for tag in tags]
    if names.count("table") != 1 or "tr" not in names or any(map(_spans_several, tags)):
        return None
    lines = read_markup(html, _TAGS_MAX + 1).splitlines()
    return "\n".join(f" {line}" if line.startswith("|") else line for line in lines)


def _spans_several(tag: Tag) -> bool:
    attributes = tag.attributes if tag.name in ("td", "th") else {}
    return any(attributes.get(name, "1") != "1" for name in ("rowspan", "colspan"))
