"""What a model should know of a result beside its outputs, and what to do about it: lines of text within bounds."""

from __future__ import annotations

from collections.abc import Sequence

from kernelexec.results.result import ExecutionResult
from kernelexec.text import clean

#: How many names or files a line lists, and how long it may be.
LISTED = 100
_LINE_CHARS = 4000
_OVER_TIME = "Over its timeout: give a larger timeout if it needs more time."


def remarks(result: ExecutionResult, *, over_time: str = _OVER_TIME) -> list[str]:
    """The notes of a result, what became of the state, what may help, and its files; ``over_time`` is said of a timeout."""
    found = list(result.notes)
    if result.state == "lost":
        names = ", ".join(result.lost_names[:LISTED])
        gone = f": {names} are gone" if names else ""
        found.append(f"state lost ({result.cause}){gone}. Import and define again what you need; files are still there.")
    if result.interrupted == "timeout":
        found.append(over_time)
    if result.diagnosis is not None and result.status == "error":
        found.extend(f"hint: {hint}" for hint in result.diagnosis.hints)
    if result.status == "unknown":
        found.append("Look whether its effects and variables are there. With a new request_id it would run again.")
    if result.files:
        found.append(f"files made or changed: {listed(result.files)}")
    return [str(clean(line[:_LINE_CHARS])) for line in found]


def listed(names: Sequence[str]) -> str:
    """Names in one line, and how many more there are."""
    more = len(names) - LISTED
    return ", ".join(names[:LISTED]) + (f" and {more} more" if more > 0 else "")
