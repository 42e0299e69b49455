"""Displays as text, for readers without a browser: Markdown, LaTeX, JSON, HTML, SVG, charts and widgets.

A display has many representations, and the plain text often only names a class, so the best of the others is read. Kernels
choose the displays. So each list, text and script is read up to a fixed bound, and a text never fails. An unreadable display is
named by its types. A new reader of a kernel's text gets a line in ``tests/unit/test_readers_are_linear.py``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from html import unescape as unescape_all
from itertools import islice
from reprlib import Repr
from typing import Any

from kernelexec.results.json_values import is_small_text, is_small_tree, read_list

#: Python's default text of an object: ``<IPython.core.display.Markdown object>``, ``<pkg.Chart at 0x7f...>``.
_NO_TEXT = re.compile(r"<[\w.<>]+ (?:object(?: at 0x[0-9a-f]+)?|at 0x[0-9a-f]+)>")
#: The limits of HTML and SVG for a text, in characters and in tags: about 0.1 s at most.
_MARKUP_CHARS, _MARKUP_TAGS = 200_000, 20_000
#: The limit of tags read in HTML without text.
_LOOK_TAGS = 1000
_BOKEH_LOADER = "application/vnd.bokehjs_load.v0+json"
_JSON = ("application/json", "application/geo+json")
_BLANKS = re.compile(r"\s+")
#: The limit of characters of a shown address.
_ADDRESS_CHARS = 200
_PLAYERS = ("audio", "video")
#: Elements with text on separate lines.
_LINES = frozenset(
    re.findall(
        r"\w+",
        """
    address article blockquote br button caption dd desc details div dl dt fieldset figcaption figure footer form h1 h2 h3 h4 h5
    h6 header hr legend li main nav ol option p pre section select summary table tbody text textarea tfoot thead title tr ul
    """,
    )
)
#: Elements with content other than text.
SKIPPED = frozenset({"style", "script", "template", "noscript"})
_NAME = re.compile(r"/?[a-zA-Z][a-zA-Z0-9:-]{0,40}")
_ATTRIBUTE = re.compile(r"(?<![a-zA-Z-])([a-zA-Z-]{1,40}+)=(?:\"([^\"]{0,1000})\"|'([^']{0,1000})'|([^\s\"'>]{1,1000}))")
_ATTRIBUTES_CHARS = 4000
_COMMENT, _COMMENT_END = "!--", "-->"
_REFERENCE = "IPY_MODEL_"
#: Limits of the text of one view: widgets, characters of a value or a label, its tags, and choices of a list.
_WIDGETS_MAX, _VALUE_CHARS, _VALUE_TAGS, _CHOICES_MAX = 200, 500, 50, 20
_PARTS = Repr()
_PARTS.maxlist = _PARTS.maxdict = _CHOICES_MAX
_PARTS.maxlong = _PARTS.maxother = _VALUE_CHARS
_PLOTLY, _VEGA = "application/vnd.plotly.v1+json", re.compile(r"application/vnd\.vega(?:lite)?\.v\d{1,4}[+.]json")
_BOKEH = "application/vnd.bokehjs_exec.v0+json"
#: Limits of shown series, axes or layers, and of characters of a title and of a kind.
_SHOWN_MAX, _TITLE_CHARS, _KIND_CHARS = 20, 200, 40
#: The limit of objects read of a Bokeh document.
_OBJECTS_MAX = 20_000
#: The text before the specification in scripts of Altair's HTML, and before the document in scripts of Bokeh.
_VEGA_SCRIPT, _BOKEH_SCRIPT = "})(", "docs_json = "
_BREAK = re.compile(r"<br ?/?>")


class DisplayReader:
    """A reader of the displays of a text, with a common limit for all their HTML and SVG."""

    def __init__(self) -> None:
        self._chars, self._tags = _MARKUP_CHARS, _MARKUP_TAGS

    def read(self, data: Mapping[str, Any]) -> str:
        """Return the most readable text of a mime bundle: the plain text, except of charts and if it only names a class."""
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
    """Return the media types of a bundle without text; nothing for the loader of a chart library."""
    html = data.get("text/html")
    tokens = read_tags(html[:_MARKUP_CHARS], _LOOK_TAGS) if isinstance(html, str) else ()
    is_visible = any(isinstance(token, Tag) and token.name.lstrip("/") not in SKIPPED for token in tokens)
    shown = sorted(mime for mime in data if mime != "text/html" or is_visible)
    return f"<{', '.join(shown)}>" if shown and _BOKEH_LOADER not in data else ""


def read_markup(markup: str, limit: int) -> str:
    """Return the text of HTML or SVG up to the ``limit``-th ``<``: a line for each block, with ``|`` between a row's cells."""
    pieces: list[str] = []
    is_first_cell, player = True, ""
    for token in read_tags(markup, limit):
        if isinstance(token, str):
            pieces.append("" if player else _BLANKS.sub(" ", token))
            continue
        name = token.name
        if player or name in _PLAYERS:  # its content is for browsers without a player
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
    """A tag: the name in lower case, of an end tag with a slash before, and the attributes as text."""

    name: str
    source: str = ""

    @property
    def attributes(self) -> dict[str, str]:
        """The attributes with values, by name."""
        matches = _ATTRIBUTE.findall(self.source[:_ATTRIBUTES_CHARS])
        return {name.lower(): unescape(double or single or bare) for name, double, single, bare in matches}


