"""Pages of notebooks are made by the installed templates only: a cell can leave files where nbconvert looks for others."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from kernelexec.records.notebook.html_report import load_exporter

MARK = "run-by-a-template"
TEMPLATE = "{% set x = cycler.__init__.__globals__.os.mkdir('" + MARK + "') %}of a cell"


def notebook() -> str:
    output = nbformat.v4.new_output("execute_result", data={"text/plain": "42"}, execution_count=1)
    cells = [nbformat.v4.new_markdown_cell("# Title"), nbformat.v4.new_code_cell("6 * 7", outputs=[output], execution_count=1)]
    return str(nbformat.writes(nbformat.v4.new_notebook(cells=cells)))


@pytest.mark.parametrize("name", ["lab/index.html.j2", "lab/base.html.j2", "base/null.j2", "lab/conf.json"])
@pytest.mark.parametrize("directory", ["", "nbconvert/templates", "home/.local/share/jupyter/nbconvert/templates"])
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
