"""Progress of a call: its waiting time, output cursor and partial result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kernelexec.config import SHORTEST_TIMEOUT, check_seconds
from kernelexec.results import ExecutionResult, Output, output_text
from kernelexec.results.outputs import read_displays
from kernelexec.untrusted_text import quote_line

#: The first progress reports, in seconds. The first one comes early, since a client counts the server's own start too.
_FIRST_REPORTS = (0.8, 2.0, 4.0)
_LINE_CHARS = 200
_LOOKED_AT = 20


@dataclass(frozen=True, slots=True)
class PartialResult:
    """Result of an execution so far, with the outputs that are new to the caller."""

    result: ExecutionResult
    outputs: tuple[Output, ...]
    since: int = 0
    cursor: int = 0
    missed_bytes: int = 0
    queue_position: int = 0
    is_readable: bool = True  #: whether read_output has its output; not so for an outcome that only the journal has


def generate_report_times(interval: float) -> Iterator[float]:
    """Return the seconds since the start of a call at which it reports progress: 0.8, 2, 4, then every ``interval``.

    Clients that end a call after five seconds need the first ones. A shorter interval holds from the start.
    """
    elapsed = 0.0
    for report in _FIRST_REPORTS:
        if report - elapsed > interval:
            break
        elapsed = report
        yield elapsed
    while True:
        elapsed += interval
        yield elapsed


def check_wait(wait: float) -> float:
    """Return the seconds that a call may block; 0 becomes the shortest timeout.

    Raises:
        InvalidTimeout: the value is not a number of seconds.
    """
    return SHORTEST_TIMEOUT if wait == 0 else check_seconds(wait, "wait")


def find_last_line(outputs: Sequence[Output]) -> str:
    """Return the last line that is not blank, at most 200 characters of it."""
    for output in read_displays(reversed(outputs[-_LOOKED_AT:])):
        tail = output_text([output])[-_LINE_CHARS * 20 :].replace("\r", "\n")
        if lines := [line.strip() for line in tail.split("\n") if line.strip()]:
            return quote_line(lines[-1][:_LINE_CHARS])
    return ""