def read_tags(markup: str, limit: int) -> Iterator[Tag | str]:
    """Yield the tags and the texts between them, without comments, scripts and styles, up to the ``limit``-th ``<``.

    The time is linear, while Python's parser needs minutes for some texts of a kernel.
    """
    # Each piece begins behind a "<". ``ending`` is the comment's end or the end tag that ends the skipped content, if any.
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


def describe_widget(
    states: Mapping[str, Mapping[str, Any]], model_id: str, texts: MutableMapping[str, list[str]] | None = None
) -> str:
    """Return the text of a widget, from the states of all widgets by id; empty for a widget without text.

    ``texts`` keeps the texts of single widgets for the next call.
    """
    return "\n".join(_describe(states, model_id, set(), {} if texts is None else texts))


def _describe(
    states: Mapping[str, Mapping[str, Any]], model_id: str, seen: set[str], texts: MutableMapping[str, list[str]]
) -> list[str]:
    """Return the lines of a widget, unless another box has shown the widget already."""
    state = states.get(model_id)
    if state is None or model_id in seen or len(seen) > _WIDGETS_MAX:
        return []
    seen.add(model_id)
    model = str(state.get("_model_name", ""))
    children = [child.removeprefix(_REFERENCE) for child in read_list(state.get("children")) if isinstance(child, str)]
    if children:
        titles = [*read_list(state.get("titles")), *[""] * len(children)]
        parts = ["\n".join(_describe(states, child, seen, texts)) for child in children]
        lines = [f"{_shorten(title)}: {part}" if title else part for title, part in zip(titles, parts, strict=False) if part]
        return [" ".join(lines)] if model == "HBoxModel" else lines
    if model_id not in texts:
        parts = list(filter(None, (_read_text(state.get("description")), _read_value(model, state))))
        texts[model_id] = [": ".join(parts)] if parts else []
    return texts[model_id]


def _read_value(model: str, state: Mapping[str, Any]) -> str:
    value, labels, index = state.get("value"), read_list(state.get("_options_labels")), state.get("index")
    if "Progress" in model:
        return "/".join(_format_number(number) for number in (value, state.get("max")) if isinstance(number, int | float))
    if labels:
        chosen = read_list(index)[:_CHOICES_MAX] if isinstance(index, list) else [index]
        return ", ".join(_shorten(labels[n]) for n in chosen if isinstance(n, int) and 0 <= n < len(labels))[:_VALUE_CHARS]
    return _read_text(value) if model.startswith("HTML") else _shorten(value)


def _shorten(value: object) -> str:
    """Return the head of a text, an empty text for None, and a shortened repr of any other value."""
    if isinstance(value, str):
        return value[:_VALUE_CHARS]
    return "" if value is None else _PARTS.repr(value)[:_VALUE_CHARS]


def _read_text(markup: object) -> str:
    return read_markup(markup[:_VALUE_CHARS], _VALUE_TAGS) if isinstance(markup, str) else ""


def _format_number(number: float) -> str:
    """Return a number in six digits; of an integer too large for a float only the magnitude."""
    try:
        return f"{number:g}"
    except OverflowError:
        return f"about 10^{len(str(number)) - 1}"


def describe_chart(data: Mapping[str, Any]) -> str | None:
    """Return title, axes and series of the chart in a mime bundle; None without a chart."""
    lines = next((lines for mime, value in data.items() if (lines := _read_chart(mime, value, data)) is not None), None)
    return None if lines is None else "\n".join(lines)


