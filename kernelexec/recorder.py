"""The session's notebook: a valid ``.ipynb`` in its workspace, written whole and atomically after every cell."""

from __future__ import annotations

import json
import os
import re
from collections import deque
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
_JSON_TYPE = re.compile(r"application/(?:.*\+)?json")
_LEFT_OUT = {"output_type": "stream", "name": "stderr", "text": "[outputs left out: the notebook had grown too large]\n"}


class Recorder:
    """A hook that keeps the notebook. A failed write is tried again with the next cell: the file is always whole."""

    def __init__(self, path: Path, *, limit_bytes: int = NOTEBOOK_BYTES) -> None:
        self.path = path
        self._limit = limit_bytes
        self._texts: list[bytes] = []
        self._bytes = 0
        self._thinned = 0
        self._updatable: dict[int, dict[str, Any]] = {}
        self._shown: dict[str, deque[tuple[int, dict[str, Any]]]] = {}

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
                self._shown.setdefault(output.display_id, deque()).append((number, recorded))
                self._updatable[number] = cell
        self._texts.append(b"")
        self._set(number, _dump(cell))
        while self._bytes > self._limit and self._thinned < number:
            self._thin(self._thinned)
            self._thinned += 1

    def _update(self, display_id: str, data: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        for number, recorded in self._shown.get(display_id, ()):
            recorded["data"], recorded["metadata"] = _bundle(data), dict(metadata)
            self._set(number, _dump(self._updatable[number]))

    def _set(self, number: int, text: bytes) -> None:
        self._bytes += len(text) - len(self._texts[number])
        self._texts[number] = text

    def _thin(self, number: int) -> None:
        """Leave the outputs of a cell out, and forget its displays."""
        cell = json.loads(self._texts[number])
        if cell["outputs"]:
            self._set(number, _dump({**cell, "outputs": [_LEFT_OUT]}))
        if self._updatable.pop(number, None) is None:
            return
        for display_id, shown in list(self._shown.items()):
            while shown and shown[0][0] <= number:
                shown.popleft()
            if not shown:
                del self._shown[display_id]

    def _write(self) -> None:
        head, middle = b'{"cells": [' + b",\n".join(self._texts), b'],\n"metadata": ' + _dump(_METADATA)
        write_atomically(self.path, head + middle + b',\n"nbformat": 4,\n"nbformat_minor": 5}\n')


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
            return {"output_type": "display_data", "data": _bundle(output.data), "metadata": output.metadata}
        case ExecuteResult():
            return {
                "output_type": "execute_result",
                "data": _bundle(output.data),
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


def _bundle(data: Mapping[str, Any]) -> dict[str, Any]:
    """A mime bundle as the format has it: JSON where the media type says so, text everywhere else."""
    return {
        mime: value if isinstance(value, str) or _JSON_TYPE.fullmatch(mime) else json.dumps(value, ensure_ascii=False)
        for mime, value in data.items()
    }


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file as a whole: a reader sees the old one or the new one; a link in its place is replaced, not followed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with suppress(FileNotFoundError):
        temporary.unlink()
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _dump(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=1).encode()
