"""Files of cells: notebooks (``.ipynb``, any format version, read and written through nbformat) and scripts (``# %%``).

Scripts need no nbformat, which can take more than a second to import (jsonschema, with
all formats installed).
"""

from __future__ import annotations

import json
import os
import re
import stat
import warnings
from pathlib import Path
from typing import Any, Self

from kernelexec.errors import InvalidRequest
from kernelexec.events import DisplayUpdated, Event
from kernelexec.recorded_history import RecordedCell, RecordedStatus, restore_call
from kernelexec.records.notebook.cell_format import notebook_output
from kernelexec.results import DisplayData, ExecuteResult, ExecutionResult
from kernelexec.workspace.safe_files import replace_file

_CELL_MARK = re.compile(r"^# ?%%(?!%).*$", re.MULTILINE)
_PROSE = re.compile(r"\[(?:markdown|md)\]")
_COMMENT = re.compile(r"^# ?", re.MULTILINE)
_QUOTED = re.compile(r"(?P<quotes>\"{3}|'{3})(?P<text>.*)(?P=quotes)", re.DOTALL)
#: Longer recorded durations are not believed, in seconds.
_LONGEST = 365 * 24 * 3600.0
_LONG_TEXTS = frozenset({"source", "text", "application/javascript", "image/svg+xml"})
#: Errors of nbformat for invalid notebooks, besides errors of value and type.
_BROKEN = (AttributeError, AssertionError, RecursionError)


