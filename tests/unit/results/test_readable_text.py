"""Displays as text: what a reader without a browser gets."""

from __future__ import annotations

import base64
import gzip
import json
import struct
from typing import Any

import pytest

from kernelexec.mcp.answers.tables import render_table
from kernelexec.results import DisplayData, output_text

OBJECT = "<IPython.core.display.Object object>"
HTML = """<!DOCTYPE html><style>x<y</style><!-- <p>z</p> --><h1>T</h1><p class='>'>a <b>b</b>
 c < d &amp; e</p><script>if (a < b) "</p>"</script>"""
F8 = base64.b64encode(struct.pack("<10d", *(number / 2 for number in range(10)))).decode()
PLOTLY = {
    "data": [
        {"type": "bar", "name": "sales", "x": ["a", "b"], "y": [1, 2.5]},
        {"type": "scatter", "x": list(range(10)), "y": {"dtype": "f8", "bdata": F8}},
    ],
    "layout": {"title": {"text": "Sales<br>by town"}, "xaxis": {"title": {"text": "town"}}, "yaxis": {"title": "euros"}},
}
PLOTLY_TEXT = """[plotly chart "Sales by town", 2 series]
x: town
y: euros
- bar "sales": x [a, b], y [1, 2.5]
- scatter: x [0, 1, 2, 3, 4, … 10 values], y [0, 0.5, 1, 1.5, 2, … 10 values]"""
VEGA = {
    "title": "Weights",
    "mark": {"type": "point"},
    "encoding": {"x": {"field": "mass", "title": "Mass (kg)"}, "y": {"aggregate": "count"}},
    "data": {"name": "d"},
    "datasets": {"d": [{"mass": 1}, {"mass": 2}]},
}
ALTAIR = f"""<div id="v"></div><script>(function(spec, embedOpt){{}})({json.dumps(VEGA)}, {{"mode": "vega-lite"}});</script>"""
COMPRESSED = base64.b64encode(gzip.compress(struct.pack("<30f", *range(30)))).decode()
BOKEH_OBJECTS = [
    ("Title", {"text": "Trees"}),
    ("LinearAxis", {"axis_label": "age"}),
    ("LinearAxis", {"axis_label": {"type": "value"}}),
    (
        "ColumnDataSource",
        {
            "data": {
                "type": "map",
                "entries": [
                    ["x", [1, 2]],
                    [
                        "y",
                        {"type": "ndarray", "array": {"type": "bytes", "data": COMPRESSED}, "shape": [30], "dtype": "float32"},
                    ],
                ],
            }
        },
    ),
]
BOKEH = {"d": {"roots": [{"type": "object", "name": name, "attributes": values} for name, values in BOKEH_OBJECTS]}}
BOKEH_SCRIPT = f"(function(root) {{ const docs_json = {json.dumps(BOKEH)};\nconst render_items = []; }})(window);"
VEGA_TEXT = '[Vega chart "Weights", point]\nx: Mass (kg)\ny: count\n- 2 rows, the first: {"mass": 1}'
DISPLAYS: dict[str, tuple[dict[str, Any], str]] = {
    "plain": ({"text/plain": "42", "text/html": "<b>no</b>"}, "42"),
    "plain that says nothing": ({"text/plain": OBJECT}, OBJECT),
    "plain with an address": ({"text/plain": "<pkg.Report at 0x7f00aa>", "text/html": "<p>mean 42</p>"}, "mean 42"),
    "a class within a function": ({"text/plain": "<__main__.f.<locals>.T object at 0x7f>", "text/html": "<i>42</i>"}, "42"),
    "a figure": ({"text/plain": "<Figure size 640x480 with 1 Axes>", "image/png": "aa=="}, "<Figure size 640x480 with 1 Axes>"),
    "markdown": ({"text/plain": OBJECT, "text/markdown": "The mean is **42**"}, "The mean is **42**"),
    "latex": ({"text/plain": OBJECT, "text/latex": "$\\mu = 42$"}, "$\\mu = 42$"),
    "json": ({"text/plain": OBJECT, "application/json": {"mean": [42, None], "ü": 1}}, '{"mean": [42, null], "ü": 1}'),
    "html": (
        {"text/plain": OBJECT, "text/html": "<style>x</style><h1>T</h1><p>a <b>b</b>\n c</p><script>y</script>"},
        "T\na b c",
    ),
    "a table": (
        {"text/plain": OBJECT, "text/html": "<table><tr><th>a</th><th>b</th></tr>\n<tr><td>1</td><td></td></tr></table>"},
        "a | b\n1",
    ),
    "html without text": ({"text/plain": OBJECT, "text/html": "<div class='map'></div>"}, OBJECT),
    "a script": ({"text/html": "<script>load()</script><style>a{}</style> "}, ""),
    "Bokeh's loader": ({"application/javascript": "load()", "application/vnd.bokehjs_load.v0+json": ""}, ""),
    "geo+json": ({"text/plain": OBJECT, "application/geo+json": {"type": "Point"}}, '{"type": "Point"}'),
    "parts of a page": (
        {"text/html": "<details><summary>S</summary>T</details><select><option>a<option>b</select><textarea>t</textarea>"},
        "S\nT\na\nb\nt",
    ),
    "a sound": (
        {
            "text/plain": OBJECT,
            "text/html": f'<audio><source src="data:audio/wav;base64,{"A" * 999}"/><b>No</b></audio>!',
        },
        "[audio]!",
    ),
    "a video": ({"text/plain": OBJECT, "text/html": "<VIDEO controls><source src='x'>No player</VIDEO>"}, "[video]"),
    "a frame": (
        {"text/plain": OBJECT, "text/html": "<iframe\n src='https://a/b?c=1&amp;d=2' allow></iframe>"},
        "[https://a/b?c=1&d=2]",
    ),
    "html with a picture": ({"text/html": '<img src="x" alt="a cat">'}, "[a cat]"),
    "svg": ({"text/plain": OBJECT, "image/svg+xml": "<svg><title>T</title><text>42</text><path d='M0'/></svg>"}, "T\n42"),
    "nothing that can be read": ({"image/png": "aa==", "x/y": "z"}, "<image/png, x/y>"),
    "nothing": ({}, ""),
    "plotly": (
        {"text/plain": "Figure({})", "application/vnd.plotly.v1+json": PLOTLY},
        PLOTLY_TEXT,
    ),
    "vega": (
        {"text/plain": "alt.Chart(...)", "application/vnd.vegalite.v5+json": VEGA},
        VEGA_TEXT,
    ),
    "altair": ({"text/plain": "alt.Chart(...)", "text/html": ALTAIR}, VEGA_TEXT),
    "bokeh": (
        {"application/javascript": BOKEH_SCRIPT, "application/vnd.bokehjs_exec.v0+json": ""},
        '[Bokeh chart "Trees"]\naxis: age\n- x [1, 2], y [0, 1, 2, 3, 4, … 30 values]',
    ),
    "a script that is no chart": ({"text/plain": "C", "text/html": "<b>vega</b><script>})({1: 2})</script>"}, "C"),
    "a chart of anything": ({"application/vnd.plotly.v1+json": {"data": 5, "layout": []}}, "[plotly chart, 0 series]"),
}


@pytest.mark.parametrize(("data", "text"), DISPLAYS.values(), ids=DISPLAYS)
def test_a_display_is_readable(data: dict[str, Any], text: str) -> None:
    assert output_text([DisplayData(data)]) == text


HOSTILE = ["<", "<!--", "<a ", "<![CDATA[", "&", "<p>", "<a b='", "<a b=c ", "<script>", "</", "<td>", "<!-- -->"]


@pytest.mark.parametrize("markup", [piece * (200_000 // len(piece)) for piece in HOSTILE], ids=HOSTILE)
def test_any_markup_is_read_to_its_end(markup: str) -> None:
    """A quadratic reader, such as Python's, needs longer than a test may take."""
    assert len(output_text([DisplayData({"text/plain": OBJECT, "text/html": markup})])) <= len(markup)
    render_table(f'<table class="dataframe">{markup}')


def test_a_number_of_too_many_digits_is_text() -> None:
    number = f"&#{'1' * 5000};"
    assert output_text([DisplayData({"text/html": f"<p>{number}</p>"})]) == number
