"""Pages of notebooks are made by the installed templates only: a cell can leave files where nbconvert looks for others."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import nbformat
import pytest

from kernelexec.records.notebook.html_report import load_exporter
from tests.support.night import at_night, named_cases
from tests.support.page_elements import PageElements

MARK = "run-by-a-template"
TEMPLATE = "{% set x = cycler.__init__.__globals__.os.mkdir('" + MARK + "') %}of a cell"


def notebook() -> str:
    output = nbformat.v4.new_output("execute_result", data={"text/plain": "42"}, execution_count=1)
    cells = [nbformat.v4.new_markdown_cell("# Title"), nbformat.v4.new_code_cell("6 * 7", outputs=[output], execution_count=1)]
    return str(nbformat.writes(nbformat.v4.new_notebook(cells=cells)))


NAMES = ("lab/index.html.j2", "lab/base.html.j2", "base/null.j2", "lab/conf.json")
DIRECTORIES = {"here": "", "a path": "nbconvert/templates", "home": "home/.local/share/jupyter/nbconvert/templates"}
TEMPLATES = {f"{name}, {at}": (directory, name) for at, directory in DIRECTORIES.items() for name in NAMES}
#: Each name, and each directory.
IN_THE_GATE = {*(f"{name}, here" for name in NAMES), "lab/index.html.j2, a path", "lab/index.html.j2, home"}


@pytest.mark.parametrize(("directory", "name"), named_cases(TEMPLATES, IN_THE_GATE))
def test_a_template_where_cells_can_write_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, directory: str, name: str
) -> None:
    path = tmp_path / directory / name
    path.parent.mkdir(parents=True)
    path.write_text('{"base_template": "none"}' if name.endswith("json") else TEMPLATE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    page = load_exporter()(notebook())
    assert "42" in page
    assert "of a cell" not in page
    assert not (tmp_path / MARK).exists()


HOSTILE = "</script></pre>'\"><script>document.title='ran'</script><img src=x onerror=alert(1)><base href='https://x'>&lt;"
CELLS: dict[str, Callable[[str], Any]] = {
    "Markdown": nbformat.v4.new_markdown_cell,
    "a link of Markdown": lambda text: nbformat.v4.new_markdown_cell(f"[a](javascript:{text}) [b]: data:text/html,{text}"),
    "a raw cell": lambda text: nbformat.v4.new_raw_cell(text, metadata={"raw_mimetype": "text/html"}),
    "code": nbformat.v4.new_code_cell,
    "a stream": lambda text: displayed(nbformat.v4.new_output("stream", text=text)),
    "an error": lambda text: displayed(nbformat.v4.new_output("error", ename=text, evalue=text, traceback=[text])),
    **{
        mime: partial(lambda text, mime: displayed(nbformat.v4.new_output("display_data", data={mime: text})), mime=mime)
        for mime in (
            *("text/plain", "text/html", "text/markdown", "text/latex", "text/vnd.mermaid", "image/svg+xml", "image/png"),
            *("application/javascript", "text/javascript", "application/json", "application/vnd.jupyter.widget-view+json"),
        )
    },
}


def displayed(output: Any) -> Any:
    return nbformat.v4.new_code_cell("x", outputs=[output])


@cache
def plain_page() -> PageElements:
    return page_of(nbformat.v4.new_code_cell("x"))


def page_of(*cells: Any, **metadata: Any) -> PageElements:
    notebook = nbformat.v4.new_notebook(cells=list(cells), metadata=metadata)
    return PageElements(load_exporter()(str(nbformat.writes(notebook))))


@pytest.mark.parametrize("kind", CELLS)
def test_nothing_of_a_cell_runs_in_the_page(kind: str) -> None:
    page, plain = page_of(CELLS[kind](HOSTILE)), plain_page()
    assert not any("'ran'" in script for script in page.scripts)
    assert [tag for tag, _ in page.elements if tag in {"script", "base", "object", "embed", "form", "meta", "link"}] == [
        tag for tag, _ in plain.elements if tag in {"script", "base", "object", "embed", "form", "meta", "link"}
    ]
    for tag, attributes in page.elements:
        assert not any(name.startswith("on") for name in attributes if tag != "body"), (tag, attributes)
        assert not str(attributes.get("href") or "").lower().startswith(("javascript:", "data:", "vbscript:"))
        assert tag != "iframe" or attributes["sandbox"] == "allow-scripts"


def test_widgets_load_nothing_and_the_policy_comes_first() -> None:
    state: dict[str, Any] = {"application/vnd.jupyter.widget-state+json": {"state": {}}}
    page = page_of(CELLS["application/vnd.jupyter.widget-view+json"](HOSTILE), widgets=state)
    assert [tag for tag, _ in page.elements[:3]] == ["html", "head", "meta"]
    assert str(page.elements[2][1]["content"]).startswith("default-src 'none'; ")
    assert not any("widget" in str(attributes.get("src")) for _, attributes in page.elements)


def test_ordinary_cells_look_as_ever() -> None:
    text = "# Title\n\n*a* **b** `c` [d](https://e.f)\n\n| g | h |\n| --- | ---: |\n| 1 | 2 |\n\n- i\n\n> j"
    table = nbformat.v4.new_output("display_data", data={"text/html": "<table><tr><td>1</td></tr></table>", "text/plain": "1"})
    page = page_of(nbformat.v4.new_markdown_cell(text), displayed(table))
    tags = [tag for tag, _ in page.elements]
    assert {"h1", "em", "strong", "code", "a", "table", "th", "td", "li", "blockquote", "iframe"} <= set(tags)
    assert ("a", {"href": "https://e.f"}) in page.elements
    [frame] = [attributes for tag, attributes in page.elements if tag == "iframe"]
    assert "<table><tr><td>1" in str(frame["srcdoc"])


@pytest.mark.parametrize("kind", ["a stream", *at_night("an error", "text/plain")])
def test_texts_with_many_colours_have_none(kind: str) -> None:
    """The time of nbconvert's own reader of colours is quadratic: the test would reach its limit."""
    few, many = "\x1b[31mred\x1b[0m", "\x1b[31mx\x1b[0m" * 100_000
    pages = [load_exporter()(nbformat.writes(nbformat.v4.new_notebook(cells=[CELLS[kind](text)]))) for text in (few, many)]
    assert ["ansi-red-fg" in page.partition("<body")[2] for page in pages] == [True, False]
    assert "x" * 100_000 in pages[1]
