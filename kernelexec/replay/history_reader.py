"""The reader of histories for a replay: notebooks, scripts and journals, checked before anything starts."""

from __future__ import annotations

import io
import os
import stat
from dataclasses import replace
from pathlib import Path

from kernelexec import cells
from kernelexec.config import Config
from kernelexec.errors import InvalidRequest
from kernelexec.recorded_history import History
from kernelexec.records import journal
from kernelexec.records.notebook.notebook_io import CellFile
from kernelexec.text import has_more_elements
from kernelexec.workspace.safe_files import read_regular

#: The limits of a file for a replay, in bytes and in cells, and of the elements of a notebook's JSON.
FILE_BYTES, CELLS_MAX, _ELEMENTS_MAX = 256 * 1024 * 1024, 10_000, 2_000_000


def read_history(path: str | os.PathLike[str], config: Config) -> History:
    """Read and check the cells of a notebook, script or journal. For a thread: a large file takes long.

    In a session's workspace, links that lead out of it are refused.

    Raises:
        InvalidRequest: the path is missing, not a file, too large, not a valid notebook, or has a cell that no kernel can run.
    """
    if not isinstance(path, str | os.PathLike) or not str(path) or "\0" in str(path):
        message = f"notebook={path!r:.200}: must be the path of a notebook, a script or a journal."
        raise InvalidRequest(message)
    try:
        file = Path(path).expanduser()
        problem = _file_problem(file, config.absolute_workspace)
    except (OSError, ValueError, RuntimeError) as exc:
        message = f"notebook {str(path)!r:.200} cannot be read: {getattr(exc, 'strerror', None) or exc}."
        raise InvalidRequest(message) from exc
    if problem is not None:
        message = f"notebook {str(path)!r} {problem}."
        raise InvalidRequest(message)
    history = journal.read_history(file) if file.suffix.lower() == journal.SUFFIX else _read_cell_file(file)
    if not _is_own_journal(file, config):
        history = replace(history, cells=tuple(cell.without_account() for cell in history.cells))
    if len(history.cells) > CELLS_MAX:
        message = f"notebook {str(path)!r} has {len(history.cells)} cells, the limit is {CELLS_MAX}: open a shorter one."
        raise InvalidRequest(message)
    for number, cell in enumerate(history.cells, 1):
        cells.check(cell.source, limit_bytes=config.capacity.code_bytes, label=f"cell {number} of {path}")
        if cell.stdin is not None:
            cells.check(cell.stdin, limit_bytes=config.capacity.code_bytes, label="stdin")
    return history


def _read_cell_file(file: Path) -> History:
    """Read a notebook or a script, which a cell may have written, and may still write."""
    try:
        text = io.TextIOWrapper(io.BytesIO(read_regular(file.resolve(), FILE_BYTES)), "utf-8-sig").read()
    except (OSError, UnicodeDecodeError) as exc:
        message = f"notebook {str(file)!r:.200} cannot be read: {getattr(exc, 'strerror', None) or exc}."
        raise InvalidRequest(message) from exc
    if file.suffix.lower() != ".ipynb":
        return CellFile.script(text).history
    if has_more_elements(text, _ELEMENTS_MAX):
        message = f"notebook {str(file)!r} has more than {_ELEMENTS_MAX:,} elements of JSON: clear its outputs."
        raise InvalidRequest(message)
    return CellFile.notebook(text, str(file)).history


def _is_own_journal(file: Path, config: Config) -> bool:
    """Return whether a file is among the journals of this executor's sessions, where no cell can write."""
    return file.resolve().parent == journal.journal_path(config.absolute_workspace.resolve(), "").parent


def _file_problem(file: Path, workspace: Path) -> str | None:
    info = file.stat()
    absolute = Path(os.path.abspath(file))  # noqa: PTH100 - without following links
    if absolute.is_relative_to(workspace) and absolute.parent != workspace:
        session_directory = (workspace / absolute.relative_to(workspace).parts[0]).resolve()
        if not file.resolve().is_relative_to(session_directory):
            return "leads out of the session's directory by a link, which cells may have created"
    if not stat.S_ISREG(info.st_mode):
        return "is no file: name a notebook or a script"
    if info.st_size > FILE_BYTES:
        return f"has {info.st_size} bytes, the limit is {FILE_BYTES}: clear its outputs"
    return None
