"""The executed notebook has what nbclient's has: whole displays, widgets and their captured output, the language, the times."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nbformat

from kernelexec import Executor
from tests.conftest import Command
from tests.support.command_line import LOCAL, notebook
from tests.support.stock_kernel import run_by_nbclient

CAPTURED = """
import ipywidgets
from IPython.display import clear_output
box = ipywidgets.Output()
print('important')
with box:
    print('temporary'); clear_output()
    print('captured')
"""


def executed(command: Command, tmp_path: Path, *sources: str) -> Any:
    """The notebook by us."""
    done = command(tmp_path, "run", notebook(tmp_path, *sources), *LOCAL)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "given.executed.ipynb").read_text(encoding="utf-8")
    nbformat.validate(json.loads(text))
    return nbformat.reads(text, as_version=4)


def through_nbclient(tmp_path: Path, *sources: str) -> Any:
    document = nbformat.read(tmp_path / notebook(tmp_path, *sources), as_version=4)
    run_by_nbclient(document, tmp_path, timeout=60)
    return document


def code_cells(document: Any) -> list[Any]:
    return [cell for cell in document.cells if cell.cell_type == "code"]


def test_displays_are_whole(tmp_path: Path, in_process: Command) -> None:
    a_page = "from IPython.display import HTML; HTML('<p>' + 'x' * 3_000_000 + '</p>')"
    a_picture = "display({'image/png': 'A' * 17_000_000, 'text/plain': 'a picture'}, raw=True)"
    a_chart = "display({'application/vnd.x+json': {'rows': ['y' * 1000] * 2000}, 'text/html': '<b>' * 500_000}, raw=True)"
    sources = a_page, a_picture, a_chart
    documents = executed(in_process, tmp_path, *sources), through_nbclient(tmp_path, *sources)
    for source, ours, theirs in zip(sources, *map(code_cells, documents), strict=True):
        assert [dict(output.data) for output in ours.outputs] == [dict(output.data) for output in theirs.outputs], source


def test_the_language_and_the_times_are_there(tmp_path: Path, in_process: Command) -> None:
    before = datetime.now(UTC)
    ours = executed(in_process, tmp_path, "1", "import time; time.sleep(0.2)")
    after, theirs = datetime.now(UTC), through_nbclient(tmp_path, "1")
    assert ours.metadata.language_info == theirs.metadata.language_info
    times = code_cells(ours)[1].metadata.execution
    assert set(times) == set(code_cells(theirs)[0].metadata.execution)
    began, ended = (datetime.fromisoformat(times[name]) for name in ("iopub.execute_input", "shell.execute_reply"))
    assert (ended - began).total_seconds() >= 0.2
    assert before < began < ended < after


def test_widgets_are_kept_and_capture_their_output(tmp_path: Path, in_process: Command) -> None:
    sources = CAPTURED, "ipywidgets.IntSlider(3)", "with box:\n    raise ValueError('in the box')"
    ours = executed(in_process, tmp_path, *sources)
    # nbclient may miss the reply to a cell that has a widget capture output, until its timeout.
    theirs = through_nbclient(tmp_path, "import ipywidgets; box = ipywidgets.Output()", sources[1])
    mime = "application/vnd.jupyter.widget-state+json"
    states = [document.metadata.widgets[mime]["state"] for document in (ours, theirs)]
    models = [sorted(state["model_name"] for state in content.values()) for content in states]
    assert models[0] == models[1]
    (box,) = [state["state"] for state in states[0].values() if state["model_name"] == "OutputModel"]
    assert box["outputs"][0] == {"output_type": "stream", "name": "stdout", "text": "captured\n"}
    assert box["outputs"][1]["ename"] == "ValueError"
    assert [[output.get("text") for output in cell.outputs] for cell in code_cells(ours)[::2]] == [["important\n"], []]
    (slider,) = [state["state"] for state in states[0].values() if state["model_name"] == "IntSliderModel"]
    assert slider["value"] == 3


def test_pager_text_is_on_the_screen_and_in_no_notebook(tmp_path: Path, in_process: Command) -> None:
    pagers = "len?", "%pinfo2 json.dumps", "%prun -q sum(range(10))", "%prun sum(range(10))", "%lsmagic"
    sources = [f"import json\n{source}" for source in pagers]
    ours, theirs = executed(in_process, tmp_path, *sources), through_nbclient(tmp_path, *sources)
    with Executor("local", workspace=tmp_path / "spaces") as executor, executor.session("a") as session:
        texts = [session.execute(code).text for code in sources]
        session.save_notebook()
        assert session.notebook is not None
        saved = nbformat.read(session.notebook, as_version=4)
    for source, *cells in zip(pagers, *map(code_cells, (ours, theirs, saved)), strict=True):
        kinds = [[output.output_type for output in cell.outputs] for cell in cells]
        assert kinds[0] == kinds[1] == kinds[2], source
    assert [bool(text.strip()) for text in texts] == [source != "%prun -q sum(range(10))" for source in pagers]
