"""The text of an output for a reader without a browser: of Markdown, LaTeX, JSON, HTML, SVG and charts too."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from kernelexec.results.json_values import is_small_tree
from kernelexec.results.readable.charts import describe_chart
from kernelexec.results.readable.markup import SKIPPED, Tag, read_tags

#: The text of an object without one: ``<IPython.core.display.Markdown object>``, ``<pkg.Chart at 0x7f...>``.
_NO_TEXT = re.compile(r"<[\w.<>]+ (?:object(?: at 0x[0-9a-f]+)?|at 0x[0-9a-f]+)>")
#: How much HTML and SVG is read for one text, in characters and in tags: about 0.1 s at most.
_MARKUP_CHARS, _MARKUP_TAGS = 200_000, 20_000
#: The tags of HTML without text that are looked at.
_LOOK_TAGS = 1000
_BOKEH_LOADER = "application/vnd.bokehjs_load.v0+json"
_JSON = ("application/json", "application/geo+json")
_BLANKS = re.compile(r"\s+")
#: The characters of an address that are shown.
_ADDRESS_CHARS = 200
_PLAYERS = ("audio", "video")
#: Elements whose text stands on lines of its own.
_LINES = frozenset(
    re.findall(
        r"\w+",
        """
    address article blockquote br button caption dd desc details div dl dt fieldset figcaption figure footer form h1 h2 h3 h4 h5
    h6 header hr legend li main nav ol option p pre section select summary table tbody text textarea tfoot thead title tr ul
    """,
    )
)


class DisplayReader:
    """What makes text of the displays of one text, of whose HTML and SVG it reads a bounded part in all."""

    def __init__(self) -> None:
        self._chars, self._tags = _MARKUP_CHARS, _MARKUP_TAGS

    def read(self, data: Mapping[str, Any]) -> str:
        """Return the most readable text of a mime bundle; its plain text unless that only names a class, or is a chart's."""
        try:
            text = next((text for text in self._read_candidates(data) if text is not None), None)
            return _name_types(data) if text is None else text
        except Exception:  # noqa: BLE001 - kernels send anything, and a result has a text in any case
            return f"[no text can be made of {', '.join(sorted(data))}]"

    def _read_candidates(self, data: Mapping[str, Any]) -> Iterator[str | None]:
        texts = {mime: value for mime, value in data.items() if isinstance(value, str)}
        plain = texts.get("text/plain")
        yield describe_chart(data)
        yield None if plain is None or _NO_TEXT.fullmatch(plain.strip()) else plain
        yield from (texts.get(mime) for mime in ("text/markdown", "text/latex"))
        yield from (json.dumps(data[mime], ensure_ascii=False) for mime in _JSON if mime in data and is_small_tree(data[mime]))
        yield from (self._read_markup(texts.get(mime, "")) for mime in ("text/html", "image/svg+xml"))
        yield plain

    def _read_markup(self, markup: str) -> str | None:
        head = markup[: self._chars]
        tags = min(head.count("<"), self._tags)
        text = read_markup(head, tags + 1)
        self._chars, self._tags = self._chars - len(head), self._tags - tags
        return text or None


def _name_types(data: Mapping[str, Any]) -> str:
    """Return the media types of a bundle without text; nothing for one that only loads a chart library."""
    html = data.get("text/html")
    tokens = read_tags(html[:_MARKUP_CHARS], _LOOK_TAGS) if isinstance(html, str) else ()
    is_visible = any(isinstance(token, Tag) and token.name.lstrip("/") not in SKIPPED for token in tokens)
    shown = sorted(mime for mime in data if mime != "text/html" or is_visible)
    return f"<{', '.join(shown)}>" if shown and _BOKEH_LOADER not in data else ""


def read_markup(markup: str, limit: int) -> str:
    """Return the text of HTML or SVG: a line for each block, the cells of a table's row with ``|`` between them.

    It is read up to the ``limit``-th ``<``.
    """
    pieces: list[str] = []
    is_first_cell, player = True, ""
    for token in read_tags(markup, limit):
        if isinstance(token, str):
            pieces.append("" if player else _BLANKS.sub(" ", token))
            continue
        name = token.name
        if player or name in _PLAYERS:  # what it holds is for browsers that cannot play it
            pieces.append("" if player else f"[{name}]")
            player = "" if name == f"/{player}" else player or name
        elif name in ("td", "th"):
            pieces.append("" if is_first_cell else " | ")
            is_first_cell = False
        elif name.removeprefix("/") in _LINES:
            pieces.append("\n")
            is_first_cell |= name == "tr"
        elif name == "img" and (alternative := token.attributes.get("alt")):
            pieces.append(f"[{alternative}]")
        elif name == "iframe" and (source := token.attributes.get("src")):
            pieces.append(f"[{source[:_ADDRESS_CHARS]}]")
    lines = (" ".join(line.split()) for line in "".join(pieces).split("\n"))
    return "\n".join(line.rstrip("| ") for line in lines if line.strip("| "))