def _read_chart(mime: str, value: object, data: Mapping[str, Any]) -> Iterator[str] | None:
    if mime == _PLOTLY and isinstance(value, dict):
        return _read_plotly(value)
    if _VEGA.fullmatch(mime) and isinstance(value, dict):
        return _read_vega(value)
    if mime == "text/html" and isinstance(value, str) and "vega" in value and (spec := _read_script(_VEGA_SCRIPT, value)):
        return _read_vega(spec)
    if mime == _BOKEH and (document := _read_script(_BOKEH_SCRIPT, data.get("application/javascript"))):
        return _read_bokeh(document)
    return None


def _read_script(start: str, source: object) -> dict[str, Any]:
    """Return the JSON object behind the first ``start`` in a script; empty without such an object."""
    if not isinstance(source, str) or (begin := source.find(f"{start}{{")) < 0 or not is_small_text(source):
        return {}
    with suppress(ValueError, RecursionError):
        return _dict(json.JSONDecoder().raw_decode(source, begin + len(start))[0])
    return {}


def _read_plotly(figure: dict[str, Any]) -> Iterator[str]:
    layout, traces = _dict(figure.get("layout")), read_list(figure.get("data"))
    yield f"[plotly chart{_quote(_title(layout.get('title')))}, {len(traces)} series]"
    for axis in ("xaxis", "yaxis", "zaxis"):
        if title := _title(_dict(layout.get(axis)).get("title")):
            yield f"{axis[0]}: {title}"
    for trace in map(_dict, traces[:_SHOWN_MAX]):
        yield f"- {_kind(trace.get('type')) or 'scatter'}{_quote(_title(trace.get('name')))}"
    if len(traces) > _SHOWN_MAX:
        yield f"- and {len(traces) - _SHOWN_MAX} more"


def _read_vega(spec: dict[str, Any]) -> Iterator[str]:
    layers = [
        spec,
        *(layer for key in ("layer", "hconcat", "vconcat", "concat") for layer in read_list(spec.get(key))[:_SHOWN_MAX]),
    ]
    marks = [_dict(layer).get("mark") for layer in layers]
    kinds = [_kind(_dict(mark).get("type") if isinstance(mark, dict) else mark) for mark in marks]
    yield f"[Vega chart{_quote(_title(spec.get('title')))}{''.join(f', {kind}' for kind in dict.fromkeys(kinds) if kind)}]"
    for layer in layers[:_SHOWN_MAX]:
        for channel, encoding in islice(_dict(_dict(layer).get("encoding")).items(), _SHOWN_MAX):
            texts = (_title(_dict(encoding).get(key)) for key in ("title", "field", "aggregate"))
            if text := next(filter(None, texts), ""):
                yield f"{_kind(channel)}: {text}"


def _read_bokeh(document: dict[str, Any]) -> Iterator[str]:
    objects = list(islice(_walk_bokeh(document), _OBJECTS_MAX))
    titles = filter(None, (_title(attributes) for name, attributes in objects if name == "Title"))
    yield f"[Bokeh chart{_quote(', '.join(islice(titles, _SHOWN_MAX)))}]"
    labels = (_title(attributes.get("axis_label")) for name, attributes in objects if name.endswith("Axis"))
    yield from (f"axis: {label}" for label in islice(filter(None, labels), _SHOWN_MAX))
    glyphs = (_dict(attributes.get("glyph")).get("name") for name, attributes in objects if name == "GlyphRenderer")
    yield from (f"- {kind}" for kind in islice(filter(None, map(_kind, glyphs)), _SHOWN_MAX))


def _walk_bokeh(document: object) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the attributes of each object in a document."""
    pending = [document]  # no recursion: the document may be nested deeply
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            if value.get("type") == "object":
                yield _kind(value.get("name")), _dict(value.get("attributes"))
            pending.extend(reversed(value.values()))
        elif isinstance(value, list):
            pending.extend(reversed(value))


def _title(value: object) -> str:
    """Return the text of a title, from an object or several lines too."""
    if isinstance(value, dict):
        value = value.get("text")
    if isinstance(value, list):
        value = " ".join(part[:_TITLE_CHARS] for part in value[:_SHOWN_MAX] if isinstance(part, str))
    return " ".join(_BREAK.sub(" ", value[: 2 * _TITLE_CHARS]).split())[:_TITLE_CHARS] if isinstance(value, str) else ""


def _kind(value: object) -> str:
    return value[:_KIND_CHARS] if isinstance(value, str) else ""


def _quote(text: str) -> str:
    return f' "{text}"' if text else ""


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
