"""Displays as text: what a reader without a browser gets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kernelexec.results import DisplayData, output_text
from kernelexec.results.model_answers import render_table
from kernelexec.results.readable import describe_widget

OBJECT = "<IPython.core.display.Object object>"
PLOTLY = {
    "data": [
        {"type": "bar", "name": "sales", "x": ["a", "b"], "y": [1, 2.5]},
        {"type": "scatter", "x": list(range(10)), "y": {"dtype": "f8", "bdata": "AA=="}},
    ],
    "layout": {"title": {"text": "Sales<br>by town"}, "xaxis": {"title": {"text": "town"}}, "yaxis": {"title": "euros"}},
}
PLOTLY_TEXT = """[plotly chart "Sales by town", 2 series]
x: town
y: euros
- bar "sales"
- scatter"""
VEGA = {
    "title": "Weights",
    "mark": {"type": "point"},
    "encoding": {"x": {"field": "mass", "title": "Mass (kg)"}, "y": {"aggregate": "count"}},
    "data": {"name": "d"},
    "datasets": {"d": [{"mass": 1}, {"mass": 2}]},
}
ALTAIR = f"""<div id="v"></div><script>(function(spec, embedOpt){{}})({json.dumps(VEGA)}, {{"mode": "vega-lite"}});</script>"""
BOKEH_OBJECTS = [
    ("Title", {"text": "Trees"}),
    ("LinearAxis", {"axis_label": "age"}),
    ("LinearAxis", {"axis_label": {"type": "value"}}),
    ("GlyphRenderer", {"glyph": {"type": "object", "name": "Scatter"}}),
]
BOKEH = {"d": {"roots": [{"type": "object", "name": name, "attributes": values} for name, values in BOKEH_OBJECTS]}}
BOKEH_SCRIPT = f"(function(root) {{ const docs_json = {json.dumps(BOKEH)};\nconst render_items = []; }})(window);"
VEGA_TEXT = '[Vega chart "Weights", point]\nx: Mass (kg)\ny: count'
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
        '[Bokeh chart "Trees"]\naxis: age\n- Scatter',
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


#: Values in the places of a chart, of which a kernel may send any.
ANYTHING: list[Any] = [None, True, 5, 1e308, 10**400, "x", [], ["x", 5], {}, {"text": {"text": 5}}, [[[]]], {"x": None}]


@pytest.mark.parametrize("value", ANYTHING, ids=map(str, range(len(ANYTHING))))
def test_a_chart_of_anything_has_a_text(value: Any) -> None:
    plotly = {
        "data": [value, {"type": value, "name": value}],
        "layout": {"title": value, "xaxis": value, "yaxis": {"title": value}},
    }
    vega = {"title": value, "mark": value, "encoding": {"x": value, "y": {"field": value}}, "layer": [value, {"mark": value}]}
    objects = [
        {"type": "object", "name": name, "attributes": value} for name in ("Title", "LinearAxis", "GlyphRenderer", value)
    ]
    bokeh = f"docs_json = {json.dumps({'d': [*objects, value]})};"
    charts: dict[str, dict[str, Any]] = {
        "plotly": {"application/vnd.plotly.v1+json": plotly},
        "plotly chart": {"application/vnd.plotly.v1+json": {"data": value, "layout": value}},
        "Vega": {"application/vnd.vegalite.v5+json": vega},
        "Vega chart": {"application/vnd.vegalite.v5+json": {"layer": value, "encoding": value}},
        "Bokeh": {"application/vnd.bokehjs_exec.v0+json": "", "application/javascript": bokeh},
    }
    for name, data in charts.items():
        assert output_text([DisplayData(data)]).startswith(f"[{name}")


def test_a_title_is_shown_in_part() -> None:
    figure = {"data": [{"name": "n" * 10**6}] * 100, "layout": {"title": " x" * 10**6}}
    text = output_text([DisplayData({"application/vnd.plotly.v1+json": figure})])
    assert text.startswith('[plotly chart "x x')
    assert text.endswith("- and 80 more")
    assert len(text) < 22 * 250


def test_a_script_of_many_elements_is_no_chart() -> None:
    script = f"docs_json = {json.dumps({'d': [{}] * 100_000})};"
    data = {"application/vnd.bokehjs_exec.v0+json": "", "application/javascript": script}
    assert output_text([DisplayData(data)]) == "<application/javascript, application/vnd.bokehjs_exec.v0+json>"


@pytest.mark.parametrize("tree", [[{}] * 100_001, {"a": [[1] * 60_000] * 2}, {str(n): n for n in range(100_001)}])
def test_json_of_many_elements_is_named_only(tree: Any) -> None:
    assert output_text([DisplayData({"application/json": tree})]) == "<application/json>"


def test_of_all_html_of_a_text_a_part_is_read() -> None:
    displays = [DisplayData({"text/html": f"<p>{'a' * 60_000}</p>"}) for _ in range(5)]
    assert [len(line) for line in output_text(displays).split("\n")[:3]] == [60_000] * 3
    assert output_text(displays).endswith("\n<text/html>")
    many = output_text([DisplayData({"text/html": "<b>x</b>" * 15_000})])
    assert many == "x" * 10_000


def test_data_without_a_text_is_named() -> None:
    assert output_text([DisplayData({"application/json": {5, 6}})]) == "[no text can be made of application/json]"


WIDGETS: dict[str, tuple[dict[str, Any], str]] = {
    "progress": ({"_model_name": "FloatProgressModel", "value": 2.5, "max": 10}, "2.5/10"),
    "progress of no number": ({"_model_name": "FloatProgressModel", "value": "x", "max": None}, ""),
    "progress of a number that no float holds": (
        {"_model_name": "IntProgressModel", "value": -1, "max": 10**400},
        "-1/about 10^400",
    ),
    "a range": ({"_model_name": "IntRangeSliderModel", "value": [1, 5], "description": "<b>a</b>"}, "a: [1, 5]"),
    "a choice": ({"_model_name": "DropdownModel", "_options_labels": ["a", "b"], "index": 1}, "b"),
    "choices": ({"_model_name": "SelectMultipleModel", "_options_labels": ["a", "b", 5], "index": [0, 2, 9]}, "a, 5"),
    "html": ({"_model_name": "HTMLModel", "value": "<p>a</p>"}, "a"),
    "a text": ({"_model_name": "TextModel", "value": "<p>"}, "<p>"),
    "titles": ({"_model_name": "TabModel", "children": ["IPY_MODEL_p", 5, "IPY_MODEL_w"], "titles": [5]}, "5: progress"),
}


@pytest.mark.parametrize(("state", "text"), WIDGETS.values(), ids=WIDGETS)
def test_a_widget_is_readable(state: dict[str, Any], text: str) -> None:
    assert describe_widget({"w": state, "p": {"_model_name": "TextModel", "value": "progress"}}, "w") == text


@pytest.mark.parametrize("value", [[1] * 10**6, "x" * 10**6, {"a": ["x" * 10**6] * 100}, 10**4000])
def test_of_a_widget_a_part_is_shown(value: Any) -> None:
    for name in ("FloatProgressModel", "HTMLModel", "TextModel", "IntRangeSliderModel"):
        assert len(describe_widget({"w": {"_model_name": name, "value": value, "description": value}}, "w")) <= 1010
    state = {"_model_name": "SelectModel", "_options_labels": [value] * 100, "index": list(range(100))}
    assert len(describe_widget({"w": state}, "w")) <= 500


def test_a_number_of_too_many_digits_is_text() -> None:
    number = f"&#{'1' * 5000};"
    assert output_text([DisplayData({"text/html": f"<p>{number}</p>"})]) == number
