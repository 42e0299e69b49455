"""The terminal: the one door for text to it, which lets colours pass and no other command of the text.

``protect_terminal`` puts the door before stdout and stderr, so nothing that is printed can miss it: output of kernels, names of
files and sessions, errors, tracebacks, logs. A text that comes in pieces has a ``TerminalFilter`` of its own before that.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Any, TextIO, cast

from kernelexec.untrusted_text import BIDI_AND_TAGS, escape_char

#: The sign of our notes on a terminal. In any other text it is shown as its code.
NOTE_SIGN = "\N{WHITE DIAMOND CONTAINING BLACK SMALL DIAMOND}"
#: Ends all colours and styles.
RESET = "\x1b[0m"
#: The longest sequence that may pass; a longer one is dropped, and so is the text of a command to the terminal.
_SEQUENCE_CHARS = 64
_ROWS_MAX = 1000
_C1_COMMANDS = dict(zip("\x90\x98\x9b\x9d\x9e\x9f", "PX[]^_", strict=True))
_STRINGS, _CAN, _SUB = frozenset("]P_^X"), "\x18", "\x1a"
_SPECIAL = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff{NOTE_SIGN}{BIDI_AND_TAGS}]")
_COLOURS = re.compile(r"[0-9;:]*")
#: The number of parameters that follow a colour's 38, 48 or 58 and its kind: a palette's index, or red, green and blue.
_COLOUR_WORDS = {"5": 1, "2": 3}


class TerminalFilter:
    """A filter of a text that comes in pieces: the result does not depend on how it is cut.

    Colours and the erasure of a line pass, tab, newline, carriage return and backspace too. Moves to earlier lines pass with
    ``moves``, up to the first line of this text. Every other sequence is dropped: titles, clipboards, links, questions to the
    terminal, whole-screen commands. Other control characters and bidirectional controls are shown as codes.
    """

    def __init__(self, *, moves: bool = False) -> None:
        self.moves = moves
        self.is_styled = False
        """Whether the text has left a colour or style on."""
        self._sequence = ""
        """The beginning of a sequence: ``ESC``, what follows it, but nothing of a string."""
        self._string = False
        self._rows = 0

    def feed(self, text: str) -> str:
        """Return what of the next piece may go to the terminal."""
        pieces, begin = [], 0
        while begin < len(text):
            if self._sequence or self._string:
                pieces.append(self._step(text[begin]))
                begin += 1
                continue
            special = _SPECIAL.search(text, begin)
            end = len(text) if special is None else special.start()
            pieces.append(text[begin:end])
            self._count_rows(text[begin:end])
            if special is not None:
                pieces.append(self._step(special[0]))
            begin = end + 1
        return "".join(pieces)

    def flush(self) -> None:
        """Forget an unfinished sequence, and the lines so far: other text follows."""
        self._sequence, self._string, self.is_styled = "", False, False
        self.forget_rows()

    def forget_rows(self) -> None:
        """Let no move go to an earlier line than the present one: other text may be there."""
        self._rows = 0

    def _step(self, char: str) -> str:
        """Return what may go to the terminal once a character has come."""
        if self._string and char >= " " and not "\x7f" <= char <= "\x9f":
            return ""
        if char in _C1_COMMANDS:
            return self._begin(_C1_COMMANDS[char])
        if char == "\x1b":
            self._sequence, self._string = char, False
            return ""
        if "\x80" <= char <= "\x9f" or char == "\x7f" or self._string or char < " ":
            return self._end_sequence(char)
        if not self._sequence:
            return self._show(char)
        return self._extend(char)

    def _begin(self, kind: str) -> str:
        self._sequence, self._string = ("", True) if kind in _STRINGS else (f"\x1b{kind}", False)
        return ""

    def _end_sequence(self, char: str) -> str:
        """Return a control character, which ends a sequence or string."""
        was_string = self._string
        self._sequence, self._string = "", False
        if char in "\n\r\t\b":
            self._count_rows(char)
            return char
        is_end = (was_string and char == "\x07") or char in (_CAN, _SUB, "\x07", "\x7f") or char >= "\x80"
        return "" if is_end else escape_char(char)

    def _extend(self, char: str) -> str:
        """Return a sequence if a character has completed it and it may pass."""
        sequence = self._sequence + char
        if sequence == f"\x1b{char}":
            if char in _STRINGS or char == "[":
                return self._begin(char)
            self._sequence = sequence if " " <= char <= "/" else ""
            return ""
        is_csi = sequence[1] == "["
        if not ("@" <= char <= "~" if is_csi else "0" <= char <= "~"):
            self._sequence = sequence[: _SEQUENCE_CHARS + 1]
            if char > "~":
                self._sequence = ""
            return ""
        self._sequence = ""
        return self._pass(sequence[2:-1], char) if is_csi and len(sequence) <= _SEQUENCE_CHARS else ""

    def _pass(self, parameters: str, final: str) -> str:
        match final:
            case "m" if _COLOURS.fullmatch(parameters) and not _conceals(parameters):
                self.is_styled = parameters.strip("0;") != ""
            case "K" if parameters in ("", "0", "1", "2"):
                pass
            case "A" | "F" if self.moves and ((parameters.isascii() and parameters.isdecimal()) or not parameters):
                rows = min(max(int(parameters[:9] or 1), 1), self._rows)
                self._rows -= rows
                return f"\x1b[{rows}{final}" if rows else "\r" * (final == "F")
            case _:
                return ""
        return f"\x1b[{parameters}{final}"

    def _show(self, char: str) -> str:
        return escape_char(char) if _SPECIAL.match(char) is not None else char

    def _count_rows(self, text: str) -> None:
        if self.moves:
            self._rows = min(self._rows + text.count("\n"), _ROWS_MAX)


def _conceals(parameters: str) -> bool:
    """Return whether a style makes text invisible: its parameters have an 8 that is no part of a colour."""
    words = parameters.split(";")
    index = 0
    while index < len(words):
        if words[index] in ("38", "48", "58"):
            index += 2 + _COLOUR_WORDS.get(words[index + 1] if index + 1 < len(words) else "", 0)
            continue
        if words[index].lstrip("0") == "8":
            return True
        index += 1
    return False


def neutralise(text: str) -> str:
    """Return what of a whole text may go to a terminal."""
    return TerminalFilter().feed(text)


class TerminalStream:
    """A text stream to a terminal: whatever is written is filtered, except by ``write_filtered``."""

    others = 0
    """The number of texts of others than a kernel that went to terminals, above which no move of a kernel may go."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write a whole text, filtered."""
        TerminalStream.others += 1
        self.stream.write(neutralise(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write texts, filtered."""
        for line in lines:
            self.write(line)

    def write_filtered(self, text: str) -> int:
        """Write a text that a ``TerminalFilter`` or we ourselves have made."""
        return self.stream.write(text)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - of the stream
        return getattr(self.stream, name)


def protect_terminal() -> None:
    """Put the door before stdout and stderr, where they are terminals."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, TerminalStream) and stream.isatty():
            setattr(sys, name, cast("TextIO", TerminalStream(stream)))


def inner_stream(stream: TextIO) -> TextIO:
    """Return the stream for text of our own that moves the cursor, such as a progress bar."""
    return stream.stream if isinstance(stream, TerminalStream) else stream


def format_remark(stream: TextIO, line: str) -> str:
    """Return a line of ours for ``write_filtered``, with the sign on a terminal that can show it.

    The lines after the first one are indented, so that no name in a message can begin another remark.
    """
    text = "\n    ".join(line.split("\n"))
    if not isinstance(stream, TerminalStream):
        return f"kernelexec: {text}\n"
    TerminalStream.others += 1
    try:
        NOTE_SIGN.encode(stream.encoding or "ascii")
    except UnicodeEncodeError:
        return f"kernelexec: {neutralise(text)}\n"
    return f"{NOTE_SIGN} kernelexec: {neutralise(text)}\n"
