"""Charts of plotly, Vega (Altair) and Bokeh as text: the title, the axes and the kinds of their series.

Kernels choose what is read here: each list, text and script is read to a bound that does not depend on its size.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

from kernelexec.results.json_values import is_small_text, read_list

_PLOTLY, _VEGA = "application/vnd.plotly.v1+json", re.compile(r"application/vnd\.vega(?:lite)?\.v\d{1,4}[+.]json")
_BOKEH = "application/vnd.bokehjs_exec.v0+json"
#: Series, axes or layers that are shown, and characters of a title and of a kind.
_SHOWN_MAX, _TITLE_CHARS, _KIND_CHARS = 20, 200, 40
#: Objects of a Bokeh document that are read.
_OBJECTS_MAX = 20_000
#: What stands before the specification in the scripts of Altair's HTML, and before the document in those of Bokeh.
_VEGA_SCRIPT, _BOKEH_SCRIPT = "})(", "docs_json = "
_BREAK = re.compile(r"<br ?/?>")


def describe_chart(data: Mapping[str, Any]) -> str | None:
    """Return title, axes and series of the chart in a mime bundle; None if there is none."""
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
    """Return the JSON object behind the first place in a script where one begins so; an empty one if there is none."""
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
    pending = [document]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            if value.get("type") == "object":
                yield _kind(value.get("name")), _dict(value.get("attributes"))
            pending.extend(reversed(value.values()))
        elif isinstance(value, list):
            pending.extend(reversed(value))


def _title(value: object) -> str:
    """Return the text of a title, which may be an object or several lines."""
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
