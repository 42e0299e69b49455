"""Notes on a result for a model, in addition to its outputs: bounded lines of text."""

from __future__ import annotations

from collections.abc import Sequence

from kernelexec.results.result import ExecutionResult
from kernelexec.untrusted_text import escape_line

#: The limits of names or files in a line, and of its characters.
JOINED_MAX = 100
_LINE_CHARS = 4000


def model_notes(result: ExecutionResult, *, timeout_advice: str = "") -> list[str]:
    """Return the notes of a result, its state, hints and files, each on one line, whatever names a cell has chosen.

    ``timeout_advice`` ends the sentence about a timeout.
    """
    notes = list(result.notes)
    if result.state == "lost":
        names = _list_names(result)
        names_text = f": {names} are gone" if names else ""
        notes.append(f"state lost ({result.cause}){names_text}. Import and define again what you need; files are still there.")
    elif result.state == "restored" and result.lost_names:
        notes.append(f"state restored: {_list_names(result)} are gone. Files are as they are.")
    elif result.state == "new":
        notes.append("state new. Import and define again what you need.")
    if result.interrupted == "timeout":
        notes.append(f"Timeout: it was ended at its limit; give a larger timeout if it needs more time{timeout_advice}.")
    if result.diagnosis is not None and result.status == "error":
        notes.extend(f"hint: {hint}" for hint in result.diagnosis.hints)
    if result.status == "unknown":
        notes.append("Look whether its effects and variables are there. With a new request_id it would run again.")
    if result.files:
        notes.append(f"files made or changed: {join_names(result.files)}")
    return [escape_line(line[:_LINE_CHARS]) for line in notes]


def _list_names(result: ExecutionResult) -> str:
    """Return the names of lost variables; one that is no name of Python stands in quotes, for it may say anything."""
    return ", ".join(name if name.isidentifier() else repr(name) for name in result.lost_names[:JOINED_MAX])


def join_names(names: Sequence[str], limit: int = JOINED_MAX) -> str:
    """Return the names in one line, with the number of further ones."""
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")
