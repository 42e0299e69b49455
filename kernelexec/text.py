"""Text within bounds: head and tail kept, cut at characters, carriage returns applied, always encodable.

For readers of untrusted text: names on a single line, invisible characters as escapes, and notes safe from imitation by output.
"""

from __future__ import annotations

import json
import math
import re
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any
from weakref import proxy

#: JSON that is nested deeper is cut there: readers of JSON give up at some 200 levels.
NESTING_MAX = 100
#: The elements of JSON of a kernel at most: its reader waits while they are made, for 0.1 µs to 1 µs each.
ELEMENTS_MAX = 250_000
#: Quotation marks of an element at most: two of the key, two of the text.
_QUOTES_PER_ELEMENT = 4
_OPEN_LINE_CHARS, _LONG_CHARS = 64 * 1024, 1024 * 1024
_PIECE_CHARS = 4096
#: The cost of a run in addition to its text, so that streams that alternate all the time stay bounded too.
RUN_BYTES = 512
#: A move of a terminal's cursor to an earlier line.
_MOVE = re.compile(r"\x1b\[(?P<lines>\d{0,4})[AF]")
_MOVE_OR_LINE = re.compile(r"(\n|\x1b\[\d{0,4}[AF])")


def make_json_encoder(*, separators: tuple[str, str] = (", ", ": "), allow_nan: bool = True) -> Callable[[object], str]:
    """Return a JSON encoder for values without cycles: a ``json.JSONEncoder`` with ``ensure_ascii=False``.

    ``JSONEncoder`` creates a C encoder for each value, in half of the time of a small value. Here the C encoder is reused.
    """
    encoder = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=separators, allow_nan=allow_nan)
    in_c: Any = json.encoder
    # Not public, and None where Python was built without it. Its first argument, None, is `check_circular=False`.
    if in_c.c_make_encoder is None:
        return encoder.encode
    item, key = separators
    pieces = in_c.c_make_encoder(None, encoder.default, in_c.encode_basestring, None, key, item, False, False, allow_nan)  # noqa: FBT003 - as it takes them
    return lambda value: "".join(pieces(value, 0))


def count_elements(json_text: str | bytes) -> int:
    """Return the largest possible number of elements of a JSON text, from commas and brackets, those in strings included."""
    if isinstance(json_text, bytes):
        return json_text.count(b",") + json_text.count(b"[") + json_text.count(b"{")
    return json_text.count(",") + json_text.count("[") + json_text.count("{")


def parse_untrusted_json(json_text: str | bytes) -> Any:  # noqa: ANN401 - JSON
    """Parse JSON from a kernel.

    Raises:
        ValueError: the JSON is malformed, nested too deep, or has more than 250,000 elements, which would hold up all sessions.
    """
    if has_more_elements(json_text, ELEMENTS_MAX):
        raise ValueError(f"it has more than {ELEMENTS_MAX:,} elements")
    try:
        return json.loads(json_text)
    except RecursionError as exc:
        raise ValueError("it is nested too deep") from exc


def has_more_elements(json_text: str | bytes, limit: int) -> bool:
    """Return whether JSON has more than ``limit`` elements, without parsing; signs in strings do not count."""
    # The cheap bound first: only a text that exceeds it, as one with much prose, is looked at without its strings.
    if count_elements(json_text) <= limit:
        return False
    json_bytes = json_text if isinstance(json_text, bytes) else json_text.encode("utf-8", "replace")
    # Backslashes first: in "\\" the second one does not escape the quotation mark. After that every mark begins or ends a
    # string, so every other piece is outside of strings. The next test bounds the number of those pieces.
    unescaped = json_bytes.replace(rb"\\", b"").replace(rb"\"", b"")
    if unescaped.count(b'"') > _QUOTES_PER_ELEMENT * limit:
        return True
    return sum(map(count_elements, unescaped.split(b'"')[::2])) > limit


