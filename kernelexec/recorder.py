"""The session's notebook: a valid ``.ipynb`` in its workspace, written whole and atomically after every cell."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from kernelexec.hooks import CellExecuted, DisplayUpdated, Event
from kernelexec.results import DisplayData, Error, ExecuteResult, ExecutionResult, Output, Stream

_METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python", "file_extension": ".py", "mimetype": "text/x-python"},
}


#: What a session's notebook may hold, in bytes of JSON; over it the outputs of its oldest cells are left out.
NOTEBOOK_BYTES = 64 * 1024 * 1024
_LEFT_OUT = {"output_type": "stream", "name": "stderr", "text": "[outputs left out: the notebook had grown too large]\n"}


class Recorder:
    """A hook that keeps the notebook. A failed write is tried again with the next cell: the file is always whole."""

    def __init__(self, path: Path, *, limit_bytes: int = NOTEBOOK_BYTES) -> None:
        self.path = path
        self._limit = limit_bytes
        self._texts: list[str] = []
        self._bytes = 0
        self._thinned = 0
        self._updatable: dict[int, dict[str, Any]] = {}
        self._shown: dict[str, list[tuple[int, dict[str, Any]]]] = {}

    def __call__(self, event: Event, /) -> None:
        """Record a finished cell, or new content of an earlier display."""
        match event:
            case CellExecuted():
                self._add(event)
                self._write()
            case DisplayUpdated():
                self._update(event.display_id, event.data, event.metadata)

    def _add(self, event: CellExecuted) -> None:
        number, cell = len(self._texts), code_cell(event.cell.source, event.result)
        for output, recorded in zip(event.result.outputs, cell["outputs"], strict=True):
            if isinstance(output, DisplayData | ExecuteResult) and output.display_id is not None:
                self._shown.setdefault(output.display_id, []).append((number, recorded))
                self._updatable[number] = cell
        self._texts.append("")
        self._set(number, cell)

    def _update(self, display_id: str, data: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        for number, recorded in self._shown.get(display_id, ()):
            if number in self._updatable:
                recorded["data"], recorded["metadata"] = dict(data), dict(metadata)
                self._set(number, self._updatable[number])

    def _set(self, number: int, cell: dict[str, Any]) -> None:
        text = _dump(cell)
        self._bytes += len(text) - len(self._texts[number])
        self._texts[number] = text
        while self._bytes > self._limit and self._thinned < number:
            thin = json.loads(self._texts[self._thinned])
            if thin["outputs"]:
                thin["outputs"] = [_LEFT_OUT]
            short = _dump(thin)
            self._bytes += len(short) - len(self._texts[self._thinned])
            self._texts[self._thinned] = short
            self._updatable.pop(self._thinned, None)
            self._thinned += 1

    def _write(self) -> None:
        text = '{"cells": [' + ",\n".join(self._texts) + '],\n"metadata": ' + _dump(_METADATA)
        write_atomically(self.path, text + ',\n"nbformat": 4,\n"nbformat_minor": 5}\n')


def code_cell(source: str, result: ExecutionResult) -> dict[str, Any]:
    """A cell with its outputs in the notebook format 4.5."""
    return {
        "cell_type": "code",
        "id": result.execution_id[:16],
        "metadata": {"kernelexec": {"execution_id": result.execution_id, "status": result.status, "state": result.state}},
        "execution_count": result.execution_count,
        "source": source,
        "outputs": [notebook_output(output) for output in result.outputs],
    }


def notebook_output(output: Output) -> dict[str, Any]:
    """An output in the notebook format."""
    match output:
        case Stream():
            return {"output_type": "stream", "name": output.name, "text": output.text}
        case DisplayData():
            return {"output_type": "display_data", "data": output.data, "metadata": output.metadata}
        case ExecuteResult():
            return {
                "output_type": "execute_result",
                "data": output.data,
                "metadata": output.metadata,
                "execution_count": output.execution_count,
            }
        case Error():
            return {
                "output_type": "error",
                "ename": output.ename,
                "evalue": output.evalue,
                "traceback": list(output.traceback),
            }


def write_atomically(path: Path, text: str) -> None:
    """Replace a file as a whole: a reader sees the old one or the new one; a link in its place is replaced, not followed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with suppress(FileNotFoundError):
        temporary.unlink()
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1)
