"""The notebook of a session: a valid ``.ipynb`` in the workspace, replaced as a whole after every cell.

A new session continues the notebook of an earlier session of its name, or has a notebook under a new name.
"""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Self

from kernelexec.cells import Cell
from kernelexec.events import (
    BranchPromoted,
    CellExecuted,
    CellStarted,
    DisplayUpdated,
    Event,
    LateOutputReported,
    StateRestored,
)
from kernelexec.provisioning import platform
from kernelexec.provisioning.runtime.owned_directory import close_fd, track_fd
from kernelexec.records.notebook.notebook_io import bundle, code_cell, mark_undone, notebook_output, saved_outputs
from kernelexec.results import DisplayData, ExecuteResult, ExecutionResult, Output
from kernelexec.rules.recorded_history import CellLineage
from kernelexec.text import clean, has_more_elements, make_json_encoder
from kernelexec.workspace.directory import numbered_paths
from kernelexec.workspace.safe_files import closing_fd, create_file, has_content, open_top, read_regular, replace_file
from kernelexec.workspace.spill import Spool, SpooledBytes

_METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python", "file_extension": ".py", "mimetype": "text/x-python"},
}

#: The bound of a notebook in bytes of JSON; above it the outputs of its oldest cells are left out.
NOTEBOOK_BYTES = 64 * 1024 * 1024
#: The limit of JSON elements of a continued notebook: each takes some 100 bytes of memory.
_ELEMENTS_MAX = 2_000_000
#: The levels of a cell above the content of outputs, which has a bound of its own for nesting.
_CELL_LEVELS = 8
#: How long a write waits for the previous write, in seconds.
_PATIENCE = 10.0
_LEFT_OUT = {"output_type": "stream", "name": "stderr", "text": "[outputs left out: the notebook had grown too large]\n"}
#: The weight of late output among noted events, in bytes, and the number of pieces of a cell without outputs: head and end.
_WEIGHT, _PIECES_MIN = 64 * 1024, 2
#: The size of pieces of text encoded at a time, in characters; other threads run in between.
_PIECE_CHARS = 128 * 1024
#: The separators before the first of several values and before the others, and the end of a cell's outputs.
_SEPARATORS, _END = (b"\n", b",\n"), b"]}"
#: The text between the other fields of a cell and its outputs.
_OUTPUTS = b', "outputs": ['
# A cell as pieces of the file:
#   head:     separator {"cell_type": ..., "source": ...  , "outputs": [
#   outputs:  separator {...}   each, or all outputs and the end in one piece
#   end:      ]}
# The pieces of all cells in order are the list of cells, so a write copies bytes and encodes nothing.
_encode = make_json_encoder()
#: Errors that freed space ends.
_FULL = (errno.ENOSPC, errno.EDQUOT)
#: Number of notebooks of earlier sessions of a name in a workspace, and the least age of a notebook to be replaced in seconds.
_NOTEBOOKS_MAX, _NOTEBOOK_SECONDS = 9, 3600.0


@dataclass(slots=True)
class _Recorded:
    """A cell as JSON: head and outputs, with a piece for each output if outputs may change."""

    pieces: list[bytes | SpooledBytes]
    """The head, which comes before the outputs, then the outputs."""
    size: int


