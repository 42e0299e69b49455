"""Results in notebooks and terminals: what a cell's outputs become, and what hostile ones cannot do."""

from __future__ import annotations

import html
import io
import re
from typing import Any

import pytest
from IPython.core.formatters import DisplayFormatter
from rich.console import Console

from kernelexec.errors import InvalidRequest
from kernelexec.results import DisplayData, Error, ExecuteResult, ExecutionResult, Output, Stream
from tests.support.page_elements import PageElements

TABLE = ExecuteResult({"text/plain": "   a\n0  1", "text/html": "<table><tr><td>1</td></tr></table>"})
HOSTILE = [
    "<script>parent.alert(1)</script>",
    '"></iframe><script>alert(1)</script>',
    "<img src=x onerror=alert(1)>",
    "</pre><script>alert(1)</script>",
]


def result(*outputs: Output, **fields: Any) -> ExecutionResult:
    return ExecutionResult("id", "a", **{"status": "ok", "state": "kept", **fields}, outputs=outputs)


def bundle(*outputs: Output) -> dict[str, Any]:
    """What IPython shows for a result."""
    formatter: Any = DisplayFormatter()
    data, _ = formatter.format(result(*outputs))
    return dict(data)


def test_text_is_text_only() -> None:
    assert bundle(Stream("stdout", "1\n"), ExecuteResult({"text/plain": "2"})) == {"text/plain": "1\n2"}
    assert bundle(Error("E", "x", ("Traceback", "E: x")))["text/plain"] == "Traceback\nE: x"
    assert bundle() == {"text/plain": ""}


def test_a_table_is_a_table() -> None:
    shown = bundle(TABLE)
    assert shown["text/plain"] == "   a\n0  1"
    assert "<table><tr><td>1" in shown["text/html"]


def test_one_picture_or_chart_is_itself() -> None:
    assert bundle(DisplayData({"image/png": "aaaa", "text/plain": "f"})) == {"text/plain": "f", "image/png": "aaaa"}
    chart: dict[str, Any] = {"data": [], "layout": {}}
    assert bundle(DisplayData({"application/vnd.plotly.v1+json": chart}))["application/vnd.plotly.v1+json"] == chart


def test_several_outputs_are_one_page_in_order() -> None:
    page = bundle(Stream("stdout", "<1>"), DisplayData({"image/png": "aaaa"}), TABLE, Error("E", "x"))["text/html"]
    places = [page.index(part) for part in ("&lt;1&gt;", "data:image/png;base64,aaaa", "srcdoc=", "E: x")]
    assert places == sorted(places)


def test_markdown_is_a_page_and_a_formula_is_left_to_the_notebook() -> None:
    page = bundle(DisplayData({"text/markdown": "# T\n\n|a|b|\n|-|-|\n|1|<b>|", "text/plain": "md"}))
    assert page["text/plain"] == "md"
    assert "<h1>T</h1>" in html.unescape(html.unescape(page["text/html"]))
    assert "<td>&lt;b&gt;</td>" in html.unescape(html.unescape(page["text/html"]))
    formula = {"text/latex": r"$\frac{1}{2}$", "text/plain": "1/2"}
    assert bundle(DisplayData(formula)) == formula


@pytest.mark.parametrize(
    "command", [r"\href{javascript:x}{a}", r"\url{a}", r"\require{a}", r"\cssId{a}{b}", r"\htmlData{a=b}{c}"]
)
def test_a_formula_that_makes_links_or_names_is_text(command: str) -> None:
    assert "text/latex" not in bundle(DisplayData({"text/latex": f"${command}$", "text/plain": "f"}))


def test_a_traceback_has_colours_and_characters_of_one_width() -> None:
    lines = ("---\nZeroDivisionError   Traceback", "Cell In[1], line 1\n----> 1 1/0 < 2", "ZeroDivisionError: division by zero")
    page = bundle(Error("ZeroDivisionError", "division by zero", lines))["text/html"]
    assert len(re.findall(r'<span style="color:#d0453f">ZeroDivisionError', page)) == 2
    assert page.startswith('<pre style="font-family:var(--jp-code-font-family,monospace)">---\n')
    assert '<span style="color:#0a8f4f">----&gt; 1 1/0 &lt; 2</span>\n' in page


