"""How long a call waits, from where on it sees an execution's output, and what it tells of it meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kernelexec.config import SHORTEST_TIMEOUT, seconds
from kernelexec.errors import InvalidRequest
from kernelexec.results import ExecutionResult, Output, output_text
from kernelexec.text import clean_text

#: How a call tells of its progress: seconds so far, and a line.
Report = Callable[[float, str], Awaitable[None]]
_LINE_CHARS = 200
_LOOKED_AT = 20


@dataclass(frozen=True, slots=True)
class Seen:
    """What a call has to show: the result, or the result so far, and the outputs that are new to the caller."""

    result: ExecutionResult
    outputs: tuple[Output, ...]
    since: int = 0
    cursor: int = 0
    missed_bytes: int = 0
    place: int = 0
    held: bool = True  #: whether more of it can be had here, or it is an outcome that only the journal knows


#: What makes a tool's answer of what a call has to show.
Show = Callable[[Seen], Awaitable[Any]]


def check_wait(wait: float) -> float:
    """How long a call may block; 0 is as short as it goes.

    Raises:
        InvalidTimeout: no number of seconds.
    """
    return SHORTEST_TIMEOUT if wait == 0 else seconds(wait, "wait")


def check_cursor(cursor: int) -> int:
    """A place in an execution's output, as an earlier answer gave it.

    Raises:
        InvalidRequest: it is negative.
    """
    if cursor < 0:
        message = f"cursor={cursor}: it is 0, or the cursor of an earlier answer."
        raise InvalidRequest(message)
    return cursor


def newest_line(outputs: Sequence[Output]) -> str:
    """The last line that says something, at most 200 characters of it."""
    for output in reversed(outputs[-_LOOKED_AT:]):
        tail = output_text([output])[-_LINE_CHARS * 20 :].replace("\r", "\n")
        for line in reversed(tail.split("\n")):
            if line.strip():
                return clean_text(line.strip()[:_LINE_CHARS])
    return ""
