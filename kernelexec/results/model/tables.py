"""Tables for models: one line per row, without the padding and wrapping of tables for people."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from kernelexec.results.outputs import DisplayData, ExecuteResult, Output
from kernelexec.results.readable import Tag, read_tags

#: The largest table that is read, in characters and in tags of HTML: 0.1 s at most.
_HTML_CHARS, _TAGS_MAX = 2_000_000, 40_000
#: How much is read of all tables of an answer.
_ALL_CHARS, _ALL_TAGS = 4_000_000, 100_000
#: The characters of the first tag of a table.
_TAG_CHARS = 1000
#: Characters allowed for a table even if its plain text is shorter, since that omits columns by terminal width.
_WIDE_CHARS = 8000
#: The default text of an object without a repr.
_NO_REPR = re.compile(r"<[\w.]+ (?:object )?at 0x[0-9a-f]+>\s*")


class TableBudget:
    """How much HTML of tables is read yet: for one answer, so that many tables take no longer than a few."""

    def __init__(self) -> None:
        self._chars, self._tags = _ALL_CHARS, _ALL_TAGS

    def take(self, html: str) -> bool:
        """Return whether a table may be read, and count it."""
        tags = html.count("<")
        has_room = len(html) <= min(self._chars, _HTML_CHARS) and tags <= min(self._tags, _TAGS_MAX)
        if has_room:
            self._chars, self._tags = self._chars - len(html), self._tags - tags
        return has_room


def compact_tables(outputs: Iterable[Output]) -> Iterator[Output]:
    """Yield the outputs of an answer with tables as one line per row, until a bounded part of their HTML is read."""
    budget = TableBudget()
    return (compact_table(output, budget) for output in outputs)


def compact_table(output: Output, budget: TableBudget | None = None) -> Output:
    """Return an output with its table as one line per row; any other output as it is, and a table that is over the budget."""
    if not isinstance(output, DisplayData | ExecuteResult):
        return output
    html, plain = output.data.get("text/html"), output.data.get("text/plain")
    if not isinstance(html, str) or not isinstance(plain, str):
        return output
    has_no_repr = _NO_REPR.fullmatch(plain) is not None and "<table" in html
    if (not has_no_repr and not _is_frame(html)) or not (budget or TableBudget()).take(html):
        return output
    text = render_table(html)
    if text is None or len(text) > max(len(plain), _WIDE_CHARS):
        return output
    return replace(output, data=output.data | {"text/plain": text})


def _is_frame(html: str) -> bool:
    """Return whether the first table is a data frame of pandas."""
    begin = html.find("<table")
    tag = Tag("table", html[begin : begin + _TAG_CHARS].partition(">")[0])
    return begin >= 0 and "dataframe" in tag.attributes.get("class", "").split()


def render_table(html: str) -> str | None:
    """Return an HTML table as one line per row, with the paragraphs below it; None if cells span several, or if it is large."""
    if html.count("<") > _TAGS_MAX:
        return None
    reader = _TableReader()
    for token in read_tags(html, _TAGS_MAX + 1):
        if isinstance(token, str):
            reader.read_text(token)
        else:
            reader.read_tag(token)
    if reader.is_irregular or not reader.rows:
        return None
    return "\n".join([*(" | ".join(row).rstrip() for row in reader.rows), *reader.below])


class _TableReader:
    """Reader of one table: the texts of its cells, and paragraphs below it."""

    def __init__(self) -> None:
        self.rows: list[list[str]] = []
        self.below: list[str] = []
        self.is_irregular = False
        self._tables = 0
        self._cell: list[str] | None = None

    def read_tag(self, tag: Tag) -> None:
        """Begin or end a table, a row, a cell or a paragraph."""
        match tag.name:
            case "table":
                self._tables += 1
                self.is_irregular |= self._tables > 1
            case "tr":
                self.rows.append([])
            case "td" | "th":
                attributes = tag.attributes
                self.is_irregular |= any(attributes.get(name, "1") != "1" for name in ("rowspan", "colspan")) or not self.rows
                self._cell = []
            case "p":
                self._cell = []
            case "/td" | "/th" | "/p" if self._cell is not None:
                self._end_cell(is_paragraph=tag.name == "/p")

    def read_text(self, text: str) -> None:
        """Add text to the cell or paragraph."""
        if self._cell is not None:
            self._cell.append(text)

    def _end_cell(self, *, is_paragraph: bool) -> None:
        text, self._cell = " ".join("".join(self._cell or ()).split()), None
        if is_paragraph:
            self.below.append(text)
        elif self.rows:
            self.rows[-1].append(text)
