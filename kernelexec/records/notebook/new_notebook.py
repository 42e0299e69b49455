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

from kernelexec.provisioning import platform
from kernelexec.provisioning.runtime.owned_directory import close_fd, track_fd
from kernelexec.records.notebook.recorder import Recorder, make_empty
from kernelexec.workspace.directory import numbered_paths
from kernelexec.workspace.safe_files import closing_fd, open_top

#: Errors that end when space is freed.
_FULL = (errno.ENOSPC, errno.EDQUOT)
#: The notebooks of earlier sessions of one name that stay in a workspace, and how old the one is that a new one replaces.
_NOTEBOOKS_MAX, _NOTEBOOK_SECONDS = 9, 3600.0


def open_recorder(name: str, directory: Path, existing: Path | None = None, *, is_replay: bool = False) -> Recorder:
    """Return the recorder of a notebook that no other session uses; on a full disk its name is reserved later.

    An ``existing`` notebook of this session in that directory is continued, else that of an earlier session of this name: but
    not if another session records in that directory, or if this one ``is_replay``, perhaps of that notebook.

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
    """Lock the directory of a notebook for its recorder; None if another one has it, or if the file system has no locks."""
    with suppress(OSError), closing_fd(open_top(directory)) as fd:
        platform.lock(fd)
        return track_fd(os.dup(fd))
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
    """Remove the oldest of several notebooks if a recorder wrote it and nothing changed it lately."""
    with suppress(OSError):
        changed, path = min((path.stat().st_mtime, path) for path in paths)
        if time.time() - changed > _NOTEBOOK_SECONDS and Recorder.of(path) is not None:
            with closing_fd(open_top(path.parent)) as directory:
                os.unlink(path.name, dir_fd=directory)
