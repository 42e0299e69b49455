"""Files of cells: notebooks (``.ipynb``, any format version) and scripts (``# %%``)."""

from __future__ import annotations

import io
import json
import os
import re
import stat
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

from kernelexec.cancellation import read_interruptibly
from kernelexec.cells import Cell, ShellCell
from kernelexec.errors import InvalidRequest
from kernelexec.events import CellExecuted, DisplayUpdated, Event, LateOutputReported, RecordedOutputs
from kernelexec.launcher.protocol import PAGER
from kernelexec.records.notebook.notebook_formats import NotANotebook, inject_parameters, read_notebook, read_script
from kernelexec.results import DisplayData, Error, ExecuteResult, ExecutionResult, Output, Stream
from kernelexec.rules.recorded_history import History, RecordedCell, RecordedStatus, restore_call
from kernelexec.workspace.safe_files import replace_file

#: The longest plausible duration of a recorded cell, in seconds.
_LONGEST = 365 * 24 * 3600.0
_LONG_TEXTS = frozenset({"source", "text", "application/javascript", "image/svg+xml"})
#: Names of kernelspecs and languages of the Python kernel.
_PYTHON = re.compile(r"i?python[\d.]*$", re.IGNORECASE)
#: The tag of cells to be skipped, as in nbclient.
SKIPPED = "skip-execution"
_JSON_TYPE = re.compile(r"application/(?:.*\+)?json")
#: The limit of a notebook's or script's file, in bytes.
FILE_BYTES = 256 * 1024 * 1024


