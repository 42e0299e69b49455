"""What went wrong, in plain terms: the kind of failure, the line of the user's own cell, and what to try next."""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Iterable
from itertools import takewhile

from kernelexec.results import Cause, Diagnosis, Error, Interrupted, Output, Status, strip_ansi

_CELL_LINE = re.compile(r"^Cell In\[(\d+)\], line (\d+)", re.MULTILINE)
_ARROW = re.compile(r"^-+> (\d+) (.*)$", re.MULTILINE)
_SYNTAX_LINE = re.compile(r"^\s*(?:(?:Cell In\[\d+\]|File .*), line |File <(?:tokenize|string)>:)(\d+)\n(.*)$", re.MULTILINE)
_OTHER_FILE = re.compile(r"^\s*File ", re.MULTILINE)
#: How a traceback begins where IPython, which cuts a cell into tokens, refuses its indentation; the second one on Python 3.12.
_TOKENS = re.compile(r"\s*File <(?:tokenize|string)>:")
#: Python's own traceback, as the launcher gives it for exception groups: a tree with a bar for each group around a line.
_BRANCH = re.compile(r"^ *\+(?:-\+)?-+ \d+ -+$", re.MULTILINE)
_TREE_FRAME = re.compile(r'^([ |]*)  File "Cell In\[(\d+)\]", line (\d+).*(?:\n\1    (.*))?$', re.MULTILINE)
_TREE_ERROR = re.compile(r"^[ |]*\| (\w+): (.*)$", re.MULTILINE)
_NEXT_TREE = re.compile(r"^(?:The above exception was|During handling of) .*:$", re.MULTILINE)
_SYNTAX = ("SyntaxError", "IndentationError", "TabError")
_MISSING_MODULE = re.compile(r"No module named '([^'.]+)")

_HINTS: dict[str, tuple[str, ...]] = {
    "NameError": ("Define the name in an earlier cell, or check its spelling.",),
    "SyntaxError": ("Mend the marked line: nothing of the cell ran.",),
    "IndentationError": ("Mend the indentation of the marked line: nothing of the cell ran.",),
    "FileNotFoundError": ("List the directory: paths are relative to the session's workspace.",),
    "PermissionError": (
        "Write in the session's workspace or in $TMPDIR; on this machine the option `confinement` allows more.",
    ),
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
    source: str = "",
    *,
    limit: str = "",
) -> Diagnosis | None:
    """The diagnosis of a failed cell; None for one that did not fail. Lines count from the beginning of the source.

    ``limit`` is the limit of memory that ended the kernel, in words, where it is known.
    """
    if status != "error":
        return None
    error = next((output for output in reversed(tuple(outputs)) if isinstance(output, Error)), None)
    line, text = _where(error)
    if line is not None:
        line += sum(1 for _ in takewhile(str.isspace, source.splitlines(keepends=True)))  # IPython counts from behind them
    if cause in _ENDS:
        message, hints, retryable = _ENDS[cause]
        if cause == "oom" and limit:
            message = f"The kernel ran out of memory: {limit} was reached."
        return Diagnosis(cause, message, line, text, message, hints, retryable)
    if interrupted == "timeout":
        message = "The cell ran over its timeout."
        return Diagnosis("timeout", message, line, text, message, ("Give it more time, or do less at once.",), retryable=True)
    if interrupted == "request":
        return Diagnosis("interrupted", "The cell was interrupted on request.", line, text, retryable=True)
    if error is None or _is_script(error):
        hint = ("Read stderr: the command says there what it missed.",)
        return Diagnosis("command", f"The command ended with exit code {exit_code}.", hints=hint)
    return Diagnosis(error.ename or "error", _message(error)[:2000], line, text, None, _hints(error))


def _is_script(error: Error) -> bool:
    """Whether the exception only says that a ``%%bash`` or ``%%sh`` cell failed."""
    return error.ename == "CalledProcessError" and any("run_cell_magic(" in entry for entry in error.traceback)


def _hints(error: Error) -> tuple[str, ...]:
    if tree := _tree(error):
        failed = [Error(found[1], found[2]) for found in _TREE_ERROR.finditer(tree) if found[1] not in _SYNTAX]
        return tuple(dict.fromkeys(hint for found in failed for hint in _hints(found)))
    if error.ename in ("ModuleNotFoundError", "ImportError") and (missing := _MISSING_MODULE.search(error.evalue)):
        return (f"{missing[1]} is not installed in the kernel's environment: install it, or do without.",)
    if error.ename in _SYNTAX and _is_elsewhere(error):
        return ("Mend what was compiled there: the cell ran up to the marked line.",)
    return _HINTS.get(error.ename, ())


def _is_elsewhere(error: Error) -> bool:
    """Whether what does not compile is not the cell itself."""
    entries = [strip_ansi(entry) for entry in error.traceback]
    return any(map(_OTHER_FILE.search, entries)) and not _TOKENS.match(entries[0])


def _tree(error: Error) -> str:
    """A group's traceback; empty for any other exception."""
    tree = _NEXT_TREE.split("\n".join(error.traceback))[-1]
    return tree if _BRANCH.search(tree) else ""


def _message(error: Error) -> str:
    """What an exception says of itself; of a group its traceback's last line, which names its exceptions too."""
    if not error.ename:  # some kernels know only that a cell failed, and an exit code
        return f"The cell failed: {error.evalue or 'it did not say why'}."
    named = error.traceback[-1].removeprefix(f"{error.ename}: ") if _tree(error) else ""
    return named if named.startswith(error.evalue) else error.evalue


def _where(error: Error | None) -> tuple[int | None, str | None]:
    """Number and text of the last line that ran of the cell itself, which is the newest of all cells in the traceback."""
    if error is None:
        return None, None
    entries = [strip_ansi(entry) for entry in error.traceback]
    if error.ename in _SYNTAX:
        found = _SYNTAX_LINE.search("\n".join(entries))
        return (int(found[1]), found[2].strip()) if found else (None, None)
    trace = "\n".join(entry for entry in entries if not entry.startswith(error.ename))
    frames = list(_CELL_LINE.finditer(trace))
    newest = max((int(frame[1]) for frame in frames), default=0)
    last = next((frame for frame in reversed(frames) if int(frame[1]) == newest), None)
    if last is None:
        return _where_in_tree(trace)
    number = int(last[2])
    arrow = next((match for match in _ARROW.finditer(trace, last.end()) if int(match[1]) == number), None)
    return number, arrow[2].strip() if arrow else None


def _where_in_tree(trace: str) -> tuple[int | None, str | None]:
    """The same in Python's own traceback; of a group, the place of its first exception that has one in the cell."""
    tree = _NEXT_TREE.split(trace)[-1]
    frames = list(_TREE_FRAME.finditer(tree))
    newest = max((int(frame[2]) for frame in frames), default=0)
    branches = [found.start() for found in _BRANCH.finditer(tree)]
    last = {bisect(branches, frame.start()): frame for frame in frames if int(frame[2]) == newest}
    if not last:
        return None, None
    frame = last[min((branch for branch in last if branch), default=0)]
    return int(frame[3]), frame[4].strip() if frame[4] else None
