"""Lines of a log. Pure: whatever a text holds, each line begins with its time and says what it is about.

A line of a cell's own text stands behind ``in |`` (its source), ``out |`` or ``err |``; ``out +`` goes on with the cell's
line before, which had no end yet. What no printer would show is written as an escape, so that a text is nothing but text.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Literal

from kernelexec.results import Error, Output, Stream, output_text
from kernelexec.results.outputs import strip_ansi
from kernelexec.text import head_of, tail_of, utf8_size

Mark = Literal["in", "out", "err", "late", "note"]
#: About what a line costs beside its text, in bytes.
LINE_BYTES = 48


def now(pid: int) -> str:
    """What every line begins with: the time, as UTC, and the process that writes it."""
    return f"{datetime.now(UTC).isoformat(timespec='milliseconds').removesuffix('+00:00')}Z {pid}"


def plain(text: str) -> str:
    """One line as it can be shown: without colours, and with escapes for what is not printed."""
    text = strip_ansi(text)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\t" else _escaped(char) for char in text)


def quoted(head: str, mark: Mark, text: str, *, goes_on: bool = False) -> Iterable[str]:
    """The lines of a text, each behind its mark; ``goes_on`` where it continues a line."""
    for number, line in enumerate(text.removesuffix("\n").split("\n")):
        sign = "+" if goes_on and not number else "|"
        yield f"{head} {mark} {sign} {plain(line.removesuffix(chr(13)))}"


def bounded(head: str, mark: Mark, text: str, limit: int) -> Iterable[str]:
    """The lines of a text, or of its head and tail with what was left out."""
    size = utf8_size(text)
    if size <= limit:
        yield from quoted(head, mark, text)
        return
    yield from quoted(head, mark, head_of(text, limit // 2))
    yield f"{head} left out: {size - limit} bytes"
    yield from quoted(head, mark, tail_of(text, limit // 2))


def cost(text: str) -> int:
    """About how many bytes of a log a text takes."""
    return utf8_size(text) + LINE_BYTES * (text.count("\n") + 1)


def said(output: Output) -> tuple[Mark, str]:
    """An output as text, and where it belongs."""
    match output:
        case Stream():
            return ("err" if output.name == "stderr" else "out"), output.text
        case Error():
            return "err", output_text((output,))
        case _:
            return "out", output_text((output,))


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
