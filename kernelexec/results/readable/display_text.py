"""The text of an output for a reader without a browser: of Markdown, LaTeX, JSON, HTML, SVG and charts too."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from kernelexec.results.readable.charts import describe_chart
from kernelexec.results.readable.markup import SKIPPED, Tag, read_tags

#: The text of an object without one: ``<IPython.core.display.Markdown object>``, ``<pkg.Chart at 0x7f...>``.
_NO_TEXT = re.compile(r"<[\w.<>]+ (?:object(?: at 0x[0-9a-f]+)?|at 0x[0-9a-f]+)>")
#: The beginning of HTML or SVG that is read, in characters.
_MARKUP_CHARS = 1_000_000
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


def read_bundle_text(data: Mapping[str, Any]) -> str:
    """Return the most readable text of a mime bundle; its plain text unless that only names a class, or is a chart's."""
    return next((text for text in _read_candidates(data) if text is not None), _name_types(data))


def _name_types(data: Mapping[str, Any]) -> str:
    """Return the media types of a bundle without text; nothing for one that only loads a chart library."""
    html = data.get("text/html")
    tokens = read_tags(html[:_MARKUP_CHARS]) if isinstance(html, str) else ()
    is_visible = any(isinstance(token, Tag) and token.name.lstrip("/") not in SKIPPED for token in tokens)
    shown = sorted(mime for mime in data if mime != "text/html" or is_visible)
    return f"<{', '.join(shown)}>" if shown and _BOKEH_LOADER not in data else ""


def _read_candidates(data: Mapping[str, Any]) -> Iterator[str | None]:
    texts = {mime: value for mime, value in data.items() if isinstance(value, str)}
    plain = texts.get("text/plain")
    yield describe_chart(data)
    yield None if plain is None or _NO_TEXT.fullmatch(plain.strip()) else plain
    yield from (texts.get(mime) for mime in ("text/markdown", "text/latex"))
    yield from (
        json.dumps(data[mime], ensure_ascii=False) for mime in ("application/json", "application/geo+json") if mime in data
    )
    yield from (read_markup(texts.get(mime, "")[:_MARKUP_CHARS]) or None for mime in ("text/html", "image/svg+xml"))
    yield plain


def read_markup(markup: str) -> str:
    """Return the text of HTML or SVG: a line for each block, the cells of a table's row with ``|`` between them."""
    pieces: list[str] = []
    is_first_cell, player = True, ""
    for token in read_tags(markup):
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
