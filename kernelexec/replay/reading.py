"""What is read for a replay: a notebook, a script or a journal, checked before anything starts."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from kernelexec import cells, journal
from kernelexec.errors import InvalidRequest
from kernelexec.past import Past

#: The largest file that is read for a replay, in bytes, and the most cells that one has.
FILE_BYTES, CELLS_MAX = 256 * 1024 * 1024, 10_000


def read_past(path: str | os.PathLike[str], *, limit_bytes: int) -> Past:
    """The cells of a notebook, script or journal, checked; for a thread, since a large one takes its time.

    Raises:
        InvalidRequest: missing, no file, too large, no valid notebook, or with a cell that no kernel could take.
    """
    if not isinstance(path, str | os.PathLike) or not str(path) or "\0" in str(path):
        message = f"notebook={path!r:.200}: it is the path of a notebook, a script or a journal."
        raise InvalidRequest(message)
    try:
        found = Path(path).expanduser()
        about = found.stat()
    except (OSError, ValueError, RuntimeError) as exc:
        message = f"notebook {str(path)!r:.200} cannot be read: {getattr(exc, 'strerror', None) or exc}."
        raise InvalidRequest(message) from exc
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
        from kernelexec.documents import Document  # noqa: PLC0415 - nbformat, for who replays a notebook only

        past = Past(Document.read(found).past)
    if len(past.cells) > CELLS_MAX:
        message = f"notebook {str(path)!r} has {len(past.cells)} cells, the limit is {CELLS_MAX}: open a shorter one."
        raise InvalidRequest(message)
    for number, cell in enumerate(past.cells, 1):
        cells.check(cell.source, limit_bytes=limit_bytes, what=f"cell {number} of {path}")
        if cell.stdin is not None:
            cells.check(cell.stdin, limit_bytes=limit_bytes, what="stdin")
    return past
