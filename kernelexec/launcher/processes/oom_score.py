"""Which process the system ends first when memory is short: ``oom_score_adj`` of proc(5), which is inherited.

The system adds this number to the memory of a process, in thousandths of all that there may be, and ends the one with the most.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

from . import proc

HIGHEST = 1000
_BYTES = 16
#: A checkpoint is ended before the kernel unless the kernel alone uses this part of the memory, ...
_KERNELS_PART = 0.8
#: ... and in any case if both use the same, in thousandths of the memory.
_LEAST_MORE = 50

#: This process's own, opened at the start, while it may still write it.
_file: int | None = None


def open_own() -> None:
    """Open the score of this process, in a copy of another one too."""
    global _file  # noqa: PLW0603 - one a process
    if _file is not None:
        os.close(_file)
        _file = None
    with suppress(OSError):
        _file = os.open(proc.PROC / "self" / proc.OOM_SCORE, os.O_RDWR | os.O_CLOEXEC)


def read_own() -> int | None:
    """Return the score of this process; None where it is unknown."""
    if _file is None:
        return None
    try:
        return int(os.pread(_file, _BYTES, 0))
    except (OSError, ValueError):
        return None


def _set_own(score: int) -> bool:
    try:
        return _file is not None and os.pwrite(_file, str(score).encode(), 0) > 0
    except OSError:
        return False


def set_score(pid: int, score: int) -> None:
    """Set the score of this process or a child, where that is allowed: the confinement of local kernels allows neither."""
    with suppress(OSError):
        (proc.PROC / str(pid) / proc.OOM_SCORE).write_text(str(score), encoding="ascii")


@contextmanager
def raise_score(score: int = HIGHEST) -> Iterator[None]:
    """Let processes that are started within the block, and copies of this one, have a higher score.

    A shell may start others before it could be marked, so the score is inherited. It stays as it is on systems where a process
    that raised its own score cannot lower it again.
    """
    own_pid, before = os.getpid(), read_own()
    if before is None or before >= score or not (_set_own(before + 1) and _set_own(before)):
        yield
        return
    _set_own(score)
    try:
        yield
    finally:
        if os.getpid() == own_pid:
            _set_own(before)


def raise_for_copy(score: int) -> AbstractContextManager[None]:
    """Have a copy of this process that is forked within the block inherit a score, where confinement lets it set none itself.

    Elsewhere this process keeps its score meanwhile: the fork may itself be what memory is short for.
    """
    return nullcontext() if _may_open_own() else raise_score(score)


def _may_open_own() -> bool:
    try:
        os.close(os.open(proc.PROC / "self" / proc.OOM_SCORE, os.O_WRONLY))
    except OSError:
        return False
    return True


def choose_for_checkpoint(limit_bytes: int | None) -> int:
    """Return the score of a checkpoint of this process, a kernel with so much memory for both.

    A cell that writes to what it shares with the checkpoint must not be ended for the copies of those pages; but a cell that
    needs all the memory by itself is, and the checkpoint is there afterwards.
    """
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    limit_bytes = limit_bytes or os.sysconf("SC_PHYS_PAGES") * page_bytes
    used_bytes = int((proc.PROC / "self/statm").read_text(encoding="ascii").split()[1]) * page_bytes
    more = round(HIGHEST * (_KERNELS_PART - used_bytes / limit_bytes))
    return min(HIGHEST, (read_own() or 0) + max(_LEAST_MORE, more))
