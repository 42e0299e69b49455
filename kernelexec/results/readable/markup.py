"""HTML and SVG as a sequence of tags and texts, in linear time: Python's parser needs minutes for some texts of a kernel."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import unescape as unescape_all

#: Elements whose content is not text.
SKIPPED = frozenset({"style", "script", "template", "noscript"})
_NAME = re.compile(r"/?[a-zA-Z][a-zA-Z0-9:-]{0,40}")
_ATTRIBUTE = re.compile(r"(?<![a-zA-Z-])([a-zA-Z-]{1,40}+)=(?:\"([^\"]{0,1000})\"|'([^']{0,1000})'|([^\s\"'>]{1,1000}))")
_ATTRIBUTES_CHARS = 4000
_COMMENT, _COMMENT_END = "!--", "-->"


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
    """Yield the tags and the texts between them, without comments, scripts and styles, up to the ``limit``-th ``<``."""
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
