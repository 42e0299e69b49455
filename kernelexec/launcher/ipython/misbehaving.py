"""Exceptions whose own methods fail, whose chain is endless, or which this package raised for a user's failed program."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice, zip_longest
from pathlib import Path
from traceback import format_tb
from types import TracebackType
from typing import Any

from ..output.kept_output import truncate

_OWN_DIRECTORY = f"{Path(__file__).resolve().parents[1]}{os.sep}"
#: Attributes that IPython or Python reads to format an exception.
_READ_ATTRIBUTES = ("__class__", "__notes__", "_render_traceback_", "__suppress_context__")
#: The exceptions of a chain that are shown.
_CHAIN_MAX = 20
_FRAMES_MAX = 20


def is_readable(exc: BaseException) -> bool:
    """Return whether an exception can be formatted: whether its text and its attributes raise nothing."""
    try:
        str(exc)
        for name in _READ_ATTRIBUTES:
            getattr(exc, name, None)
    except BaseException:  # a user's method may raise anything
        return False
    return True


def read_exit_status(exc: BaseException) -> int:
    """Return the status with which a process of Python ends after this ``SystemExit``."""
    with suppress(Exception):  # a user's subclass may do anything
        code = getattr(exc, "code", 1)
        return 0 if code is None else int(code) & 0xFF if isinstance(code, int) else 1
    return 1


def format_unreadable(etype: type[BaseException], exc: BaseException, trace: TracebackType | None) -> list[str]:
    """Return a traceback without the exception's own methods: its newest frames, and its name with what there is of a text."""
    frames: list[str] = []
    with suppress(Exception):
        frames = [entry.rstrip("\n") for entry in format_tb(trace)[-_FRAMES_MAX:]]
    return [*frames, f"{etype.__name__}: {truncate(exc)}"]


def drop_own_frames(exc: BaseException) -> None:
    """Remove this package's frames from the tracebacks of an exception and of those before it: the failure is the user's."""
    for raised in islice(_follow_chain(exc), _CHAIN_MAX):
        frames: list[TracebackType] = []
        entry: TracebackType | None = _get(raised, "__traceback__")
        while entry is not None:
            if not frames or not entry.tb_frame.f_code.co_filename.startswith(_OWN_DIRECTORY):
                frames.append(entry)
            entry = entry.tb_next
        for frame, following in zip_longest(frames, frames[1:]):
            frame.tb_next = following


@contextmanager
def shortened_chain(exc: BaseException) -> Iterator[None]:
    """Cut a longer chain of causes and contexts within the block: IPython and Python follow it by recursion."""
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
        last.__cause__, last.__context__, last.__suppress_context__ = before


#: An attribute of an exception, whatever its class's own methods do.
_get: Any = BaseException.__getattribute__


def _follow_chain(exc: BaseException | None) -> Iterator[BaseException]:
    while exc is not None:
        yield exc
        exc = _get(exc, "__cause__") or (None if _get(exc, "__suppress_context__") else _get(exc, "__context__"))
