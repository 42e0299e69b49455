"""Every notebook that teaches runs from its first cell to its last, and shows what it says."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.support.engine import IMAGE, needs_engine
from tests.support.paths import ROOT
from tests.support.stock_kernel import run_by_nbclient

FOLDER = ROOT / "notebooks"
#: What each shows, line by line of its output, in that order.
SHOWN: dict[str, tuple[str, ...]] = {
    "quick_start": (
        "status ok",
        "state kept",
        "interrupted timeout - by interrupt - state kept",
        "state restored",
        "lost: nothing",
        "count is 1",
    ),
    "data_analysis": (
        "B is slower",
        "407 rows were in seconds",
        "B is faster",
        "timeout - state kept",
        "the same interval: '27 to 39'",
    ),
    "debugging_loop": ("True after 3 tries: 4.0", "3 PASS, 1 FAIL, 2 ERROR", "stock is [5, 7] - kernel 1", "version 3: 3 PASS"),
    "mcp_client": (
        "connected: True",
        "['text', 'image'] image/png",
        "is_error: False",
        "is_error: True",
        "connected: False",
    ),
    "containers_and_limits": (
        "interfaces: ['lo']",
        "cause oom",
        "ok (700, [1, 2, 3]) - kernel 2",
        "state kept",
        "total.txt: 60.00 EUR",
    ),
    "three_cleanings": (
        "240 rows again",
        "error, state restored",
        "sensors drop mean interpolate",
        "interpolate stays: sensors",
        "undone  import ctypes",
    ),
    "ag2_agents": ("exitcode: 1 (execution failed)", "exitcode: 0 (execution succeeded)", "timeout kept", "Code output: 7"),
}
#: The notebook that the README's first command runs has a test of its own there.
ELSEWHERE = {"penguins"}
#: What others show too: tests of the frameworks, of the MCP server, of retries and of cases, and the README's first command.
AT_NIGHT = {*SHOWN} - {"quick_start"}


def _marks(name: str) -> list[pytest.MarkDecorator]:
    return [*([needs_engine] if "containers" in name else []), *([pytest.mark.nightly] if name in AT_NIGHT else [])]


@pytest.mark.parametrize("name", [pytest.param(name, marks=_marks(name)) for name in SHOWN])
@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")  # nbclient's own
def test_a_notebook_shows_what_it_says(name: str, tmp_path: Path) -> None:
    shutil.copy(FOLDER / f"{name}.ipynb", tmp_path)
    notebook = nbformat.read(tmp_path / f"{name}.ipynb", as_version=4)
    for cell in notebook.cells:
        if cell.source.startswith("images = "):
            cell.source = f"images = [{IMAGE!r}]"
    run_by_nbclient(notebook, tmp_path, timeout=120)
    text = printed(notebook)
    directory = 0
    for line in SHOWN[name]:
        assert line in text[directory:]
        directory = text.index(line, directory)


def test_every_notebook_has_a_test_and_its_outputs() -> None:
    actual = {
        path.stem for path in FOLDER.glob("*.ipynb") if not path.stem.endswith(".executed")
    }  # `kernelexec run` makes these
    assert actual == {*SHOWN, *ELSEWHERE}
    for name in SHOWN:
        notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
        nbformat.validate(notebook)
        assert SHOWN[name][0] in printed(notebook)
        assert "/tmp/" not in printed(notebook).replace("'/tmp/note'", "")


def printed(notebook: Any) -> str:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return "".join(str(output["text"]) for output in outputs if output.get("name") == "stdout")
