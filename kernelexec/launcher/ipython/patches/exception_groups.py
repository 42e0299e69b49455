"""Tracebacks of exception groups.

- Checked for: IPython 9.18.
- Gain: the exceptions of a group are in the error; IPython prints Python's traceback to stderr instead.
- Obsolete when: ``test_ipython_shows_no_exception_of_a_group``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from traceback import TracebackException
from typing import Any

#: Limits of the last line: exceptions of the group, and characters of each.
_NAMED, _NAMED_CHARS = 10, 200
_LINKS_MAX = 1000


def contains_group(exc: BaseException | None) -> bool:
    """Return whether an exception is a group, or was caused by one."""
    pending, ids = [exc], set[int]()
    while pending and len(ids) < _LINKS_MAX:
        exc = pending.pop()
        if exc is not None and id(exc) not in ids:
            ids.add(id(exc))
            if isinstance(exc, BaseExceptionGroup):
                return True
            pending += [exc.__context__, exc.__cause__]
    return False


def format_group(exc: BaseException, format_message: Callable[[object], str], label: Callable[[str], Any]) -> list[str]:
    """Format Python's own traceback as a tree, cells named as IPython names them; one line with all exceptions follows.

    ``format_message`` returns an exception's message, ``label`` two words for the file name of a cell and None for other files.
    """
    trace = TracebackException(type(exc), exc, exc.__traceback__, compact=True)
    cells = _name_cells(trace, label)
    first = next((number for number, frame in enumerate(trace.stack) if id(frame) in cells), 0)
    del trace.stack[:first]  # the frames of IPython before the cell
    lines = "".join(trace.format()).rstrip("\n").split("\n")
    failed = [_format_leaf(leaf, format_message) for leaf in islice(_leaves(exc), _NAMED + 1)]
    if failed:
        failed[_NAMED:] = ["and more"] * (len(failed) > _NAMED)
        lines.append(f"{type(exc).__name__}: {format_message(exc)}: {'; '.join(failed)}")
    return lines


def _format_leaf(exc: BaseException, format_message: Callable[[object], str]) -> str:
    line = format_message(exc).partition("\n")[0]
    return f"{type(exc).__name__}: {line}"[:_NAMED_CHARS] if line else type(exc).__name__


def _name_cells(trace: TracebackException, label: Callable[[str], Any]) -> set[int]:
    """Name the frames of cells as IPython does; return their ids."""
    frame_ids, pending = set[int](), [trace]
    while pending:
        trace = pending.pop()
        for frame in trace.stack:
            if (words := label(frame.filename)) is not None:
                _ = frame.line  # read now, by the original file name; the frame keeps it
                frame.filename = " ".join(words)
                frame_ids.add(id(frame))
        pending += [linked for linked in (trace.__cause__, trace.__context__, *(trace.exceptions or ())) if linked]
    return frame_ids


def _leaves(exc: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions of a group that are no groups themselves, in order."""
    pending = list(reversed(exc.exceptions)) if isinstance(exc, BaseExceptionGroup) else []
    while pending:
        exc = pending.pop()
        if isinstance(exc, BaseExceptionGroup):
            pending += reversed(exc.exceptions)
        else:
            yield exc
