"""Whole notebooks as their users run them: ``jupyter execute`` (nbclient) beside ``kernelexec run``, outputs and times.

A cell's outputs are compared as ``tests/local/outputs/test_oracle.py`` compares them. Where they differ, nbclient's own second
run tells what is random by nature: a cell that it does not repeat itself is counted apart.
"""

from __future__ import annotations

import difflib
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat

from tests.support.equal_outputs import comparable_outputs

#: Seconds that a cell may run.
TIMEOUT = 600
#: Lines of a difference that are shown.
LINES_MAX = 14
#: Runs of nbclient that tell what is random by nature: values from a small range can be equal by chance.
MORE_RUNS = 3
SCRIPTS = Path(sys.executable).parent


def executed_path(path: Path) -> Path:
    return path.with_name("executed.ipynb")


def nbclient_run(path: Path) -> list[str]:
    command = [str(SCRIPTS / "jupyter-execute"), "--allow-errors", f"--timeout={TIMEOUT}", "--kernel_name=python3"]
    return [*command, f"--output={executed_path(path).stem}", str(path)]


def kernelexec_run(path: Path) -> list[str]:
    command = [str(SCRIPTS / "kernelexec"), "run", "--isolation", "local", "--allow-errors", "--timeout", str(TIMEOUT)]
    return [*command, "--output", str(executed_path(path)), str(path)]


def executed(command: Any, path: Path) -> tuple[float, list[Any]]:
    """Run a copy of the directory that holds a notebook, as tools run them: seconds, and the code cells of the result."""
    with tempfile.TemporaryDirectory(prefix="notebooks-") as directory:
        copied = Path(directory, path.parent.name)
        shutil.copytree(path.parent, copied)
        target = copied / path.name
        start = time.perf_counter()
        process = subprocess.run(command(target), cwd=copied, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - start
        if not executed_path(target).exists():
            raise RuntimeError(f"{path.name}: {process.stderr[-2000:]}")
        return seconds, [cell for cell in nbformat.read(executed_path(target), as_version=4).cells if cell.cell_type == "code"]


def differing_cells(theirs: list[Any], ours: list[Any]) -> list[int]:
    """The indices of code cells that have other outputs or another execution count."""
    pairs = zip(theirs, ours, strict=True)
    return [
        index
        for index, (their_cell, our_cell) in enumerate(pairs)
        if (comparable_outputs(their_cell.outputs), their_cell.execution_count)
        != (comparable_outputs(our_cell.outputs), our_cell.execution_count)
    ]


def random_cells(path: Path, theirs: list[Any]) -> set[int]:
    """The indices of code cells that nbclient does not repeat in some more runs."""
    return {index for _ in range(MORE_RUNS) for index in differing_cells(theirs, executed(nbclient_run, path)[1])}


def difference(their_cell: Any, our_cell: Any) -> str:
    before, after = (json.dumps(comparable_outputs(cell.outputs), indent=1).splitlines() for cell in (their_cell, our_cell))
    lines = list(difflib.unified_diff(before, after, "nbclient", "kernelexec", lineterm="", n=1))
    return "\n".join(line[:200] for line in lines[:LINES_MAX])


def compare_notebooks(directory: Path, rounds: int) -> bool:
    """Run each notebook of ``directory`` through both, print times and differences; False if a cell differs that should not."""
    ratios, differences = [], 0
    for path in sorted(directory.glob("*.ipynb")):
        times: dict[Any, list[float]] = {nbclient_run: [], kernelexec_run: []}
        cells: dict[Any, list[Any]] = {}
        for number in range(rounds):
            for command in (nbclient_run, kernelexec_run) if number % 2 == 0 else (kernelexec_run, nbclient_run):
                seconds, cells[command] = executed(command, path)
                times[command].append(seconds)
        theirs, ours = cells[nbclient_run], cells[kernelexec_run]
        changed = differing_cells(theirs, ours)
        random = random_cells(path, theirs) if changed else set[int]()
        medians = [statistics.median(values) for values in times.values()]
        ratios.append(medians[1] / medians[0])
        errors = sum(output.output_type == "error" for cell in theirs for output in cell.outputs)
        counts = f"{len(theirs)} cells, {errors} errors, {len(random.intersection(changed))} random by nature"
        print(f"{path.name}: {medians[0]:.2f} / {medians[1]:.2f} s = {ratios[-1]:.3f}, {counts}", flush=True)
        for index in sorted(set(changed) - random):
            differences += 1
            print(f"  DIFFERS in code cell {index}: {theirs[index].source[:100]!r}")
            print(difference(theirs[index], ours[index]), flush=True)
    print(
        f"{len(ratios)} notebooks, time beside nbclient's: median {statistics.median(ratios):.3f}; {differences} cells differ"
    )
    return not differences