class Recorder:
    """A hook that records cells for the notebook. ``write``, called in a thread, does the work.

    Cells are stored as the JSON of the file, so that only changes are encoded again. Long pieces are kept out of memory, where
    no cell can change them. The next write repeats a failed write. The file is always complete.
    """

    def __init__(
        self, path: Path, *, limit_bytes: int = NOTEBOOK_BYTES, is_reserved: bool = True, lock: int | None = None
    ) -> None:
        self.path = path
        self._is_reserved, self._lock = is_reserved, lock
        self._limit = limit_bytes
        # Two locks: `_noting` guards the noted events and the lineage for an instant, so the event loop never waits for a disk;
        # `_writing` guards everything else during a write.
        self._noting = threading.Lock()
        self._noted: dict[tuple[str, str], tuple[CellExecuted | DisplayUpdated | LateOutputReported, int]] = {}
        self._noted_bytes = 0
        self._lineage = CellLineage()
        self._turned: set[str] = set()
        """The executions undone, or counted again, since the last write."""
        self._writing = threading.Lock()
        self._changed = False
        self._cells: list[_Recorded] = []
        self._spool = Spool()
        self._bytes = 0
        self._thinned = 0
        self._shown: dict[str, deque[tuple[int, int, dict[str, Any]]]] = {}
        self._shown_by: dict[int, list[str]] = {}
        self._numbers: dict[str, int] = {}

    @classmethod
    def of(cls, path: Path, lock: int | None = None, *, is_new_session: bool = False) -> Self | None:
        """Return a recorder that continues a notebook; None for an unreadable notebook, or a notebook of another program.

        The displays in the notebook stay unchanged. For a new session all cells there count as undone: their state is gone.
        """
        if (cells := _read_cells(path)) is None:
            return None
        recorder = cls(path, lock=lock)
        for cell in cells:
            if is_new_session:
                mark_undone(cell, is_undone=True)
            recorder._append(cell)
        recorder._changed &= not is_new_session  # its first cell writes the marks
        return recorder

    def __call__(self, event: Event, /) -> None:
        """Note an event for the next write: the newest of each cell and display, within bounds."""
        match event:
            case CellStarted(cell=cell, execution_id=execution_id) if cell.kernel == "python":
                with self._noting:
                    self._lineage.add(execution_id)
            case StateRestored() | BranchPromoted():
                with self._noting:
                    self._turned |= self._lineage.go_back(event.after)
            case CellExecuted():
                self._note(("cell", event.result.execution_id), event, 0)
            case DisplayUpdated():
                self._note(("display", event.display_id), event, _weight(event.data))
            case LateOutputReported():
                self._note(("late", f"{event.execution_id} {time.monotonic_ns()}"), event, _WEIGHT)

    def write(self) -> None:
        """Replace the file after changes. For any thread.

        Raises:
            OSError: the file could not be written; TimeoutError if an earlier write hangs.
        """
        if not self._writing.acquire(timeout=_PATIENCE):
            message = f"{self.path}: the write before this one has not ended."
            raise TimeoutError(message)
        try:
            while self._noted:
                self._write_event(self._next_event())
            self._mark_undone()
            if self._changed:
                with suppress(OSError):  # the spool's disk need not be the notebook's
                    self._spool.tidy(piece for piece in self._pieces() if isinstance(piece, SpooledBytes))
                if not self._is_reserved:
                    make_empty(self.path)
                    self._is_reserved = True
                replace_file(self.path, _file(map(self._spool.read, self._pieces())))
                self._changed = False  # only now: after an error the next write tries again
        finally:
            self._writing.release()

    @property
    def cell_count(self) -> int:
        """The number of cells written or added so far."""
        return len(self._cells)

    def extend(self, path: Path, skipped: int) -> None:
        """Add the cells of another recorder's notebook, without the first ``skipped``, for the next write. For a thread.

        An unreadable notebook adds nothing. The displays of added cells stay unchanged.
        """
        with self._writing:
            while self._noted:
                self._write_event(self._next_event())
            for cell in (_read_cells(path) or [])[skipped:]:
                noted = cell["metadata"]["kernelexec"]
                execution_id = str(noted.get("execution_id"))
                if not noted.get("undone"):
                    with self._noting:
                        self._lineage.add(execution_id)
                self._numbers[execution_id] = len(self._cells)
                self._append(cell)

    def finish(self) -> None:
        """Write for the last time; remove a notebook without cells, which only reserved its name."""
        try:
            self.write()
            if not self._cells and has_content(self.path, b"".join(_file(()))):
                with closing_fd(open_top(self.path.parent)) as directory:
                    os.unlink(self.path.name, dir_fd=directory)
        finally:
            self._spool.close()
            if self._lock is not None:
                close_fd(self._lock)
                self._lock = None

    def _write_event(self, event: CellExecuted | DisplayUpdated | LateOutputReported) -> None:
        match event:
            case CellExecuted():
                outputs = event.result.outputs if event.recorded is None else event.recorded.outputs
                self._add(event.cell, event.result, outputs)
            case DisplayUpdated():
                self._update(event.display_id, event.data, event.metadata)
            case LateOutputReported():
                self._add_late(event.execution_id, event.outputs)

    def _note(self, key: tuple[str, str], event: CellExecuted | DisplayUpdated | LateOutputReported, weight: int) -> None:
        with self._noting:
            _, before = self._noted.get(key, (None, 0))
            # Cells have the weight 0, so that no bound leaves a cell out.
            if weight and self._noted_bytes - before + weight > self._limit:
                return
            self._noted.pop(key, None)  # to the end of the order: an update must come after the cell of its display
            self._noted[key] = event, weight
            self._noted_bytes += weight - before

    def _next_event(self) -> CellExecuted | DisplayUpdated | LateOutputReported:
        with self._noting:
            event, weight = self._noted.pop(next(iter(self._noted)))
            self._noted_bytes -= weight
        return event

    def _mark_undone(self) -> None:
        """Mark undone cells, and remove the mark from cells that count again."""
        with self._noting:
            turned, self._turned = self._turned, set()
            undone = {execution_id: self._lineage.is_undone(execution_id) for execution_id in turned}
        for execution_id, is_undone in undone.items():
            if (number := self._numbers.get(execution_id)) is None:  # its cell is not recorded yet: at a later write
                with self._noting:
                    self._turned.add(execution_id)
                continue
            cell, piece = self._cells[number], self._spool.read(self._cells[number].pieces[0])
            start, end = len(_SEPARATORS[bool(number)]), len(piece) - len(_OUTPUTS)
            content = json.loads(piece[start:end] + b"}")
            mark_undone(content, is_undone=is_undone)
            self._replace(cell, 0, piece[:start] + _json(content)[:-1] + _OUTPUTS)

    def _add(self, executed: Cell, result: ExecutionResult, outputs: tuple[Output, ...]) -> None:
        number, cell = len(self._cells), code_cell(executed, result, outputs)
        for index, output in enumerate(outputs):
            if isinstance(output, DisplayData | ExecuteResult) and output.display_id is not None:
                self._shown.setdefault(output.display_id, deque()).append((number, index, _frame(cell["outputs"][index])))
                self._shown_by.setdefault(number, []).append(output.display_id)
        self._numbers[result.execution_id] = number
        self._append(cell)

    def _add_late(self, execution_id: str, outputs: Iterable[Output]) -> None:
        """Add output to the cell of an execution, unless the cell's outputs were left out."""
        number = self._numbers.get(execution_id)
        if number is None or number < self._thinned:
            return
        cell, content = self._cells[number], bytearray()
        last = self._spool.read(cell.pieces[-1])
        has_outputs = len(cell.pieces) > _PIECES_MIN or len(last) > len(_END)
        for index, output in enumerate(map(notebook_output, saved_outputs(outputs))):
            content += _SEPARATORS[has_outputs or bool(index)] + _dump(output)
        if number < len(self._cells) - 1 or cell.size + len(content) <= self._limit:
            self._replace(cell, -1, last[: -len(_END)] + bytes(content) + _END)

    def _replace(self, cell: _Recorded, index: int, piece: bytes) -> None:
        grown = len(piece) - len(cell.pieces[index])
        self._spool.drop(cell.pieces[index])
        cell.pieces[index] = self._spool.keep(piece)
        cell.size += grown
        self._bytes += grown
        self._changed = True
        self._make_room()

    def _append(self, cell: dict[str, Any]) -> None:
        number, outputs = len(self._cells), cell.pop("outputs")
        head = _SEPARATORS[bool(number)] + _json(cell)[:-1] + _OUTPUTS
        body = [*(_SEPARATORS[bool(index)] + _dump(output) for index, output in enumerate(outputs)), _END]
        size = len(head) + sum(map(len, body))
        kept = map(self._spool.keep, body if number in self._shown_by else [b"".join(body)])
        self._cells.append(_Recorded([self._spool.keep(head), *kept], size))
        self._bytes += size
        self._changed = True
        self._make_room()

    def _update(self, display_id: str, data: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        """Update every display of the id; a display of the newest cell stays unchanged without room for the content."""
        content = {"data": bundle(data), "metadata": dict(metadata)}
        for number, index, frame in list(self._shown.get(display_id, ())):
            if number < self._thinned:
                continue
            cell, piece = self._cells[number], _SEPARATORS[bool(index)] + _dump({**frame, **content})
            # Older cells lose their outputs to make room, the newest never does: so its size is checked here.
            grown = len(piece) - len(cell.pieces[index + 1])
            if grown <= 0 or number < len(self._cells) - 1 or cell.size + grown <= self._limit:
                self._replace(cell, index + 1, piece)

    def _pieces(self) -> Iterator[bytes | SpooledBytes]:
        return chain.from_iterable(cell.pieces for cell in self._cells)

    def _make_room(self) -> None:
        while self._bytes > self._limit and self._thinned < len(self._cells) - 1:
            self._thin(self._thinned)
            self._thinned += 1

    def _thin(self, number: int) -> None:
        """Remove the outputs of a cell, and forget its displays."""
        cell = self._cells[number]
        head, *body = cell.pieces
        if cell.size > len(head) + len(_END):
            for piece in body:
                self._spool.drop(piece)
            short = _SEPARATORS[0] + _dump(_LEFT_OUT) + _END
            self._bytes += len(head) + len(short) - cell.size
            cell.pieces, cell.size = [head, short], len(head) + len(short)
        for display_id in self._shown_by.pop(number, ()):
            shown = self._shown.get(display_id, deque())
            while shown and shown[0][0] <= number:
                shown.popleft()
            if not shown:
                self._shown.pop(display_id, None)


def _read_cells(path: Path) -> list[dict[str, Any]] | None:
    """Return the cells of a recorder's notebook; None for an unreadable notebook, or a notebook of another program.

    A cell may have written the file, so the number of bytes and of JSON elements is bounded.
    """
    try:
        content = read_regular(path, 2 * NOTEBOOK_BYTES + 1)
        is_small = len(content) <= 2 * NOTEBOOK_BYTES and not has_more_elements(content, _ELEMENTS_MAX)
        notebook = json.loads(content) if is_small else {}
        cells = notebook["cells"]
        if notebook["metadata"] != _METADATA or not all(map(_is_recorded, cells)):
            return None
        return [clean(cell, -_CELL_LEVELS) for cell in cells]  # half of a surrogate pair could not be written again
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def _is_recorded(cell: Mapping[str, Any]) -> bool:
    """Return whether a recorder may have written a cell."""
    return isinstance(cell["metadata"]["kernelexec"], dict) and isinstance(cell["outputs"], list)


def _file(pieces: Iterable[bytes]) -> Iterator[bytes]:
    yield b'{"cells": ['
    yield from pieces
    yield b'],\n"metadata": ' + _json(_METADATA) + b',\n"nbformat": 4,\n"nbformat_minor": 5}\n'


def make_empty(path: Path) -> None:
    """Create an empty notebook; FileExistsError if the name is taken: of several callers, one gets it."""
    create_file(path, _file(()))


def _frame(output: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a display that no update changes."""
    return {key: value for key, value in output.items() if key not in ("data", "metadata")}


def _weight(value: object) -> int:
    """Return the approximate size of a JSON value in memory, in bytes."""
    match value:
        case str():
            return len(value) + 1
        case list() | dict():
            return 1 + sum(map(_weight, value.values() if isinstance(value, dict) else value))
        case _:
            return 8


def _json(value: object) -> bytes:
    try:
        return _encode(value).encode()
    except UnicodeEncodeError:  # rare: all text of kernels is cleaned, but not each argument of a caller
        return _encode(clean(value)).encode()


def _dump(output: Mapping[str, Any]) -> bytes:
    return b"".join(_pieces(output))


def _pieces(value: object, depth: int = 2) -> Iterator[bytes]:
    """Yield the JSON of an output, long texts in pieces; other threads run in between."""
    # The JSON encoder holds the interpreter's lock for the whole of a text: a long one would stop the event loop.
    if isinstance(value, dict) and _is_long(value, depth):
        for number, (key, item) in enumerate(value.items()):
            yield (b", " if number else b"{") + _json(key) + b": "
            yield from _pieces(item, depth - 1)
        yield b"}"
    elif isinstance(value, str) and _is_long(value, depth):
        yield b'"'
        for at in range(0, len(value), _PIECE_CHARS):
            yield _json(value[at : at + _PIECE_CHARS])[1:-1]
            time.sleep(0)  # releases the interpreter's lock
        yield b'"'
    else:
        yield _json(value)


def _is_long(value: object, depth: int) -> bool:
    """Return whether a value is a long text, or contains a long text within ``depth`` levels."""
    if isinstance(value, dict) and depth:
        return any(_is_long(item, depth - 1) for item in value.values())
    return isinstance(value, str) and len(value) > _PIECE_CHARS


def open_recorder(name: str, directory: Path, existing: Path | None = None, *, is_replay: bool = False) -> Recorder:
    """Return the recorder of a notebook for this session only; on a full disk the name is reserved later.

    An ``existing`` notebook of this session in the directory is continued, else the notebook of an earlier session of this
    name. A second recorder in the directory, or a replay (perhaps of this very notebook), does not continue the latter.

    Raises:
        OSError: no file can be created there.
    """
    lock = _lock(directory)
    try:
        return _open(name, directory, existing, lock, is_replay=is_replay)
    except BaseException:
        if lock is not None:
            close_fd(lock)
        raise


def _lock(directory: Path) -> int | None:
    """Lock the directory of a notebook for its recorder; None if it is locked, or on a file system without locks."""
    with suppress(OSError), closing_fd(open_top(directory)) as fd:
        platform.lock(fd)
        return track_fd(os.dup(fd))  # the lock belongs to the open file, which both descriptors share
    return None


def _open(name: str, directory: Path, existing: Path | None, lock: int | None, *, is_replay: bool) -> Recorder:
    is_own = existing is not None and existing.parent == directory
    earlier = existing if is_own else None if lock is None or is_replay else directory / f"{name}.ipynb"
    if earlier is not None and (recorder := Recorder.of(earlier, lock, is_new_session=not is_own)) is not None:
        return recorder
    list_paths = partial(numbered_paths, directory / f"{name}.ipynb")
    if all(path.exists() for path in islice(list_paths(), _NOTEBOOKS_MAX)):
        _remove_oldest_notebook(islice(list_paths(), _NOTEBOOKS_MAX))
    for path in list_paths():
        try:
            make_empty(path)
        except FileExistsError:
            continue
        except OSError as exc:
            if exc.errno in _FULL:
                return Recorder(path, is_reserved=False, lock=lock)
            raise
        return Recorder(path, lock=lock)
    raise AssertionError


def _remove_oldest_notebook(paths: Iterable[Path]) -> None:
    """Remove the oldest of several notebooks, if it is a recorder's and has not changed for an hour."""
    with suppress(OSError):
        changed, path = min((path.stat().st_mtime, path) for path in paths)
        if time.time() - changed > _NOTEBOOK_SECONDS and Recorder.of(path) is not None:
            with closing_fd(open_top(path.parent)) as directory:
                os.unlink(path.name, dir_fd=directory)
