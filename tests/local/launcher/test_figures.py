"""Each figure is shown in its own cell with its own style, whatever context the first one was made in."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

from kernelexec import Executor
from tests.support.preloading import make_font_list, preloaded_session
from tests.support.stock_kernel import run_by_nbclient

pytestmark = pytest.mark.nightly

PRELOADED = ("pandas", "matplotlib.pyplot")
LATER = ("plt.plot([3, 4]);", "plt.plot([5, 6]); plt.show()", "with plt.style.context('bmh'):\n    plt.plot([7, 8]);")
CONTEXTS = {
    "a style": ("import matplotlib.pyplot as plt\nwith plt.style.context('ggplot'):\n    plt.plot([1, 2]);", *LATER),
    "settings": (
        "import matplotlib.pyplot as plt\nwith plt.rc_context({'lines.linewidth': 5}):\n    plt.plot([1, 2]);",
        *LATER,
    ),
    "xkcd": (
        "import logging\nlogging.disable()\nimport matplotlib.pyplot as plt\nwith plt.xkcd():\n    plt.plot([1, 2]);",
        *LATER,
    ),
    "a shown figure": (
        "import matplotlib.pyplot as plt\nwith plt.style.context('ggplot'):\n    plt.plot([1, 2]); plt.show()\nplt.plot([1]);",
        *LATER,
    ),
    "an empty context": ("import matplotlib as m\nwith m.rc_context():\n    m.pyplot.plot([1]);\nplt = m.pyplot", *LATER),
    "a function of pandas": (
        "import pandas as pd, matplotlib.pyplot as plt\nwith plt.style.context('ggplot'):\n    pd.Series([1, 2]).plot();",
        "pd.DataFrame({'a': [1, 2]}).plot();",
        *LATER,
    ),
    "no context": ("import matplotlib.pyplot as plt\nplt.plot([1, 2]);", "plt.style.use('ggplot'); plt.plot([1]);", *LATER),
}


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    make_font_list()
    config = {"preload": PRELOADED}
    with Executor("local", workspace=tmp_path_factory.mktemp("workspace"), config=config) as opened:
        yield opened


def run_in_nbclient(cells: tuple[str, ...]) -> list[list[bytes]]:
    """The images of each cell, with the backend turned on before the first."""
    contents = [nbformat.v4.new_code_cell(code) for code in ("%matplotlib inline\nimport matplotlib.pyplot", *cells)]
    notebook = nbformat.v4.new_notebook(cells=contents)
    run_by_nbclient(notebook)
    return [
        [base64.b64decode(output.data["image/png"]) for output in cell.outputs if "image/png" in output.get("data", {})]
        for cell in notebook.cells[1:]
    ]


@pytest.mark.parametrize("cells", CONTEXTS.values(), ids=CONTEXTS)
def test_figures_are_those_of_nbclient(executor: Executor, cells: tuple[str, ...]) -> None:
    session = preloaded_session(executor, *PRELOADED)
    actual = [[image.content for image in session.execute(code, timeout=60).images] for code in cells]
    session.close()
    expected = run_in_nbclient(cells)
    assert [len(images) for images in actual] == [len(images) for images in expected]
    assert actual == expected


def test_a_cell_that_turns_the_interactive_mode_off_is_obeyed(executor: Executor) -> None:
    session = executor.session("off")
    cells = ("import matplotlib.pyplot as plt\nplt.plot([1]); plt.ioff();", "plt.plot([2]);", "plt.show()")
    assert [len(session.execute(code, timeout=60).images) for code in cells] == [1, 0, 1]


def test_the_settings_file_of_the_directory_counts(tmp_path: Path) -> None:
    (tmp_path / "next").mkdir()
    (tmp_path / "next" / "matplotlibrc").write_text("figure.figsize: 2, 1\n")
    code = (
        "import matplotlib as m\nm.rcParams['figure.figsize'] = 1, 1\nm.rc_file_defaults()\nprint(m.rcParams['figure.figsize'])"
    )
    for preloaded in (True, False):
        with Executor("local", workspace=tmp_path, config={"fork_server": preloaded, "preload": PRELOADED}) as opened:
            session = preloaded_session(opened, *PRELOADED) if preloaded else opened.session("next")
            assert session.execute(code, timeout=60).text == "[2.0, 1.0]\n"
