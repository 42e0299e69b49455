"""Notebooks of other tools: what Jupyter runs is run, on the kernel that the notebook names, or is refused by that name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import LOCAL, cells_of, kernelexec
from tests.support.kernelspecs import BASH, write

pytestmark = pytest.mark.nightly

CODE: dict[str, Any] = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}


def given(directory: Path, *cells: dict[str, Any], **metadata: Any) -> str:
    notebook = {"cells": list(cells), "metadata": metadata, "nbformat": 4, "nbformat_minor": 4}
    (directory / "given.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
    return "given.ipynb"


def code(*sources: str, **more: Any) -> list[dict[str, Any]]:
    return [{**CODE, "source": source, **more} for source in sources]


def test_a_notebook_with_faults_is_run_and_the_faults_are_reported_in_one_line(tmp_path: Path) -> None:
    cell = {"cell_type": "code", "source": "print(6 * 7)"}
    done = kernelexec(tmp_path, "run", given(tmp_path, cell), *LOCAL)
    assert (done.returncode, done.stdout) == (0, "42\n")
    (line,) = [line for line in done.stderr.splitlines() if "repaired" in line]
    assert "cells without metadata, cells without outputs, cells without execution_count" in line
    assert cells_of(tmp_path / "given.executed.ipynb")[0].outputs[0].text == "42\n"


@pytest.mark.parametrize("cells", [[], [{"cell_type": "markdown", "metadata": {}, "source": "# T"}], code(" \n")])
def test_a_notebook_without_code_is_written_as_it_is(cells: list[dict[str, Any]], tmp_path: Path) -> None:
    done = kernelexec(tmp_path, "run", given(tmp_path, *cells), *LOCAL)
    assert (done.returncode, done.stdout) == (0, "")
    assert "given.ipynb has no code cell to run: wrote given.executed.ipynb" in done.stderr
    assert len(json.loads((tmp_path / "given.executed.ipynb").read_text())["cells"]) == len(cells)


def test_cells_that_are_tagged_are_not_run(tmp_path: Path) -> None:
    skipped = code("open('ran', 'w'); 1 / 0", metadata={"tags": ["skip-execution"]})
    done = kernelexec(tmp_path, "run", given(tmp_path, *code("print(1)"), *skipped, *code("print(2)")), *LOCAL)
    assert (done.returncode, done.stdout) == (0, "1\n2\n")
    assert not (tmp_path / "ran").exists()
    assert [cell.execution_count for cell in cells_of(tmp_path / "given.executed.ipynb")] == [1, None, 2]


@pytest.mark.parametrize(
    ("metadata", "name"),
    [
        ({"kernelspec": {"name": "ir", "display_name": "R", "language": "R"}}, "ir"),
        ({"kernelspec": {"name": "bash", "display_name": "Bash", "language": "bash"}}, "bash"),
        ({"language_info": {"name": "julia"}}, "julia"),
    ],
    ids=["R", "bash", "julia"],
)
def test_a_notebook_of_a_kernel_that_is_not_installed_is_refused_by_name(
    metadata: dict[str, Any], name: str, tmp_path: Path
) -> None:
    done = kernelexec(tmp_path, "run", given(tmp_path, *code("open('ran', 'w')"), **metadata), *LOCAL, JUPYTER_PATH="")
    assert (done.returncode, done.stdout) == (125, "")
    assert f"The kernelspec '{name}' is not installed." in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"given.ipynb"}


def test_a_notebook_runs_on_its_own_kernel(tmp_path: Path) -> None:
    write(tmp_path / "share", "bash", BASH, "bash", env={"PS1": "$"})
    metadata = {"kernelspec": {"name": "bash", "display_name": "Bash", "language": "bash"}}
    file = given(tmp_path, *code("kept=5; add() { echo $((kept + $1)); }", "add 37"), **metadata)
    done = kernelexec(tmp_path, "run", file, *LOCAL, JUPYTER_PATH=str(tmp_path / "share"))
    assert (done.returncode, done.stdout) == (0, "42\n")
    assert json.loads((tmp_path / "given.executed.ipynb").read_text())["metadata"]["kernelspec"] == metadata["kernelspec"]
