"""The text of Jupyter widgets is that of their present state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import nbformat
import pytest

from kernelexec import Executor, Session

WIDGETS = {
    "a slider": ("w.IntSlider(value=7, description='n')", "n: 7"),
    "a changed slider": ("s = w.FloatSlider(value=1); display(s); s.value = 2.5", "2.5"),
    "a row": ("w.HBox([w.HTML('<b>bold</b> text'), w.Label('hello'), w.Button(description='Go')])", "bold text hello Go"),
    "a column in a row": ("w.HBox([w.VBox([w.Label('a'), w.Label('b')]), w.Label('c')])", "a\nb c"),
    "a choice": ("w.Dropdown(options=['a', 'b'], value='b', description='pick')", "pick: b"),
    "several choices": ("w.SelectMultiple(options=[('x', 1), ('y', 2), ('z', 3)], value=(1, 3))", "x, z"),
    "tabs": ("w.Tab([w.Checkbox(description='c'), w.Text('t')], titles=['One', 'Two'])", "One: c: False\nTwo: t"),
    "a box within itself": ("b = w.VBox([]); b.children = [b, w.Label('x')]; display(b)", "x"),
    "no text": ("w.VBox([])", "VBox()"),
    "progress": ("w.IntProgress(value=2, max=9, description='Load')", "Load: 2/9"),
}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with Executor("local", workspace=tmp_path_factory.mktemp("workspaces"), config={"notebook": True}) as executor:
        opened = executor.session()
        opened.execute("import ipywidgets as w")
        yield opened


@pytest.mark.parametrize(("code", "text"), WIDGETS.values(), ids=WIDGETS)
def test_a_widget_is_readable(session: Session, code: str, text: str) -> None:
    assert session.execute(code).text == text


def test_a_progress_bar_shows_where_it_ended(session: Session) -> None:
    result = session.execute("from tqdm.notebook import tqdm\nfor n in tqdm(range(3), desc='Load'): pass")
    assert result.text.startswith("Load: 100% 3/3 3/3 [00:00<00:00")


def test_a_notebook_keeps_the_plain_text_of_the_message(session: Session) -> None:
    session.execute("w.IntSlider(value=41, description='kept')")
    session.save_notebook()
    (path,) = session.workspace.glob("*.ipynb")
    notebook: Any = nbformat.read(path, as_version=4)
    assert notebook.cells[-1].outputs[0].data["text/plain"] == "IntSlider(value=41, description='kept')"
