"""What is read for a replay: a notebook, a script or a journal, checked before anything starts."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from kernelexec import cells
from kernelexec.config import Config
from kernelexec.errors import InvalidRequest
from kernelexec.recorded_history import Past
from kernelexec.records import journal

#: The largest file that is read for a replay, in bytes, and the most cells that one has.
FILE_BYTES, CELLS_MAX = 256 * 1024 * 1024, 10_000


def read_past(path: str | os.PathLike[str], config: Config) -> Past:
    """The cells of a notebook, script or journal, checked; for a thread, since a large one takes its time.

    Where sessions have their directories, no link is followed out of a session's.

    Raises:
        InvalidRequest: missing, no file, too large, no valid notebook, or with a cell that no kernel could take.
    """
    if not isinstance(path, str | os.PathLike) or not str(path) or "\0" in str(path):
        message = f"notebook={path!r:.200}: it is the path of a notebook, a script or a journal."
        raise InvalidRequest(message)
    try:
        found = Path(path).expanduser()
        about = found.stat()
        within = _session_directory(found, config.workspace)
        leads_out = within is not None and not found.resolve().is_relative_to(within)
    except (OSError, ValueError, RuntimeError) as exc:
        message = f"notebook {str(path)!r:.200} cannot be read: {getattr(exc, 'strerror', None) or exc}."
        raise InvalidRequest(message) from exc
    if leads_out:
        message = f"notebook {str(path)!r} leads out of the session's directory by a link, which its code may have made."
        raise InvalidRequest(message)
    if not stat.S_ISREG(about.st_mode):
        message = f"notebook {str(path)!r} is no file: name a notebook or a script."
        raise InvalidRequest(message)
    size = about.st_size
    if size > FILE_BYTES:
        message = f"notebook {str(path)!r} has {size} bytes, the limit is {FILE_BYTES}: clear its outputs."
        raise InvalidRequest(message)
    if found.suffix.lower() == journal.SUFFIX:
        past = journal.past(found)
    else:
        from kernelexec.records.notebook.notebook_io import Document  # noqa: PLC0415 - nbformat, for who replays a notebook only

        past = Past(Document.read(found).past)
    if len(past.cells) > CELLS_MAX:
        message = f"notebook {str(path)!r} has {len(past.cells)} cells, the limit is {CELLS_MAX}: open a shorter one."
        raise InvalidRequest(message)
    for number, cell in enumerate(past.cells, 1):
        cells.check(cell.source, limit_bytes=config.capacity.code_bytes, what=f"cell {number} of {path}")
        if cell.stdin is not None:
            cells.check(cell.stdin, limit_bytes=config.capacity.code_bytes, what="stdin")
    return past


def _session_directory(path: Path, workspace: Path) -> Path | None:
    """The session's directory that a path, taken by its name, is in; None where it is in none."""
    parent = workspace.expanduser().absolute()
    named = Path(os.path.abspath(path))  # noqa: PTH100 - without following links
    if not named.is_relative_to(parent) or named.parent == parent:
        return None
    return (parent / named.relative_to(parent).parts[0]).resolve()