class CellFile:
    """A notebook in memory whose code cells are run one after the other; the rest of it stays unchanged."""

    def __init__(self, notebook: dict[str, Any], *, ours: bool = False) -> None:
        self._notebook = notebook
        self._ours = ours
        self._shown: dict[str, list[dict[str, Any]]] = {}
        self._cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code" and cell["source"].strip()]
        self.past = tuple(_past(cell) for cell in self._cells)
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                cell |= {"outputs": [], "execution_count": None}

    @classmethod
    def read(cls, path: Path, *, piped: bool = False) -> Self:
        """Read a notebook or a script, by its extension.

        A pipe is read to its end, which may never come, only if it may be ``piped``.

        Raises:
            InvalidRequest: the file is missing, not regular, not UTF-8, or not a valid notebook.
        """
        try:
            flags = os.O_RDONLY | os.O_CLOEXEC | (0 if piped else os.O_NONBLOCK)
            with os.fdopen(os.open(path, flags), encoding="utf-8-sig") as file:
                if not piped and not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    message = f"{path} is no plain file."
                    raise InvalidRequest(message)
                text = file.read()
        except (OSError, UnicodeDecodeError) as exc:
            message = f"{path} cannot be read: {getattr(exc, 'strerror', None) or exc}."
            raise InvalidRequest(message) from exc
        return cls.notebook(text, str(path)) if path.suffix.lower() == ".ipynb" else cls.script(text)

    @classmethod
    def notebook(cls, text: str, name: str) -> Self:
        """Read a notebook from its JSON text.

        Raises:
            InvalidRequest: the notebook is not valid; the message says where.
        """
        import nbformat  # noqa: PLC0415 - see above

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of cells without ids, which get ids here
                _, valid = nbformat.validator.normalize(nbformat.reads(text, as_version=4))
                nbformat.validate(valid)
        except (nbformat.ValidationError, ValueError, LookupError, TypeError, *_BROKEN) as exc:
            message = f"{name} is no valid notebook: {str(exc).splitlines()[0] if str(exc) else type(exc).__name__}."
            raise InvalidRequest(message) from exc
        return cls(valid)

    @classmethod
    def script(cls, text: str) -> Self:
        """Read a script: lines that begin with ``# %%`` divide it into cells, ``# %% [markdown]`` begins a cell of prose."""
        marks, pieces = ["", *_CELL_MARK.findall(text)], _CELL_MARK.split(text)
        parts = [(mark, piece.strip("\n")) for mark, piece in zip(marks, pieces, strict=True) if piece.strip()]
        cells = [
            {"cell_type": "markdown", "id": f"cell-{number}", "metadata": {}, "source": _prose(piece)}
            if _PROSE.search(mark)
            else {"cell_type": "code", "id": f"cell-{number}", "metadata": {}, "source": piece, "outputs": []}
            for number, (mark, piece) in enumerate(parts, 1)
        ]
        return cls({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, ours=True)

    @property
    def sources(self) -> tuple[str, ...]:
        """Return the code of the cells that are not empty."""
        return tuple(cell["source"] for cell in self._cells)

    def allows_error(self, number: int) -> bool:
        """Return whether the cell is tagged ``raises-exception``."""
        return "raises-exception" in self._cells[number]["metadata"].get("tags", [])

    def record(self, number: int, result: ExecutionResult) -> None:
        """Store the outputs of a result in the cell."""
        cell = self._cells[number]
        outputs = [notebook_output(output) for output in result.outputs]
        cell |= {"outputs": outputs, "execution_count": result.execution_count}
        for output, recorded in zip(result.outputs, outputs, strict=True):
            if isinstance(output, DisplayData | ExecuteResult) and output.display_id is not None:
                self._shown.setdefault(output.display_id, []).append(recorded)

    def on_event(self, event: Event, /) -> None:
        """Update displays of recorded cells: a hook."""
        if isinstance(event, DisplayUpdated):
            for recorded in self._shown.get(event.display_id, ()):
                recorded |= {"data": dict(event.data), "metadata": dict(event.metadata)}

    def write(self, path: Path) -> None:
        """Replace the file of the notebook as a whole."""
        if self._ours:
            cells = [_in_lines(cell) for cell in self._notebook["cells"]]
            text = json.dumps({**self._notebook, "cells": cells}, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
        else:
            import nbformat  # noqa: PLC0415 - see above

            text = nbformat.writes(nbformat.from_dict(self._notebook)) + "\n"
        replace_file(path, text.encode("utf-8", "backslashreplace"))  # in JSON a lone surrogate's escape is its own


def _in_lines(node: dict[str, Any]) -> dict[str, Any]:
    """Return a cell, an output or a mime bundle with its long texts as lines, as nbformat writes them."""
    part = dict(node)
    for key, value in node.items():
        if isinstance(value, str) and (key in _LONG_TEXTS or key.startswith("text/")):
            part[key] = value.splitlines(keepends=True)
        elif key == "outputs":
            part[key] = [_in_lines(output) for output in value]
        elif key == "data":
            part[key] = _in_lines(value)
    return part


def _past(cell: dict[str, Any]) -> RecordedCell:
    """Return a code cell with its end, from its outputs and from the metadata of our own notebooks."""
    noted = cell["metadata"].get("kernelexec")
    metadata = noted if isinstance(noted, dict) else {}
    language, seconds, command = metadata.get("language"), metadata.get("seconds"), metadata.get("command")
    enames = [output["ename"] for output in cell["outputs"] if output["output_type"] == "error"]
    status: RecordedStatus = "error" if enames else None
    if metadata.get("status") in ("ok", "error", "aborted"):
        status = metadata["status"]
    outputs = RecordedCell(
        cell["source"],
        language=language if isinstance(language, str) else "python",
        status=status,
        interrupted="request" if enames and enames[-1] == "KeyboardInterrupt" else None,
        ended_kernel=status == "error" and metadata.get("state") == "lost",
        seconds=float(seconds) if isinstance(seconds, int | float) and 0 <= seconds < _LONGEST else None,
        ename=enames[-1] if enames else None,
        may_fail="raises-exception" in cell["metadata"].get("tags", []),
    )
    return restore_call(outputs, command) if isinstance(command, dict) else outputs


def _prose(text: str) -> str:
    """Return Markdown from comments, or from one string in triple quotes."""
    quoted = _QUOTED.fullmatch(text.strip())
    return quoted["text"].strip("\n") if quoted else _COMMENT.sub("", text)
