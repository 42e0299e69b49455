"""The answer for a model about a cell: one text, and the pictures that follow it.

The first line of the text is ours and says how the cell ended; its place proves that. Then come notes of ours, each marked as
``[kernelexec: ...]``, and the output, in which such a mark is changed.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kernelexec.errors import InvalidRequest
from kernelexec.results.media.images import Image
from kernelexec.results.media.model_pictures import select_pictures
from kernelexec.results.model.notes import model_notes
from kernelexec.results.model.tables import compact_tables
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
from kernelexec.results.result import ExecutionResult
from kernelexec.text import apply_returns, cut_middle
from kernelexec.untrusted_text import format_note, format_notes, quote_output

_LATE_CHARS = 2000
#: The value of a cell that is long, and how much of it is shown.
_LONG_VALUE_CHARS, _VALUE_CHARS = 4000, 500
#: How much of an exception is shown, the line of a frame that raised, and the line above a traceback.
_ERROR_CHARS = 450
_RAISED = re.compile(r"-+> ")
_RULE = re.compile(r"-{20,}")
_FIGURE = re.compile(r"<Figure size \d+x\d+ with \d+ Axes>")
#: The least limit of an output in bytes: a character.
LIMIT_MIN = 4


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """The answer of a tool that ran a cell; ``is_error`` says that the cell did not run."""

    text: str
    pictures: tuple[Image, ...] = ()
    is_error: bool = False

    def openai(self, call_id: str) -> dict[str, Any]:
        """Return the output of a function call for OpenAI's Responses API; in a chat's message of a tool ``text`` is all."""
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
    """Return the first line: how the cell ended, such as ``[error · exit code 1 · 0.02 s · state kept]``.

    The answer of a cell that ``is_continued`` has only what is new.
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
    """Return the text of output that came after the end of its cell, below a note."""
    text = quote_output(output_text(result.late)[:_LATE_CHARS]) if result.late else ""
    return f"{format_note('output after the end of the cell')}\n{text}" if text else ""


def shown_outputs(outputs: Iterable[Output], language: str) -> Iterator[Output]:
    """Yield a cell's outputs with the texts that a model needs: tables without padding, long values and tracebacks cut."""
    outputs = (output for output in outputs if _says_something(output, language))
    return map(_shorten_error, map(_shorten_value, read_displays(compact_tables(outputs))))


def _says_something(output: Output, language: str) -> bool:
    """Return whether a model needs the text of an output.

    That of a figure says nothing next to its picture, and an interrupt's in a command is of the code that runs commands.
    """
    if isinstance(output, Error):
        return language == "python" or output.ename != "KeyboardInterrupt"
    plain = output.data.get("text/plain") if isinstance(output, DisplayData) else None
    return not (isinstance(plain, str) and _FIGURE.fullmatch(plain) and best_image(output) is not None)


def _shorten_value(output: Output) -> Output:
    """Return the value of a cell with the beginning and the end of a long repr: what is printed is shown at length."""
    plain = output.data.get("text/plain") if isinstance(output, ExecuteResult) else None
    if not isinstance(output, ExecuteResult) or not isinstance(plain, str) or len(plain) <= _LONG_VALUE_CHARS:
        return output
    return replace(output, data=output.data | {"text/plain": _cut(plain, _VALUE_CHARS, ": print the part that you need")})


def _shorten_error(output: Output) -> Output:
    """Return a long exception with fewer lines: of a library's frames the last one, and of that the line that raised."""
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
    """Return the head and the tail of a text that is longer."""
    if len(text) <= chars:
        return text
    half = chars // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} more characters{advice} ...\n{text[-half:]}"


def _encode(image: Image) -> str:
    return base64.b64encode(image.content).decode("ascii")
