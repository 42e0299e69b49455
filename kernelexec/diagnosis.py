"""What went wrong, in plain terms: the kind of failure, the line of the user's own cell, and what to try next."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kernelexec.results import Cause, Diagnosis, Error, Interrupted, Output, Status, strip_ansi

_CELL_LINE = re.compile(r"^Cell In\[\d+\], line (\d+)", re.MULTILINE)
_ARROW = re.compile(r"^-+> (\d+) (.*)$", re.MULTILINE)
_SYNTAX_LINE = re.compile(r"^\s*(?:Cell In\[\d+\]|File .*), line (\d+)\n(.*)$", re.MULTILINE)
_MISSING_MODULE = re.compile(r"No module named '([^'.]+)")

_HINTS: dict[str, tuple[str, ...]] = {
    "NameError": ("Define the name in an earlier cell, or check its spelling.",),
    "SyntaxError": ("Mend the marked line: nothing of the cell ran.",),
    "IndentationError": ("Mend the indentation of the marked line: nothing of the cell ran.",),
    "FileNotFoundError": ("List the directory: paths are relative to the session's workspace.",),
    "PermissionError": ("Write inside the session's workspace.",),
    "KeyError": ("Look at the keys or columns that are there.",),
    "IndexError": ("Check the length first.",),
    "TypeError": ("Check the types of the values that the marked line uses.",),
    "AttributeError": ("Check the value's type, and `dir(value)`.",),
    "ZeroDivisionError": ("Guard against a divisor of zero.",),
    "MemoryError": ("Work on smaller pieces, or delete what is no longer needed.",),
    "StdinNotImplementedError": ("Nobody can answer input(): set the value in code.",),
}
_ENDS: dict[str, tuple[str, tuple[str, ...], bool]] = {
    "oom": ("The kernel ran out of memory.", ("Work on smaller pieces, or give the session more memory.",), False),
    "killed": ("The kernel's process was killed from outside.", ("Run the cell again.",), True),
    "crashed": ("The kernel's process crashed.", ("The cause is in compiled code: isolate the call.",), False),
    "exited": ("The cell ended the kernel's process.", ("Remove the call that exits.",), False),
    "request": ("The cell was interrupted on request and had to be killed.", (), True),
    "timeout": (
        "The cell ran over its timeout and obeyed no interrupt.",
        ("Give it more time, or do less at once.", "Do not swallow KeyboardInterrupt."),
        False,
    ),
}


def diagnose(
    status: Status,
    exit_code: int | None,
    interrupted: Interrupted | None,
    cause: Cause | None,
    outputs: Iterable[Output],
) -> Diagnosis | None:
    """The diagnosis of a failed cell; None for one that did not fail."""
    if status != "error":
        return None
    error = next((output for output in reversed(tuple(outputs)) if isinstance(output, Error)), None)
    line, text = _where(error)
    if cause in _ENDS:
        message, hints, retryable = _ENDS[cause]
        return Diagnosis(cause, message, line, text, message, hints, retryable)
    if interrupted == "timeout":
        message = "The cell ran over its timeout."
        return Diagnosis("timeout", message, line, text, message, ("Give it more time, or do less at once.",), retryable=True)
    if interrupted == "request":
        return Diagnosis("interrupted", "The cell was interrupted on request.", line, text, retryable=True)
    if error is None:
        hint = ("Read stderr: the command says there what it missed.",)
        return Diagnosis("command", f"The command ended with exit code {exit_code}.", hints=hint)
    return Diagnosis(error.ename, error.evalue[:2000], line, text, None, _hints(error))


def _hints(error: Error) -> tuple[str, ...]:
    if error.ename in ("ModuleNotFoundError", "ImportError") and (missing := _MISSING_MODULE.search(error.evalue)):
        return (f"{missing[1]} is not installed in the kernel's environment: install it, or do without.",)
    return _HINTS.get(error.ename, ())


def _where(error: Error | None) -> tuple[int | None, str | None]:
    """Line number and text of the last frame that lies in the user's own cell."""
    if error is None:
        return None, None
    trace = strip_ansi("\n".join(error.traceback))
    if error.ename in ("SyntaxError", "IndentationError", "TabError"):
        found = _SYNTAX_LINE.search(trace)
        return (int(found[1]), found[2].strip()) if found else (None, None)
    frames = list(_CELL_LINE.finditer(trace))
    if not frames:
        return None, None
    number = int(frames[-1][1])
    arrow = next((match for match in _ARROW.finditer(trace, frames[-1].end()) if int(match[1]) == number), None)
    return number, arrow[2].strip() if arrow else None