def utf8_size(text: str) -> int:
    """Return the size of the text in UTF-8, in bytes."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def head_within(text: str, limit: int) -> str:
    """Return the longest prefix of whole characters of at most ``limit`` bytes."""
    return text[:limit] if text.isascii() else text.encode("utf-8", "replace")[:limit].decode("utf-8", "ignore")


def tail_within(text: str, limit: int) -> str:
    """Return the longest suffix of whole characters of at most ``limit`` bytes."""
    if limit <= 0:
        return ""
    return text[-limit:] if text.isascii() else text.encode("utf-8", "replace")[-limit:].decode("utf-8", "ignore")


def cut_middle(text: str, limit: int, show: Callable[[str], str] = str) -> str:
    """Return the whole text within ``limit`` bytes, or head and tail around a line with the number of missing bytes.

    ``show`` escapes the kept text after the cut, because a cut after the escapes could divide them.
    """
    size = utf8_size(text)
    if size <= limit:
        return show(text)
    head, tail = head_within(text, limit // 2), tail_within(text, limit - limit // 2)
    return f"{show(head)}\n[... {size - utf8_size(head) - utf8_size(tail)} bytes cut ...]\n{show(tail)}"


def clean(value: Any, depth: int = 0) -> Any:  # noqa: ANN401 - JSON in, JSON out
    """Return the value as portable JSON: lone surrogates escaped, NaN and infinity null, the nesting bounded."""
    return _map_texts(value, clean_text, depth)


def _map_texts(value: Any, change: Callable[[str], str], depth: int = 0) -> Any:  # noqa: ANN401 - as above
    """Return a JSON value with changed texts and keys, and bounded nesting."""
    match value:
        case str():
            return change(value)
        case float():
            return value if math.isfinite(value) else None
        case dict() | list() | tuple() if depth >= NESTING_MAX:
            return "[... nested deeper ...]"
        case dict():
            return {change(str(key)): _map_texts(item, change, depth + 1) for key, item in value.items()}
        case list() | tuple():
            return [_map_texts(item, change, depth + 1) for item in value]
        case _:
            return value


def clean_text(text: str) -> str:
    """Return the text with lone surrogates escaped, ready for encoding."""
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text


def apply_returns(text: str, line: str = "") -> str:
    """Return the text after carriage returns and backspaces: of a progress line only the last state.

    The text follows a processed ``line``. Only the end of ``line`` within reach of the backspaces is processed again.
    """
    # The whole line for each piece would take quadratic time over a spinner's many small pieces.
    if "\x08" in text:
        erased = text.count("\x08")
        line, text = line[:-erased], _erase(line[-erased:] + text)
    text = line + text
    if "\r" not in text:
        return text
    return "\n".join(_last_state(each) if "\r" in each else each for each in text.split("\n"))


def apply_cursor_moves(text: str) -> str:
    """Return the text after moves to earlier lines (``ESC [ n A``): of several progress lines only the last state."""
    if _MOVE.search(text) is None:
        return text
    lines, row, is_overwritten = [""], 0, False
    for piece in _MOVE_OR_LINE.split(text):
        if piece == "\n":
            row, is_overwritten = row + 1, True
            if row == len(lines):
                lines.append("")
        elif (move := _MOVE.fullmatch(piece)) is not None:
            row, is_overwritten = max(0, row - int(move["lines"] or 1)), True
        elif piece:
            lines[row] = piece if is_overwritten else lines[row] + piece
            is_overwritten = False
    return "\n".join(lines)


def _last_state(line: str) -> str:
    stripped = line.rstrip("\r")
    returns = len(line) - len(stripped)
    # As nbclient: a return erases its line unless a line end follows, and a second return counts as text. The last return
    # stays, since the next piece decides: text erases the line, a line end (\r\n) keeps it.
    if returns > 1:
        return "\r"
    return stripped[stripped.rfind("\r") + 1 :] + "\r" * returns


def _erase(text: str) -> str:
    kept: list[str] = []
    for char in text:
        if char == "\x08" and kept and kept[-1] not in "\n\x08":
            kept.pop()
        elif char != "\x08":
            kept.append(char)
    return "".join(kept)


class TextBudget:
    """Head and tail of a cell's stream within a limit in bytes, half each."""

    # A stream is a row of runs, since other outputs come between. The head fills once, run by run; then pieces go to the tail,
    # which loses its oldest text. `cut_run` is the last run with text in the head, where the marker of missing text stands:
    #
    #   run 1 [head] | run 2 [head][... n bytes cut ...] | run 3 [] | run 4 [tail] | run 5 [tail]

    __slots__ = ("__weakref__", "cut_bytes", "cut_run", "head_left", "limit", "seen_bytes", "tail", "tail_bytes", "tail_limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.head_left = limit // 2
        self.tail_limit = limit - limit // 2
        self.tail: deque[TextRun] = deque()
        self.tail_bytes = 0
        self.seen_bytes = 0
        self.cut_bytes = 0
        self.cut_run: TextRun | None = None

    def add(self, run: TextRun, text: str) -> None:
        """Keep a piece for a run: in the head while there is room, then in the tail, whose oldest text is dropped."""
        # While there is room in the head, `cut_run` is the run that was last added to; each further one costs RUN_BYTES.
        if self.head_left > 0 and self.cut_run not in (None, run):
            self.head_left = max(0, self.head_left - RUN_BYTES)
        if self.head_left > 0:
            head = head_within(text, self.head_left)
            add_piece(run.head, head)
            self.cut_run = run
            text = text[len(head) :]
            # A rest closes the head for good, even if the next character was only too wide for the last bytes: text that came
            # later must not stand before it.
            self.head_left = 0 if text else self.head_left - utf8_size(head)
        if not text:
            return
        if not self.tail or self.tail[-1] is not run:
            self.tail.append(run)
        add_piece(run.tail, text)
        self.tail_bytes += utf8_size(text)
        self._trim_tail()

    def cut(self, run: TextRun, text: str) -> None:
        """Leave out a piece of a run. Later text goes to the tail."""
        self.head_left = 0
        self.cut_bytes += utf8_size(text)
        self.cut_run = run if self.cut_run is None else self.cut_run

    def _trim_tail(self) -> None:
        while (over := self.tail_bytes + RUN_BYTES * (len(self.tail) - 1) - self.tail_limit) > 0:
            run = self.tail[0]
            if not run.tail:
                self.tail.popleft()
                continue
            text = run.tail.pop(0)
            size = utf8_size(text)
            kept = tail_within(text, size - over) if size > over else ""
            if kept:
                run.tail.insert(0, kept)
            gone = size - utf8_size(kept)
            self.tail_bytes -= gone
            self.cut_bytes += gone
            if self.cut_run is None:
                self.cut_run = run


class TextRun:
    """Uninterrupted text of a stream, under the budget of the whole stream; the collector holds both.

    A run has only a weak reference to the budget. The budget refers to the runs, and a cycle would keep a cell's text until the
    garbage collector runs.
    """

    __slots__ = ("budget", "head", "line", "name", "tail")

    def __init__(self, name: str, budget: TextBudget) -> None:
        self.name = name
        self.budget: TextBudget = proxy(budget)
        self.head: list[str] = []
        self.tail: list[str] = []
        self.line = ""

    @property
    def is_empty(self) -> bool:
        """Whether the run has neither kept text nor the marker of cut text."""
        return not self.head and not self.tail and not self.line and self.budget.cut_run is not self

    def append(self, text: str) -> None:
        """Add text. An unfinished line is held back, so that a progress bar costs a single line.

        Of a long text with returns or backspaces only the ends are processed, which takes 100 ns a character. No more would be
        kept anyway.
        """
        self.budget.seen_bytes += utf8_size(text)
        begin, end = self.budget.limit, len(text) - self.budget.limit
        if end - begin > _LONG_CHARS and ("\r" in text or "\x08" in text):
            self._add(text[:begin])
            self.end()
            self.budget.cut(self, text[begin:end])
            text = text[end:]
        self._add(text)

    def _add(self, text: str) -> None:
        text = apply_returns(text, self.line)
        end = text.rfind("\n") + 1
        # A line that never ends counts as finished at some length: it must not fill the memory.
        if len(text) - end > min(_OPEN_LINE_CHARS, self.budget.limit // 8):
            end = len(text)
        if end:
            self.budget.add(self, text[:end])
        self.line = text[end:]

    def end(self) -> None:
        """End the run before another output: the unfinished line can no longer change."""
        if self.line:
            self.budget.add(self, self.line)
            self.line = ""

    def text(self) -> str:
        """Return the kept text, with a line in the place of cut text."""
        budget = self.budget
        marker = ""
        if budget.cut_bytes and budget.cut_run is self:
            marker = f"\n[... {budget.cut_bytes} bytes of {self.name} cut: read_output has them ...]\n"
        return "".join((*self.head, marker, *self.tail, self.line))


def add_piece(pieces: list[str], text: str) -> None:
    """Append a piece. Small pieces are joined, because a text object costs about 50 bytes more than the text."""
    if pieces and len(pieces[-1]) < _PIECE_CHARS:
        pieces[-1] += text
    else:
        pieces.append(text)


#: Characters that reorder text (Unicode's ``Bidi_Control``), and those that no font shows but models read: deprecated
#: controls, interlinear annotations, and plane 14 with its tags and variation selectors.
BIDI_AND_TAGS = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u206f\ufff9-\ufffb\U000e0000-\U000e0fff"
_INVISIBLE = re.compile(f"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f{BIDI_AND_TAGS}]")
_INVISIBLE_IN_JSON = re.compile(f"[\x7f-\x9f{BIDI_AND_TAGS}]")
#: Characters that are not printable for Python, and usual in names: spaces of typography, and joiners of emoji.
_USUAL = frozenset("\xa0\u200c\u200d\u202f\u3000")
_NOTE = "[kernelexec: "
#: Characters that a reader does not see: ``Default_Ignorable_Code_Point`` of Unicode 16's DerivedCoreProperties.txt, and the
#: blank of Braille.
_IGNORABLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff"
    "\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_UNSEEN, _BLANK = f"[{_IGNORABLE}]*", rf"[\s{_IGNORABLE}]*"
_NOTE_LIKE = re.compile(rf"\[{_BLANK}{_UNSEEN.join('kernelexec')}{_BLANK}(?=[:\]])", re.IGNORECASE)
#: A mark within a note of ours, which may explain the escaped form or quote it.
_NOTE_IN_NOTE = re.compile(rf"(?<!\\){_NOTE_LIKE.pattern}", re.IGNORECASE)
_IGNORED = re.compile(f"[{_IGNORABLE}]")


def escape_invisible(text: str) -> str:
    r"""Return the text with control characters (but tab and line ends), bidirectional controls and tags as ``\u202e``."""
    if text.isascii() and text.isprintable():
        return text
    return _INVISIBLE.sub(lambda match: escape_char(match[0]), clean_text(text))


def escape_unseen(text: str) -> str:
    r"""Return the text as ``escape_invisible`` does, with what terminals usually get: escape sequences and returns."""
    return _INVISIBLE_IN_JSON.sub(lambda match: escape_char(match[0]), text)


def escape_char(char: str) -> str:
    r"""Return a character as in Python's source: ``\n``, ``\x1b``, ``\u202e``."""
    return char.encode("unicode_escape").decode("ascii")


def escape_line(text: str) -> str:
    r"""Return the text on a single line: line ends, controls and invisible characters are shown as escapes such as ``\n``."""
    if text.isprintable() and text.isascii():
        return text
    return "".join(char if _is_usual(char) else escape_char(char) for char in text)


def _is_usual(char: str) -> bool:
    return (char.isprintable() or char in _USUAL) and _INVISIBLE.match(char) is None


def format_note(line: str) -> str:
    """Return a line of ours for a model, with a mark. Output after ``escape_notes`` and names in the line have no such mark."""
    text = f"{line}]"  # with the end, which completes a mark at the end of the line
    return f"{_NOTE}{escape_line(_NOTE_IN_NOTE.sub(_escape_mark, text) if '[' in text else text)}"


def format_notes(lines: Iterable[str]) -> str:
    """Return lines of ours for a model, each marked."""
    return "\n".join(map(format_note, lines))


def escape_notes(text: str) -> str:
    r"""Return a cell's text for a model: a mark of our notes becomes ``\[kernelexec:``, with hidden characters as escapes."""
    return _NOTE_LIKE.sub(_escape_mark, text) if "[" in text else text


def escape_notes_in_json(json_text: str) -> str:
    r"""Return the same JSON for a model, with marks of our notes in strings as ``\u005bkernelexec:``."""
    return _NOTE_LIKE.sub(lambda mark: "\\u005b" + mark[0][1:], json_text)


def _escape_mark(mark: re.Match[str]) -> str:
    return "\\" + _IGNORED.sub(lambda match: escape_char(match[0]), mark[0])


def quote_line(text: str) -> str:
    """Return a cell's text on a single line for a reader; nothing looks like a note of ours."""
    return escape_line(escape_notes(text))


def quote_output(text: str) -> str:
    """Return a cell's text for a model: nothing is invisible, and nothing looks like a note of ours."""
    return escape_notes(escape_invisible(text))


def escape_value(value: Any) -> Any:  # noqa: ANN401 - JSON in, JSON out
    """Return a JSON value with the invisible characters of texts and keys as escapes."""
    return _map_texts(value, escape_invisible)


def has_invisible(json_text: str) -> bool:
    """Return whether a JSON text, in which controls are escapes already, has invisible characters."""
    return not json_text.isascii() and _INVISIBLE_IN_JSON.search(json_text) is not None
