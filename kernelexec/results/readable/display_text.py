"""The text of an output for a reader without a browser: of Markdown, LaTeX, JSON, HTML, SVG and charts too."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import unescape as unescape_all
from typing import Any

from kernelexec.results.json_values import is_small_tree
from kernelexec.results.readable.charts import describe_chart

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
#: Elements whose content is not text.
SKIPPED = frozenset({"style", "script", "template", "noscript"})
_NAME = re.compile(r"/?[a-zA-Z][a-zA-Z0-9:-]{0,40}")
_ATTRIBUTE = re.compile(r"(?<![a-zA-Z-])([a-zA-Z-]{1,40}+)=(?:\"([^\"]{0,1000})\"|'([^']{0,1000})'|([^\s\"'>]{1,1000}))")
_ATTRIBUTES_CHARS = 4000
_COMMENT, _COMMENT_END = "!--", "-->"


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


@dataclass(frozen=True, slots=True)
class Tag:
    """A tag: its name in lower case, with a slash before that of an end tag, and its attributes as text."""

    name: str
    source: str = ""

    @property
    def attributes(self) -> dict[str, str]:
        """The attributes by name, without those that have no value."""
        matches = _ATTRIBUTE.findall(self.source[:_ATTRIBUTES_CHARS])
        return {name.lower(): unescape(double or single or bare) for name, double, single, bare in matches}


def read_tags(markup: str, limit: int) -> Iterator[Tag | str]:
    """Yield the tags and the texts between them, without comments, scripts and styles, up to the ``limit``-th ``<``.

    The time is linear: Python's parser needs minutes for some texts of a kernel.
    """
    first, *pieces = markup.split("<", limit)
    del pieces[limit - 1 :]  # the rest, unless there are fewer
    ending: str | None = None
    if first:
        yield unescape(first)
    for piece in pieces:
        if ending == _COMMENT_END or (ending is None and piece.startswith(_COMMENT)):
            _, closing, text = piece.partition(_COMMENT_END)
            ending = None if closing else _COMMENT_END
        else:
            source, closing, text = piece.partition(">")
            name = _NAME.match(source)
            word = name[0].lower() if name else ""
            if ending is not None:
                if word != ending:
                    continue
                ending = None
            elif not name and not source.startswith(("!", "?", "/")):
                yield unescape(f"<{piece}")  # a sign in the text
                continue
            elif word in SKIPPED and closing and not source.endswith("/"):
                ending = f"/{word}"
                continue
            if word and closing:
                yield Tag(word, source)
        if text and ending is None:
            yield unescape(text)


def unescape(text: str) -> str:
    """Return a text with its character references resolved."""
    try:
        return unescape_all(text)
    except ValueError:  # a number of thousands of digits
        return text
