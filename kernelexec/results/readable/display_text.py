"""The text of an output for a reader without a browser: of Markdown, LaTeX, JSON, HTML, SVG and charts too."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from kernelexec.results.json_values import read_list
from kernelexec.results.readable.markup import read_tags

#: The text of an object without one: ``<IPython.core.display.Markdown object>``, ``<pkg.Chart at 0x7f...>``.
_NO_TEXT = re.compile(r"<[\w.<>]+ (?:object(?: at 0x[0-9a-f]+)?|at 0x[0-9a-f]+)>")
#: The beginning of HTML or SVG that is read, in characters.
_MARKUP_CHARS = 1_000_000
_BLANKS = re.compile(r"\s+")
_PLOTLY, _VEGA = "application/vnd.plotly.v1+json", re.compile(r"application/vnd\.vega(?:lite)?\.v\d+\+json")
#: Of a chart: the series and the values of each that are shown, and the characters of a title.
_SERIES_MAX, _VALUES_MAX, _TITLE_CHARS = 20, 5, 200
_PLAYERS = ("audio", "video")
#: Elements whose text stands on lines of its own.
_LINES = frozenset(
    re.findall(
        r"\w+",
        """
    address article blockquote br caption dd desc div dl dt figcaption figure footer form h1 h2 h3 h4 h5 h6 header hr li main
    nav ol p pre section table tbody text tfoot thead title tr ul
    """,
    )
)


def read_bundle_text(data: Mapping[str, Any]) -> str:
    """Return the most readable text of a mime bundle; its plain text unless that only names a class, or is a chart's."""
    fallback = f"<{', '.join(sorted(data))}>" if data else ""
    return next((text for text in _read_candidates(data) if text is not None), fallback)


def _read_candidates(data: Mapping[str, Any]) -> Iterator[str | None]:
    texts = {mime: value for mime, value in data.items() if isinstance(value, str)}
    plain = texts.get("text/plain")
    yield _describe_chart(data) or None
    yield None if plain is None or _NO_TEXT.fullmatch(plain.strip()) else plain
    yield from (texts.get(mime) for mime in ("text/markdown", "text/latex"))
    yield json.dumps(data["application/json"], ensure_ascii=False) if "application/json" in data else None
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
            pieces.append(f"[{source[:_TITLE_CHARS]}]")
    lines = (" ".join(line.split()) for line in "".join(pieces).split("\n"))
    return "\n".join(line.rstrip("| ") for line in lines if line.strip("| "))


def _describe_chart(data: Mapping[str, Any]) -> str:
    """Return title, axes and series of a chart of plotly or of Vega; nothing for other bundles."""
    for mime, value in data.items():
        if isinstance(value, dict) and (mime == _PLOTLY or _VEGA.fullmatch(mime)):
            lines = _read_plotly(value) if mime == _PLOTLY else _read_vega(value)
            return "\n".join(lines)
    return ""


def _read_plotly(figure: dict[str, Any]) -> Iterator[str]:
    layout = _dict(figure.get("layout"))
    traces = [trace for trace in read_list(figure.get("data")) if isinstance(trace, dict)]
    yield f"[plotly chart{_quote(_title(layout.get('title')))}, {len(traces)} series]"
    for axis in ("xaxis", "yaxis", "zaxis"):
        if title := _title(_dict(layout.get(axis)).get("title")):
            yield f"{axis[0]}: {title}"
    for trace in traces[:_SERIES_MAX]:
        values = (f"{key} {_sample(trace[key])}" for key in ("labels", "x", "y", "z", "values") if key in trace)
        yield f"- {trace.get('type', 'scatter')!s:.40}{_quote(_title(trace.get('name')))}: {', '.join(values)}"
    if len(traces) > _SERIES_MAX:
        yield f"- and {len(traces) - _SERIES_MAX} more"


def _read_vega(spec: dict[str, Any]) -> Iterator[str]:
    mark = spec.get("mark")
    kind = _dict(mark).get("type") if isinstance(mark, dict) else mark
    yield f"[Vega chart{_quote(_title(spec.get('title')))}{f', {kind!s:.40}' if kind else ''}]"
    layers = [spec, *(layer for key in ("layer", "hconcat", "vconcat", "concat") for layer in read_list(spec.get(key)))]
    for layer in layers[:_SERIES_MAX]:
        for channel, encoding in _dict(_dict(layer).get("encoding")).items():
            field = _dict(encoding).get("field") or _dict(encoding).get("aggregate")
            if field:
                yield f"{channel!s:.40}: {_title(_dict(encoding).get('title')) or str(field)[:_TITLE_CHARS]}"
    datasets = {**_dict(spec.get("datasets")), "": _dict(spec.get("data")).get("values")}
    for rows in datasets.values():
        if isinstance(rows, list) and rows:
            yield f"- {len(rows)} rows, the first: {json.dumps(rows[0], ensure_ascii=False)[:_TITLE_CHARS]}"


def _sample(values: object) -> str:
    """Return the first numbers or words of a series; plotly packs numpy's arrays as base64 (``bdata``)."""
    if isinstance(values, dict):
        return f"({values.get('dtype')!s:.10} array)"
    items = read_list(values)
    shown = ", ".join(f"{item:.6g}" if isinstance(item, float) else f"{item!s:.40}" for item in items[:_VALUES_MAX])
    return f"[{shown}, … {len(items)} values]" if len(items) > _VALUES_MAX else f"[{shown}]"


def _title(value: object) -> str:
    """Return the text of a title, which may be an object or several lines."""
    if isinstance(value, dict):
        value = value.get("text")
    if isinstance(value, list):
        value = " ".join(map(str, value))
    return " ".join(value.split())[:_TITLE_CHARS] if isinstance(value, str) else ""


def _quote(text: str) -> str:
    return f' "{text}"' if text else ""


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
