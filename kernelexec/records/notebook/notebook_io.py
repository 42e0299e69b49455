"""Files of cells: notebooks (``.ipynb``, any format version, read and written through nbformat) and scripts (``# %%``).

A script is run, and what came of it written, without nbformat, which can take more than a second to import (jsonschema, with
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
from kernelexec.recorded_history import PastCell, PastStatus, called
from kernelexec.records.notebook.cell_format import notebook_output
from kernelexec.results import DisplayData, ExecuteResult, ExecutionResult
from kernelexec.workspace.safe_files import write_atomically

_CELL_MARK = re.compile(r"^# ?%%(?!%).*$", re.MULTILINE)
_PROSE = re.compile(r"\[(?:markdown|md)\]")
_COMMENT = re.compile(r"^# ?", re.MULTILINE)
_QUOTED = re.compile(r"(?P<quotes>\"{3}|'{3})(?P<text>.*)(?P=quotes)", re.DOTALL)
#: A cell that is said to have run for longer is not believed, in seconds.
_LONGEST = 365 * 24 * 3600.0
_LONG_TEXTS = frozenset({"source", "text", "application/javascript", "image/svg+xml"})
#: What nbformat raises, beside errors of value and type, for notebooks that are none.
_BROKEN = (AttributeError, AssertionError, RecursionError)


class Document:
    """A notebook in memory whose code cells can be run one after the other; everything else in it stays as it is."""

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
        """A notebook or a script, by its extension.

        Only where it may be ``piped`` is a pipe read to its end, which may never come.

        Raises:
            InvalidRequest: missing, no plain file, not UTF-8, or no valid notebook.
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
        """A notebook from its JSON text.

        Raises:
            InvalidRequest: no valid notebook; the message says where.
        """
        import nbformat  # noqa: PLC0415 - see above

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of cells without ids, which are given some here
                _, found = nbformat.validator.normalize(nbformat.reads(text, as_version=4))
                nbformat.validate(found)
        except (nbformat.ValidationError, ValueError, LookupError, TypeError, *_BROKEN) as exc:
            message = f"{name} is no valid notebook: {str(exc).splitlines()[0] if str(exc) else type(exc).__name__}."
            raise InvalidRequest(message) from exc
        return cls(found)

    @classmethod
    def script(cls, text: str) -> Self:
        """A script; lines that begin with ``# %%`` part it into cells, ``# %% [markdown]`` begins one of prose."""
        marks, pieces = ["", *_CELL_MARK.findall(text)], _CELL_MARK.split(text)
        found = [(mark, piece.strip("\n")) for mark, piece in zip(marks, pieces, strict=True) if piece.strip()]
        cells = [
            {"cell_type": "markdown", "id": f"cell-{number}", "metadata": {}, "source": _prose(piece)}
            if _PROSE.search(mark)
            else {"cell_type": "code", "id": f"cell-{number}", "metadata": {}, "source": piece, "outputs": []}
            for number, (mark, piece) in enumerate(found, 1)
        ]
        return cls({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, ours=True)

    @property
    def sources(self) -> tuple[str, ...]:
        """The code of the cells that there is something to run in."""
        return tuple(cell["source"] for cell in self._cells)

    def allows_error(self, number: int) -> bool:
        """Whether the cell is tagged ``raises-exception``."""
        return "raises-exception" in self._cells[number]["metadata"].get("tags", [])

    def record(self, number: int, result: ExecutionResult) -> None:
        """Put a result's outputs into the cell."""
        cell = self._cells[number]
        outputs = [notebook_output(output) for output in result.outputs]
        cell |= {"outputs": outputs, "execution_count": result.execution_count}
        for output, recorded in zip(result.outputs, outputs, strict=True):
            if isinstance(output, DisplayData | ExecuteResult) and output.display_id is not None:
                self._shown.setdefault(output.display_id, []).append(recorded)

    def on_event(self, event: Event, /) -> None:
        """A hook: give displays of recorded cells their new content."""
        if isinstance(event, DisplayUpdated):
            for recorded in self._shown.get(event.display_id, ()):
                recorded |= {"data": dict(event.data), "metadata": dict(event.metadata)}

    def write(self, path: Path) -> None:
        """Write the notebook, whole and atomically."""
        if self._ours:
            cells = [_in_lines(cell) for cell in self._notebook["cells"]]
            text = json.dumps({**self._notebook, "cells": cells}, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
        else:
            import nbformat  # noqa: PLC0415 - see above

            text = nbformat.writes(nbformat.from_dict(self._notebook)) + "\n"
        write_atomically(path, [text.encode("utf-8", "backslashreplace")])  # in JSON a lone surrogate's escape is its own


def _in_lines(node: dict[str, Any]) -> dict[str, Any]:
    """A cell, an output or a mime bundle with its long texts as lines, as nbformat writes them."""
    found = dict(node)
    for key, value in node.items():
        if isinstance(value, str) and (key in _LONG_TEXTS or key.startswith("text/")):
            found[key] = value.splitlines(keepends=True)
        elif key == "outputs":
            found[key] = [_in_lines(output) for output in value]
        elif key == "data":
            found[key] = _in_lines(value)
    return found


def _past(cell: dict[str, Any]) -> PastCell:
    """A code cell with what its outputs, and the notes of one of our own notebooks, say of its end."""
    noted = cell["metadata"].get("kernelexec")
    said = noted if isinstance(noted, dict) else {}
    language, seconds, command = said.get("language"), said.get("seconds"), said.get("command")
    enames = [output["ename"] for output in cell["outputs"] if output["output_type"] == "error"]
    status: PastStatus = "error" if enames else None
    if said.get("status") in ("ok", "error", "aborted"):
        status = said["status"]
    found = PastCell(
        cell["source"],
        language=language if isinstance(language, str) else "python",
        status=status,
        interrupted="request" if enames and enames[-1] == "KeyboardInterrupt" else None,
        ended_kernel=status == "error" and said.get("state") == "lost",
        seconds=float(seconds) if isinstance(seconds, int | float) and 0 <= seconds < _LONGEST else None,
        ename=enames[-1] if enames else None,
        may_fail="raises-exception" in cell["metadata"].get("tags", []),
    )
    return called(found, command) if isinstance(command, dict) else found


def _prose(text: str) -> str:
    """Markdown from comments, or from one string in triple quotes."""
    quoted = _QUOTED.fullmatch(text.strip())
    return quoted["text"].strip("\n") if quoted else _COMMENT.sub("", text)
