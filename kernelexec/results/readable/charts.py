"""Charts of plotly, Vega (Altair) and Bokeh as text: title, axes, series and a few numbers."""

from __future__ import annotations

import base64
import json
import math
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

from kernelexec.results.json_values import read_list

_PLOTLY, _VEGA = "application/vnd.plotly.v1+json", re.compile(r"application/vnd\.vega(?:lite)?\.v\d+[+.]json")
_BOKEH = "application/vnd.bokehjs_exec.v0+json"
#: Limits of a chart's text: series, values of each, and characters of a title.
_SERIES_MAX, _VALUES_MAX, _TITLE_CHARS = 20, 5, 200
#: Objects of a Bokeh document that are read.
_OBJECTS_MAX = 20_000
#: What stands before the specification in the scripts of Altair's HTML, and before the document in those of Bokeh.
_VEGA_SCRIPT, _BOKEH_SCRIPT = re.compile(r"\}\)\((?=\{)"), re.compile(r"\bdocs_json\s*=\s*(?=\{)")
#: Types of arrays in the figures of plotly and of Bokeh, as ``struct`` names them.
_NUMBERS = {"i1": "b", "u1": "B", "i2": "h", "u2": "H", "i4": "i", "u4": "I", "i8": "q", "u8": "Q", "f4": "f", "f8": "d"}
_NUMBERS |= {
    "int8": "b",
    "uint8": "B",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "float32": "f",
    "float64": "d",
}
#: The beginning of a packed array that is read; whole groups of base64.
_PACKED_CHARS = 4096
_BREAKS = re.compile(r"\s*<br\s*/?>\s*")


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
    if mime == _BOKEH and (document := _read_script(_BOKEH_SCRIPT, str(data.get("application/javascript")))):
        return _read_bokeh(document)
    return None


def _read_script(start: re.Pattern[str], source: str) -> dict[str, Any]:
    """Return the JSON object behind the first match in a script; an empty one if there is none."""
    if match := start.search(source):
        with suppress(ValueError, RecursionError):
            return _dict(json.JSONDecoder().raw_decode(source, match.end())[0])
    return {}


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


def _read_bokeh(document: dict[str, Any]) -> Iterator[str]:
    objects = list(islice(_walk_bokeh(document), _OBJECTS_MAX))
    titles = [_title(attributes) for name, attributes in objects if name == "Title" and _title(attributes)]
    yield f"[Bokeh chart{_quote(', '.join(titles[:_SERIES_MAX]))}]"
    axes = [_title(attributes.get("axis_label")) for name, attributes in objects if name.endswith("Axis")]
    yield from (f"axis: {label}" for label in axes[:_SERIES_MAX] if label)
    sources = [_dict(attributes.get("data")) for name, attributes in objects if name == "ColumnDataSource"]
    for data in sources[:_SERIES_MAX]:
        columns = [read_list(pair) for pair in read_list(data.get("entries"))[:_SERIES_MAX]]
        texts = (f"{column!s:.40} {_sample(values)}" for column, *rest in filter(None, columns) for values in rest)
        yield f"- {', '.join(texts)}"


def _walk_bokeh(document: object) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the attributes of each object in a document."""
    pending = [document]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            if value.get("type") == "object":
                yield str(value.get("name")), _dict(value.get("attributes"))
            pending.extend(reversed(value.values()))
        elif isinstance(value, list):
            pending.extend(reversed(value))


def _sample(values: object) -> str:
    """Return the first numbers or words of a series, and how many there are."""
    items, count = _read_series(values)
    shown = ", ".join(f"{item:.6g}" if isinstance(item, float) else f"{item!s:.40}" for item in items[:_VALUES_MAX])
    return f"[{shown}, … {count} values]" if count > _VALUES_MAX else f"[{shown}]"


def _read_series(values: object) -> tuple[list[Any], int]:
    """Return the first values of a series, and their number; plotly packs arrays as base64, Bokeh compresses them too."""
    packed = _dict(values)
    kind = _NUMBERS.get(str(packed.get("dtype")))
    if kind is None:
        items = read_list(values)
        return items, len(items)
    size = struct.calcsize(f"<{kind}")
    head, count = b"", 0
    with suppress(ValueError, TypeError, zlib.error):
        if packed.get("type") == "ndarray":
            count = math.prod(packed.get("shape", ()))
            compressed = base64.b64decode(_dict(packed.get("array")).get("data", "")[:_PACKED_CHARS])
            head, count = (
                zlib.decompressobj(wbits=31).decompress(compressed, size * _VALUES_MAX),
                math.prod(packed.get("shape", ())),
            )
        else:
            text = packed.get("bdata", "")
            head, count = base64.b64decode(text[:_PACKED_CHARS]), len(text.rstrip("=")) * 3 // 4 // size
    shown = min(len(head) // size, _VALUES_MAX)
    return list(struct.unpack(f"<{shown}{kind}", head[: shown * size])), count


def _title(value: object) -> str:
    """Return the text of a title, which may be an object or several lines."""
    if isinstance(value, dict):
        value = value.get("text")
    if isinstance(value, list):
        value = " ".join(map(str, value))
    return " ".join(_BREAKS.sub(" ", value).split())[:_TITLE_CHARS] if isinstance(value, str) else ""


def _quote(text: str) -> str:
    return f' "{text}"' if text else ""


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