class CellFile:
    """A notebook in memory whose code cells are run in order; everything else stays unchanged.

    Empty cells and cells with the tag ``skip-execution`` are not run, as in nbclient. Cells without a run keep their outputs.
    """

    def __init__(
        self, notebook: dict[str, Any], faults: Iterable[str] = (), parameters: Mapping[str, Any] | None = None
    ) -> None:
        self._notebook = notebook
        kernelspec, language = _read_kernelspec(notebook["metadata"])
        self.unknown_parameters = () if not parameters else _inject(notebook, parameters, language)
        """Names of parameters missing in the notebook's own cell of parameters."""
        self._shown: dict[str, list[dict[str, Any]]] = {}
        self._recorded: dict[str, tuple[Output, ...]] = {}
        self._captured: dict[str, list[dict[str, Any]]] = {}
        self._executed: dict[str, dict[str, Any]] = {}
        self.is_changed = False
        """Whether late output or an update came after the last write."""
        code_cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code" and cell["source"].strip()]
        self._cells = [cell for cell in code_cells if SKIPPED not in cell["metadata"].get("tags", [])]
        described = ", ".join(faults)
        self.history = History(
            tuple(_past(cell, language) for cell in self._cells),
            kernelspec=kernelspec,
            notes=(f"The notebook was repaired in memory: {described}.",) if described else (),
        )

    @classmethod
    def read(cls, path: Path, *, piped: bool = False, parameters: Mapping[str, Any] | None = None) -> Self:
        """Read a notebook or a script, by its extension, and set its parameters: see ``inject_parameters``.

        A pipe is read only if ``piped``, to its end, which may never come.

        Raises:
            InvalidRequest: the file is missing, not regular, too large, not UTF-8, or no notebook; or a parameter is invalid.
        """
        try:
            # Opening a pipe without a writer would wait for one, before the kind of the file is known.
            flags = os.O_RDONLY | os.O_CLOEXEC | (0 if piped else os.O_NONBLOCK)
            with os.fdopen(os.open(path, flags), "rb") as file:
                if not piped and not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    message = f"{path} is no plain file."
                    raise InvalidRequest(message)
                content = read_interruptibly(file.fileno()) if piped else file.read(FILE_BYTES + 1)
            if not piped and len(content) > FILE_BYTES:  # a cell may have written it, and may still write
                raise InvalidRequest(f"{path} has more than {FILE_BYTES} bytes, the limit: clear its outputs.")
            text = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig").read()  # line ends as of a text file
        except (OSError, UnicodeDecodeError) as exc:
            message = f"{path} cannot be read: {getattr(exc, 'strerror', None) or exc}."
            raise InvalidRequest(message) from exc
        is_notebook = path.suffix.lower() == ".ipynb"
        return cls.notebook(text, str(path), parameters) if is_notebook else cls.script(text, parameters)

    @classmethod
    def notebook(cls, text: str, name: str, parameters: Mapping[str, Any] | None = None) -> Self:
        """Read a notebook from its JSON text.

        Raises:
            InvalidRequest: Jupyter would not run the text either; the message has the reason.
        """
        try:
            return cls(*read_notebook(text), parameters)
        except NotANotebook as exc:
            message = f"{name} is no notebook: {exc}."
            raise InvalidRequest(message) from exc

    @classmethod
    def script(cls, text: str, parameters: Mapping[str, Any] | None = None) -> Self:
        """Read a script: see `read_script`."""
        return cls(read_script(text), parameters=parameters)

    def to_json(self) -> str:
        """Return the notebook as text, the same as in a file of ``write``."""
        cells = [_in_lines(cell) for cell in self._notebook["cells"]]
        return json.dumps({**self._notebook, "cells": cells}, indent=1, sort_keys=True, ensure_ascii=False) + "\n"

    @property
    def sources(self) -> tuple[str, ...]:
        """The code of the cells to be run."""
        return tuple(cell["source"] for cell in self._cells)

    def get_language(self, number: int) -> str:
        """Return the language of a cell's source, for ``AsyncSession.execute``."""
        cell = self.history.cells[number]
        return cell.language if cell.source == self._cells[number]["source"] else "python"  # "%%bash" and "%%script node"

    def allows_error(self, number: int) -> bool:
        """Return whether the cell is tagged ``raises-exception``."""
        return "raises-exception" in self._cells[number]["metadata"].get("tags", [])

    def record(self, number: int, result: ExecutionResult) -> None:
        """Store the outputs of a result in the cell, or the whole outputs from ``on_event`` if limits cut the result.

        The metadata get the times of the cell's request and end, under the names of nbclient.
        """
        cell, outputs = self._cells[number], saved_outputs(self._recorded.pop(result.execution_id, result.outputs))
        ended = datetime.now(UTC)
        began = ended - timedelta(seconds=result.timing.run)
        moments = {
            "iopub.status.busy": began,
            "iopub.execute_input": began,
            "iopub.status.idle": ended,
            "shell.execute_reply": ended,
        }
        cell["metadata"]["execution"] = {name: moment.isoformat().replace("+00:00", "Z") for name, moment in moments.items()}
        cell |= {"outputs": [notebook_output(output) for output in outputs], "execution_count": result.execution_count}
        self._executed[result.execution_id] = cell
        for output, recorded in zip(outputs, cell["outputs"], strict=True):
            if isinstance(output, DisplayData | ExecuteResult) and output.display_id is not None:
                self._shown.setdefault(output.display_id, []).append(recorded)

    def set_language_info(self, info: dict[str, Any]) -> None:
        """Set the kernel's description of its language, as in nbclient."""
        if info:
            self._notebook["metadata"]["language_info"] = info

    def on_event(self, event: Event, /) -> None:
        """Keep the whole outputs of a cell for ``record``, add late output to recorded cells, and update displays.

        A hook: gets all events of the session.
        """
        if isinstance(event, CellExecuted) and event.recorded is not None:
            self._recorded[event.result.execution_id] = event.recorded.outputs
            self._set_widgets(event.recorded)
        if isinstance(event, LateOutputReported) and (cell := self._executed.get(event.execution_id)) is not None:
            _add_outputs(cell["outputs"], event.outputs)
            self.is_changed = True
        if isinstance(event, DisplayUpdated):
            for recorded in self._shown.get(event.display_id, ()):
                recorded |= {"data": dict(event.data), "metadata": dict(event.metadata)}
                self.is_changed = True

    def _set_widgets(self, recorded: RecordedOutputs) -> None:
        """Store the state of the kernel's widgets, with the captured outputs of output widgets."""
        for comm_id, outputs in recorded.captured.items():
            _add_outputs(self._captured.setdefault(comm_id, []), outputs)
        for content in recorded.widgets.values():
            for comm_id, captured in self._captured.items():
                if comm_id in content["state"]:
                    content["state"][comm_id]["state"]["outputs"] = captured
        if recorded.widgets:
            self._notebook["metadata"]["widgets"] = dict(recorded.widgets)

    def write(self, path: Path, *, dir_fd: int | None = None) -> None:
        """Replace the file of the notebook as a whole; with ``dir_fd``, in this open directory."""
        self.is_changed = False
        content = self.to_json().encode("utf-8", "backslashreplace")  # in JSON a lone surrogate's escape is its own
        replace_file(path, content, dir_fd=dir_fd)


