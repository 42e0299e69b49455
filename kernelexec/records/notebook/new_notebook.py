"""The notebook of a new session: under a name of its own, or continued."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path

from kernelexec.records.notebook.recorder import Recorder, make_empty
from kernelexec.workspace.directory import numbered_paths
from kernelexec.workspace.safe_files import closing_fd, open_top

#: Errors that end when space is freed.
_FULL = (errno.ENOSPC, errno.EDQUOT)
#: The notebooks of earlier sessions of one name that stay in a workspace, and how old the one is that a new one replaces.
_NOTEBOOKS_MAX, _NOTEBOOK_SECONDS = 9, 3600.0


def open_recorder(name: str, directory: Path, existing: Path | None = None) -> Recorder:
    """Return the recorder of a notebook that no other session uses; on a full disk its name is reserved later.

    An ``existing`` notebook of this session in that directory is continued.

    Raises:
        OSError: no file can be created there.
    """
    if existing is not None and existing.parent == directory and (recorder := Recorder.of(existing)) is not None:
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
                return Recorder(path, is_reserved=False)
            raise
        return Recorder(path)
    raise AssertionError


def _remove_oldest_notebook(paths: Iterable[Path]) -> None:
    """Remove the oldest of several notebooks if a recorder wrote it and nothing changed it lately."""
    with suppress(OSError):
        changed, path = min((path.stat().st_mtime, path) for path in paths)
        if time.time() - changed > _NOTEBOOK_SECONDS and Recorder.of(path) is not None:
            with closing_fd(open_top(path.parent)) as directory:
                os.unlink(path.name, dir_fd=directory)
