"""nbclient is the oracle of output fidelity: the same notebook through both gives the same outputs."""

from __future__ import annotations

import asyncio
import copy
import shutil
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

from kernelexec import AsyncExecutor
from kernelexec.records.notebook.notebook_io import CellFile
from kernelexec.results import strip_ansi
from tests.support.paths import ROOT

HERE = Path(__file__).resolve().parent
NOTEBOOKS = [*sorted((HERE / "oracle").glob("*.ipynb")), ROOT / "notebooks" / "penguins.ipynb"]

#: What stands between the exceptions of a traceback.
CHAINED = ("the direct cause of the following exception:", "another exception occurred:")


def through_nbclient(path: Path, directory: Path) -> Any:
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(notebook, kernel_name="python3", coalesce_streams=False, timeout=120)
    client.execute(cwd=str(directory))
    return notebook


def through_kernelexec(path: Path, directory: Path) -> Any:
    async def run() -> Any:
        options = {"notebook": False, "save_displays": False}
        document = CellFile.read(path)
        async with AsyncExecutor("local", config=options, hooks=[document.on_event]) as executor:
            session = await executor.session("oracle", work_dir=directory)
            for number, source in enumerate(document.sources):
                document.record(number, await session.execute(source, timeout=120))
        target = directory / "executed.ipynb"
        document.write(target)
        return nbformat.read(target, as_version=4)

    return asyncio.run(run())


def joined(outputs: list[Any]) -> list[Any]:
    """Outputs with what the two may write differently made equal: ANSI colours, and where a stream is parted."""
    actual: list[Any] = []
    for output in copy.deepcopy(outputs):
        if output.output_type == "error":
            blocks = strip_ansi("\n".join(output.traceback)).split("\n\n")
            output.traceback = [block for block in blocks if not block.startswith("File ")]  # frames of libraries
            later = max((number for number, block in enumerate(output.traceback) if block.endswith(CHAINED)), default=0)
            # IPython 9.18 marks another line of an exception that was handled; see launcher/ipython/tracebacks
            output.traceback[:later] = [block.partition("Cell In[")[0] for block in output.traceback[:later]]
        last = actual[-1] if actual else None
        if last and output.output_type == "stream" == last.output_type and output.name == last.name:
            last.text += output.text
        else:
            actual.append(output)
    for output in actual:
        if output.output_type == "stream":
            text = output.text.replace("\r\n", "\n")  # ipykernel runs !commands on a terminal, which adds returns
            output.text = nbclient.client._RGX_CARRIAGERETURN.sub("", text) if "\r" in text else text
    return actual


def test_there_are_notebooks_to_compare() -> None:
    assert len(NOTEBOOKS) >= 10


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_those_of_nbclient(path: Path, short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # with it, ipykernel leaves the descriptors of its streams alone
    places = [short_path / name for name in ("theirs", "ours")]
    for location in places:
        location.mkdir()
        shutil.copy(path, location)
    theirs, ours = through_nbclient(path, places[0]), through_kernelexec(path, places[1])
    for their_cell, our_cell in zip(theirs.cells, ours.cells, strict=True):
        if their_cell.cell_type == "code":
            assert joined(our_cell.outputs) == joined(their_cell.outputs), their_cell.source
            assert our_cell.execution_count == their_cell.execution_count
