"""Tables as a model reads them: a line for each row, without the padding and wrapping of a table that a person reads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser

from kernelexec.results import DisplayData, ExecuteResult, Output

#: The largest table that is read, in characters of HTML.
_HTML_CHARS = 2_000_000
#: What a table may take though its own text is shorter: that leaves out columns by the width of a terminal.
_ROOM_CHARS = 8000
_FRAME = re.compile(r'<table\b[^>]*\bclass="[^"]*\bdataframe\b')
#: What stands for an object that has no text of its own.
_NAMELESS = re.compile(r"<[\w.]+ (?:object )?at 0x[0-9a-f]+>\s*")
_BETWEEN = " | "


def compacted(outputs: Sequence[Output]) -> tuple[Output, ...]:
    """The outputs, with a line for each row of a table."""
    return tuple(_compacted(output) for output in outputs)


def _compacted(output: Output) -> Output:
    if not isinstance(output, DisplayData | ExecuteResult):
        return output
    html, plain = output.data.get("text/html"), output.data.get("text/plain")
    if not isinstance(html, str) or not isinstance(plain, str) or len(html) > _HTML_CHARS:
        return output
    nameless = _NAMELESS.fullmatch(plain) is not None and "<table" in html
    if not nameless and _FRAME.search(html) is None:
        return output
    text = table_text(html)
    if text is None or len(text) > max(len(plain), _ROOM_CHARS):
        return output
    return replace(output, data=output.data | {"text/plain": text})


def table_text(html: str) -> str | None:
    """The table in a piece of HTML, a line for each row, and what is said below it; None where cells span others."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    if reader.odd or not reader.rows:
        return None
    lines = [_BETWEEN.join(row).rstrip() for row in reader.rows]
    return "\n".join([*lines, *reader.below])


class _Reader(HTMLParser):
    """Reads one table: its cells' texts, and paragraphs below it."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.below: list[str] = []
        self.odd = False
        self._tables = 0
        self._cell: list[str] | None = None
        self._skipped = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """See ``HTMLParser``."""
        if tag == "table":
            self._tables += 1
            self.odd |= self._tables > 1
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.odd |= any(name in ("rowspan", "colspan") and value != "1" for name, value in attrs) or not self.rows
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
