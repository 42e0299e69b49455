"""Tracebacks of exceptions: right line numbers, groups, exceptions with faulty methods, and endless chains."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice, zip_longest
from pathlib import Path
from traceback import TracebackException, format_tb
from types import TracebackType
from typing import Any

from IPython.core.ultratb import AutoFormattedTB
from stack_data.core import RepeatedFrames
from stack_data.utils import collapse_repeated

from ..output.kept_output import truncate

_OWN_DIRECTORY = f"{Path(__file__).resolve().parents[1]}{os.sep}"
#: Attributes read by IPython or Python to format an exception.
_READ_ATTRIBUTES = ("__class__", "__notes__", "_render_traceback_", "__suppress_context__")
#: The number of shown exceptions of a chain.
_CHAIN_MAX = 20
_FRAMES_MAX = 20
#: Limits of the last line of a group's traceback: exceptions of the group, and characters of each.
_NAMED, _NAMED_CHARS = 10, 200
_LINKS_MAX = 1000


class Tracebacks(AutoFormattedTB):
    """IPython's tracebacks, with the raising line of each frame marked as in Python's own tracebacks.

    In frames of cells, IPython 8 and 9 mark the current line of the frame instead: an ``except`` without a match, the end of
    a ``finally``, or the line of a later exception.

    - Checked for: IPython 8.37 and 9.18.
    - Gain: right line numbers.
    - Obsolete when: ``test_ipython_marks_another_line``.
    """

    def get_records(self, etb: Any, *bounds: Any) -> Any:
        """Return the frames of a traceback, outermost first. Frames of cells are raw frames in IPython."""
        records = super().get_records(etb, *bounds)
        entry = etb
        for record in records:
            if getattr(record, "description", None) != "Raw frame":
                continue
            while entry is not None and entry.tb_frame is not record.frame:
                entry = entry.tb_next
            if entry is None:  # another traceback than expected: IPython's own line numbers stay
                break
            record.lineno = entry.tb_lineno or record.lineno
            entry = entry.tb_next  # a frame that raised a caught exception again occurs twice, with two lines
        return list(collapse_repeated(records, collapser=_collapse, key=_find_line))


def _find_line(record: Any) -> Any:
    """Return the code and line of a frame, or a unique value for frames that are collapsed already."""
    return (record.code, record.lineno) if getattr(record, "code", None) is not None else object()


def _collapse(records: list[Any], lines: list[Any]) -> Any:
    """Return a single record for the frames of an endless recursion. stack_data collapses no raw frames."""
    repeated = RepeatedFrames([record.frame for record in records], lines)
    return type(records[0])._from_stack_data_FrameInfo(repeated)  # noqa: SLF001 - IPython has no other


def contains_group(exc: BaseException | None) -> bool:
    """Return whether an exception is a group, or was caused by one."""
    pending, ids = [exc], set[int]()  # user code can link exceptions to a circle, or to a chain without end
    while pending and len(ids) < _LINKS_MAX:
        exc = pending.pop()
        if exc is not None and id(exc) not in ids:
            ids.add(id(exc))
            if isinstance(exc, BaseExceptionGroup):
                return True
            pending += [exc.__context__, exc.__cause__]
    return False


def format_group(exc: BaseException, format_message: Callable[[object], str], label: Callable[[str], Any]) -> list[str]:
    """Format Python's own traceback as a tree with IPython's names of cells, then add a line with all exceptions.

    ``format_message`` returns an exception's message. ``label`` returns two words for the file name of a cell, None for others.

    - Checked for: IPython 9.18.
    - Gain: the error has the exceptions of a group. IPython prints Python's traceback to stderr instead.
    - Obsolete when: ``test_ipython_shows_no_exception_of_a_group``.
    """
    # ``compact`` keeps no causes and contexts that are not shown.
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
    """Give the frames of cells IPython's names, and return the ids of these frames."""
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
    """Yield the exceptions of a group and of its inner groups, in order."""
    pending = list(reversed(exc.exceptions)) if isinstance(exc, BaseExceptionGroup) else []
    while pending:
        exc = pending.pop()
        if isinstance(exc, BaseExceptionGroup):
            pending += reversed(exc.exceptions)
        else:
            yield exc


def is_readable(exc: BaseException) -> bool:
    """Return whether an exception can be formatted, with a text and attributes that raise nothing."""
    try:
        str(exc)
        for name in _READ_ATTRIBUTES:
            getattr(exc, name, None)
    except BaseException:  # a user's method may raise anything
        return False
    return True


def read_exit_status(exc: BaseException) -> int:
    """Return the exit status of a Python process after this ``SystemExit``."""
    with suppress(Exception):  # a user's subclass may do anything
        code = getattr(exc, "code", 1)
        return 0 if code is None else int(code) & 0xFF if isinstance(code, int) else 1
    return 1


def format_unreadable(etype: type[BaseException], exc: BaseException, trace: TracebackType | None) -> list[str]:
    """Return a traceback without the exception's own methods: the newest frames, the name, and the text if there is any."""
    frames: list[str] = []
    with suppress(Exception):
        frames = [entry.rstrip("\n") for entry in format_tb(trace)[-_FRAMES_MAX:]]
    return [*frames, f"{etype.__name__}: {truncate(exc)}"]


def drop_own_frames(exc: BaseException) -> None:
    """Remove this package's frames from the tracebacks of a user's exception and of the exceptions before it."""
    for raised in islice(_follow_chain(exc), _CHAIN_MAX):
        frames: list[TracebackType] = []
        entry: TracebackType | None = _get(raised, "__traceback__")
        while entry is not None:
            # The first frame stays, since the exception itself refers to it: only links between frames change.
            if not frames or not entry.tb_frame.f_code.co_filename.startswith(_OWN_DIRECTORY):
                frames.append(entry)
            entry = entry.tb_next
        for frame, following in zip_longest(frames, frames[1:]):
            frame.tb_next = following


@contextmanager
def shortened_chain(exc: BaseException) -> Iterator[None]:
    """Cut a long chain of causes and contexts within the block. IPython and Python follow a chain by recursion."""
    links = list(islice(_follow_chain(exc), _CHAIN_MAX + 1))
    if len(links) <= _CHAIN_MAX:
        yield
        return
    last: Any = links[_CHAIN_MAX - 1]
    before = last.__cause__, last.__context__, last.__suppress_context__
    last.__cause__ = last.__context__ = None
    try:
        yield
    finally:
        # Setting a cause suppresses the context, so the flag comes last.
        last.__cause__, last.__context__, last.__suppress_context__ = before


#: Reads an attribute of an exception past the methods of the class.
_get: Any = BaseException.__getattribute__


def _follow_chain(exc: BaseException | None) -> Iterator[BaseException]:
    while exc is not None:
        yield exc
        exc = _get(exc, "__cause__") or (None if _get(exc, "__suppress_context__") else _get(exc, "__context__"))
