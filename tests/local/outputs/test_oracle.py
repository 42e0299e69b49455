"""nbclient is the oracle of output fidelity: the same notebook through both gives the same outputs."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import nbformat
import pytest

from kernelexec import AsyncExecutor
from kernelexec.records.notebook.notebook_io import CellFile
from tests.support.equal_outputs import comparable_outputs
from tests.support.paths import ROOT
from tests.support.stock_kernel import run_by_nbclient

pytestmark = pytest.mark.nightly

HERE = Path(__file__).resolve().parent
NOTEBOOKS = [*sorted((HERE / "oracle").glob("*.ipynb")), ROOT / "notebooks" / "penguins.ipynb"]


def through_nbclient(path: Path, directory: Path) -> Any:
    notebook = nbformat.read(path, as_version=4)
    run_by_nbclient(notebook, directory, coalesce_streams=False, timeout=120)
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
            assert comparable_outputs(our_cell.outputs) == comparable_outputs(their_cell.outputs), their_cell.source
            assert our_cell.execution_count == their_cell.execution_count