def _inject(notebook: dict[str, Any], parameters: Mapping[str, Any], language: str) -> tuple[str, ...]:
    if language != "python":
        raise InvalidRequest(f"Parameters are Python assignments, and the notebook's language is {language}.")
    return inject_parameters(notebook, parameters)


def _add_outputs(recorded: list[dict[str, Any]], outputs: Iterable[Output]) -> None:
    """Add outputs to the outputs of a cell; text of the last output's stream continues this output."""
    for output in map(notebook_output, saved_outputs(outputs)):
        last = recorded[-1] if recorded else {}
        if output["output_type"] == "stream" == last.get("output_type") and output["name"] == last["name"]:
            last["text"] += output["text"]
        else:
            recorded.append(output)


def _in_lines(node: dict[str, Any]) -> dict[str, Any]:
    """Return a cell, an output or a mime bundle with long texts as lists of lines, in nbformat's form."""
    part = dict(node)
    for key, value in node.items():
        if isinstance(value, str) and (key in _LONG_TEXTS or key.startswith("text/")):
            part[key] = value.splitlines(keepends=True)
        elif key == "outputs" and node["cell_type"] == "code":
            part[key] = [_in_lines(output) for output in value]
        elif key == "data" and "output_type" in node:
            part[key] = _in_lines(value)
    return part


def _read_kernelspec(metadata: dict[str, Any]) -> tuple[str | None, str]:
    """Return the name of the notebook's kernelspec, None for any Python kernel, and the language of the cells."""
    name, language = _read_text(metadata, "kernelspec", "name"), _read_text(metadata, "kernelspec", "language")
    if not language and not _PYTHON.match(name):
        language = _read_text(metadata, "language_info", "name")
    wanted = name or language
    is_python = _PYTHON.match(language or name or "python") is not None
    return (None, "python") if is_python else (wanted, wanted)


def _read_text(metadata: dict[str, Any], *keys: str) -> str:
    """Return the text under these keys; empty if there is none."""
    value: Any = metadata
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value.strip() if isinstance(value, str) else ""


def _past(cell: dict[str, Any], default_language: str) -> RecordedCell:
    """Return a code cell with its outcome, from its outputs and from the metadata of our own notebooks."""
    noted = cell["metadata"].get("kernelexec")
    metadata = noted if isinstance(noted, dict) else {}
    language, seconds, command = metadata.get("language"), metadata.get("seconds"), metadata.get("command")
    enames = [output["ename"] for output in cell["outputs"] if output["output_type"] == "error"]
    status: RecordedStatus = "error" if enames else None
    if metadata.get("status") in ("ok", "error", "aborted"):
        status = metadata["status"]
    outputs = RecordedCell(
        cell["source"],
        language=language if isinstance(language, str) else default_language,
        status=status,
        interrupted="request" if enames and enames[-1] == "KeyboardInterrupt" else None,
        ended_kernel=status == "error" and metadata.get("state") == "lost",
        seconds=float(seconds) if isinstance(seconds, int | float) and 0 <= seconds < _LONGEST else None,
        ename=enames[-1] if enames else None,
        may_fail="raises-exception" in cell["metadata"].get("tags", []),
    )
    return restore_call(outputs, command) if isinstance(command, dict) else outputs


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
    """Mark a cell of ``code_cell`` as undone, to be skipped when a tool runs the notebook; or remove the mark."""
    metadata = cell["metadata"]
    if is_undone:
        metadata["tags"] = [SKIPPED]
        metadata["kernelexec"]["undone"] = True
    else:
        metadata.pop("tags", None)
        metadata["kernelexec"].pop("undone", None)


def saved_outputs(outputs: Iterable[Output]) -> list[Output]:
    """Return the outputs for a notebook, without the text of help and profiles, which Jupyter shows in a pager."""
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
