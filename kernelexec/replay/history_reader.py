"""The reader of histories for a replay: notebooks, scripts and journals, checked before anything starts."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from kernelexec import cells
from kernelexec.config import Config
from kernelexec.errors import InvalidRequest
from kernelexec.recorded_history import History
from kernelexec.records import journal

#: The limits of a file for a replay, in bytes and in cells.
FILE_BYTES, CELLS_MAX = 256 * 1024 * 1024, 10_000


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
        info = file.stat()
        session_directory = _session_directory(file, config.workspace)
        is_outside = session_directory is not None and not file.resolve().is_relative_to(session_directory)
    except (OSError, ValueError, RuntimeError) as exc:
        message = f"notebook {str(path)!r:.200} cannot be read: {getattr(exc, 'strerror', None) or exc}."
        raise InvalidRequest(message) from exc
    if is_outside:
        message = f"notebook {str(path)!r} leads out of the session's directory by a link, which cells may have created."
        raise InvalidRequest(message)
    if not stat.S_ISREG(info.st_mode):
        message = f"notebook {str(path)!r} is no file: name a notebook or a script."
        raise InvalidRequest(message)
    size = info.st_size
    if size > FILE_BYTES:
        message = f"notebook {str(path)!r} has {size} bytes, the limit is {FILE_BYTES}: clear its outputs."
        raise InvalidRequest(message)
    if file.suffix.lower() == journal.SUFFIX:
        history = journal.read_history(file)
    else:
        from kernelexec.records.notebook.notebook_io import CellFile  # noqa: PLC0415 - imports nbformat, which only notebooks need

        history = History(CellFile.read(file).past)
    if len(history.cells) > CELLS_MAX:
        message = f"notebook {str(path)!r} has {len(history.cells)} cells, the limit is {CELLS_MAX}: open a shorter one."
        raise InvalidRequest(message)
    for number, cell in enumerate(history.cells, 1):
        cells.check(cell.source, limit_bytes=config.capacity.code_bytes, label=f"cell {number} of {path}")
        if cell.stdin is not None:
            cells.check(cell.stdin, limit_bytes=config.capacity.code_bytes, label="stdin")
    return history


def _session_directory(path: Path, workspace: Path) -> Path | None:
    """Return the session directory that a path is in, by its text; None if it is in none."""
    parent = workspace.expanduser().absolute()
    absolute = Path(os.path.abspath(path))  # noqa: PTH100 - without following links
    if not absolute.is_relative_to(parent) or absolute.parent == parent:
        return None
    return (parent / absolute.relative_to(parent).parts[0]).resolve()
