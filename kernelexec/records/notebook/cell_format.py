"""Cells and their outputs in the notebook format."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from kernelexec.cells import Cell, ShellCell
from kernelexec.launcher.protocol import PAGER
from kernelexec.results import DisplayData, Error, ExecuteResult, ExecutionResult, Output, Stream

#: The tag of cells that are not run, as in nbclient.
SKIPPED = "skip-execution"
_JSON_TYPE = re.compile(r"application/(?:.*\+)?json")


def code_cell(cell: Cell, result: ExecutionResult, outputs: Iterable[Output]) -> dict[str, Any]:
    """Return a cell with its outputs in the notebook format 4.5, and metadata for a replay."""
    noted = {"execution_id": result.execution_id, "status": result.status, "state": result.state, "seconds": result.timing.run}
    if isinstance(cell, ShellCell) and cell.persistent:
        options = {} if cell.options is None else {"options": cell.options.to_record()}
        noted["command"] = {"work_dir": cell.work_dir, "stdin": cell.stdin, **options}
    if cell.language != "python":
        noted["language"] = cell.language
    return {
        "cell_type": "code",
        "id": result.execution_id[:16],
        "metadata": {"kernelexec": noted},
        "execution_count": result.execution_count,
        "source": cell.source,
        "outputs": [notebook_output(output) for output in saved_outputs(outputs)],
    }


def mark_undone(cell: dict[str, Any], *, is_undone: bool) -> None:
    """Mark a cell of ``code_cell`` as undone, so that tools that run the notebook skip it; or remove the mark."""
    metadata = cell["metadata"]
    if is_undone:
        metadata["tags"] = [SKIPPED]
        metadata["kernelexec"]["undone"] = True
    else:
        metadata.pop("tags", None)
        metadata["kernelexec"].pop("undone", None)


def saved_outputs(outputs: Iterable[Output]) -> list[Output]:
    """Return the outputs that a notebook has: not the text of help and profiles, which Jupyter shows in a pager."""
    return [output for output in outputs if not (isinstance(output, DisplayData) and output.metadata.get(PAGER) is True)]


def notebook_output(output: Output) -> dict[str, Any]:
    """Return an output in the notebook format."""
    match output:
        case Stream():
            return {"output_type": "stream", "name": output.name, "text": output.text}
        case DisplayData() | ExecuteResult():
            content = {"data": bundle(output.data), "metadata": output.metadata}
            if isinstance(output, DisplayData):
                return {"output_type": "display_data", **content}
            return {"output_type": "execute_result", **content, "execution_count": output.execution_count}
        case Error():
            traceback = list(output.traceback)
            return {"output_type": "error", "ename": output.ename, "evalue": output.evalue, "traceback": traceback}


def bundle(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mime bundle of the format: JSON for JSON media types, text for all others."""
    return {
        mime: value if isinstance(value, str) or _JSON_TYPE.fullmatch(mime) else json.dumps(value, ensure_ascii=False)
        for mime, value in data.items()
    }
