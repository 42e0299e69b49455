"""Untrusted text for readers: names on one line, invisible characters as escapes, and notes that output cannot imitate."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from kernelexec.text import NESTING_MAX, clean_text

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
    r"""Return the text on one line: line ends, controls and invisible characters are shown as escapes such as ``\n``."""
    if text.isprintable() and text.isascii():
        return text
    return "".join(char if _is_usual(char) else escape_char(char) for char in text)


def _is_usual(char: str) -> bool:
    return (char.isprintable() or char in _USUAL) and _INVISIBLE.match(char) is None


def format_note(line: str) -> str:
    """Return a line of ours for a model: marked, which no output is after ``escape_notes``, nor any name in the line."""
    text = f"{line}]"  # with the end, which completes a mark at the end of the line
    return f"{_NOTE}{escape_line(_NOTE_IN_NOTE.sub(_escape_mark, text) if '[' in text else text)}"


def format_notes(lines: Iterable[str]) -> str:
    """Return lines of ours for a model, each marked."""
    return "\n".join(map(format_note, lines))


def escape_notes(text: str) -> str:
    r"""Return a cell's text for a model: a mark of our notes in it becomes ``\[kernelexec:``, and what it hides is shown."""
    return _NOTE_LIKE.sub(_escape_mark, text) if "[" in text else text


def escape_notes_in_json(json_text: str) -> str:
    r"""Return the same JSON for a model, with marks of our notes in its strings as ``\u005bkernelexec:``."""
    return _NOTE_LIKE.sub(lambda mark: "\\u005b" + mark[0][1:], json_text)


def _escape_mark(mark: re.Match[str]) -> str:
    return "\\" + _IGNORED.sub(lambda match: escape_char(match[0]), mark[0])


def quote_line(text: str) -> str:
    """Return a cell's text for a reader on one line, in which nothing looks like a note of ours."""
    return escape_line(escape_notes(text))


def quote_output(text: str) -> str:
    """Return a cell's text for a model: nothing in it is invisible, and nothing looks like a note of ours."""
    return escape_notes(escape_invisible(text))


def escape_value(value: Any, depth: int = 0) -> Any:  # noqa: ANN401 - JSON in, JSON out
    """Return a JSON value whose texts and keys have no invisible characters."""
    match value:
        case str():
            return escape_invisible(value)
        case dict() if depth < NESTING_MAX:
            return {escape_invisible(str(key)): escape_value(item, depth + 1) for key, item in value.items()}
        case list() | tuple() if depth < NESTING_MAX:
            return [escape_value(item, depth + 1) for item in value]
        case _:
            return value


def has_invisible(json_text: str) -> bool:
    """Return whether a JSON text, in which controls are escapes already, has invisible characters."""
    return not json_text.isascii() and _INVISIBLE_IN_JSON.search(json_text) is not None