def check_frame(outer: str) -> None:
    """Check that the page in a frame holds another frame and nothing else, which leads nowhere and has a policy too."""
    page = PageElements(outer)
    assert [tag for tag, _ in page.elements] == ["meta", "style", "iframe"]
    policy, _, frame = (attributes for _, attributes in page.elements)
    assert str(policy["content"]).startswith("default-src 'none'; ")
    assert str(policy["content"]).endswith("; frame-src 'none'")
    assert frame.keys() == {"sandbox", "srcdoc"}
    assert frame["sandbox"] == "allow-scripts"
    assert str(frame["srcdoc"]).startswith('<meta http-equiv="Content-Security-Policy" content="default-src')


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("kind", ["html", "markdown", "stream", "error", "name", "svg", "plain", "other mime"])
def test_nothing_of_a_cell_is_an_element_of_the_page(kind: str, text: str) -> None:
    kinds: dict[str, Output] = {
        "html": DisplayData({"text/html": text}),
        "markdown": DisplayData({"text/markdown": text}),
        "stream": Stream("stdout", text),
        "error": Error(text, text, (text,)),
        "name": DisplayData({text: text, "text/html": "x"}),
        "svg": DisplayData({"image/svg+xml": text}),
        "plain": ExecuteResult({"text/plain": text}),
        "other mime": DisplayData({"application/javascript": text, "text/markdown": text}),
    }
    for outputs in ((kinds[kind],), (kinds[kind], TABLE)):
        page = PageElements(str(bundle(*outputs).get("text/html", "")))
        assert {tag for tag, _ in page.elements} <= {"pre", "span", "img", "iframe"}
        for tag, attributes in page.elements:
            assert attributes.keys() <= {"src", "sandbox", "srcdoc", "width", "height", "frameborder", "style"}
            assert tag != "span" or re.fullmatch(r"color:#[0-9a-f]{6}", str(attributes["style"]))
            if tag == "iframe":
                assert attributes["sandbox"] == "allow-scripts"
                check_frame(str(attributes["srcdoc"]))
        assert bundle(*outputs).keys() <= {"text/plain", "text/html"}


@pytest.mark.parametrize(
    ("markup", "height"),
    [
        ("<b>x</b>", 48),
        ("<tr>" * 9, 266),
        ("<div>\n<style scoped>\n</style>\n<table><thead><tr><tbody><tr><tr></table>\n</div>", 98),
        ("<div><style scoped></style><table>" + "<tr>" * 3 + "</table><p>2 rows</p></div>", 122),
        ("<p>a<p>b", 72),
        ("<tr>" * 99, 800),
        ("<script></script><div style='height:450px'>", 450),
        ("<script>", 48),
        ('<script>Plotly.newPlot({"height": 525})</script>', 525),
    ],
)
def test_a_frame_is_as_high_as_its_content_seems(markup: str, height: int) -> None:
    page = bundle(DisplayData({"text/html": markup}))["text/html"]
    assert f'height="{height}"' in re.sub(r'srcdoc="[^"]*"', "", page)


def test_a_page_that_loads_scripts_is_its_picture() -> None:
    page = bundle(DisplayData({"text/html": "<script src='https://x'>", "image/png": "aaaa"}), Stream("stdout", "1"))[
        "text/html"
    ]
    assert "iframe" not in page
    assert "data:image/png;base64,aaaa" in page


def test_rich_prints_the_text_and_a_verdict() -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=False)
    console.print(result(Stream("stdout", "[bold]x[/bold]\x1b[31m\x9b31m\n")))
    console.print(result())
    assert console.file.getvalue() == (  # type: ignore[attr-defined]
        "[bold]x[/bold]\\x9b31m\nok 0.00 s · '[bold]x[/bold]\\x9b31m' · state kept\nok 0.00 s · state kept\n"
    )


def test_a_result_is_its_text_and_its_success() -> None:
    assert str(result(ExecuteResult({"text/plain": "42"}))) == "42"
    assert result()
    assert not result(status="error")
    assert not result(status="running")


def test_the_parts_of_a_result() -> None:
    data = {"text/html": "<b>", "text/markdown": "*a*", "text/latex": "$x$", "application/json": [1], "image/png": "aaaa"}
    rich = result(DisplayData({"text/html": "<i>"}), DisplayData(data), Stream("stdout", "1"))
    assert (rich.html, rich.markdown, rich.latex, rich.json, rich.png) == ("<b>", "*a*", "$x$", [1], b"i\xa6\x9a")
    plain = result(Stream("stdout", "1"))
    assert (plain.html, plain.markdown, plain.latex, plain.json, plain.png) == (None,) * 5


@pytest.mark.parametrize(
    ("text", "literal", "value"),
    [("42", True, 42), ("[1, ...]", "[1, 2]", [1, 2]), ("{'a': (1, b'x')}", True, {"a": (1, b"x")}), ("None", True, None)],
)
def test_the_value_is_that_of_the_literal(text: str, literal: bool | str, value: object) -> None:  # noqa: FBT001
    assert result(ExecuteResult({"text/plain": text}), literal=literal).value == value


@pytest.mark.parametrize(
    ("text", "literal"),
    [
        ("42", False),
        ("<A>", True),
        ("[" * 10_000, True),
        ("'" + "a" * 70_000 + "'", True),
        ("__import__('os')", True),
        ("\0", True),
    ],
)
def test_results_without_a_literal_have_no_value(text: str, literal: bool) -> None:  # noqa: FBT001
    with pytest.raises(InvalidRequest, match=r"session.get\('_'\)"):
        _ = result(ExecuteResult({"text/plain": text}), literal=literal).value


def test_a_cell_without_a_value_has_none() -> None:
    assert result(Stream("stdout", "1")).value is None
