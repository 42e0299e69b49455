"""Tables for models: one line per row, without the padding and wrapping of tables for people."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

from kernelexec.results import DisplayData, ExecuteResult, Output

#: The largest table that is parsed, in characters of HTML.
_HTML_CHARS = 2_000_000
#: Characters allowed for a table even if its plain text is shorter, since that omits columns by terminal width.
_WIDE_CHARS = 8000
_FRAME = re.compile(r'<table\b[^>]*\bclass="[^"]*\bdataframe\b')
#: The default text of an object without a repr.
_NO_REPR = re.compile(r"<[\w.]+ (?:object )?at 0x[0-9a-f]+>\s*")


def compact_table(output: Output) -> Output:
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
