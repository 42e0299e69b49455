"""A session's journal for people: one line for each cell, refusal and change of its life; or its own lines, for programs."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.text import Text

from kernelexec.cli.surroundings import write_any, writing
from kernelexec.errors import InvalidRequest
from kernelexec.records.journal import SUFFIX, Row, journals, path_of, read, rows

_COLUMNS = ("time", "what", "outcome", "exit", "seconds", "code or reason")
_NO_END = 1_000_000
_LINE = "{:19}  {:7}  {:17}  {:>4}  {:>8}  {}"
_FAILED = frozenset({"error", "refused", "unknown", "unfinished"})


def show_journal(name: str | None, *, workspace: Path, last: int | None, as_json: bool) -> int:
    """Print a journal, the newest last.

    Raises:
        InvalidRequest: there is no such journal, or it is not said which of several.
    """
    path = journal_of(name, workspace)
    if as_json:
        for said in deque(read(path), maxlen=last):
            write_any(sys.stdout, json.dumps(said, ensure_ascii=False) + "\n")
        return 0
    found = rows(path)
    _print(found[-last:] if last else found)
    return 0


def journal_of(name: str | None, workspace: Path) -> Path:
    """Where the journal is that a person means.

    Raises:
        InvalidRequest: there is none, or it is not said which of several.
    """
    if name is not None and (name.endswith(SUFFIX) or "/" in name):
        path = Path(name)
        if not path.is_file():
            message = f"No journal {name}."
            raise InvalidRequest(message)
        return path
    if name is not None:
        return path_of(workspace, name)
    known = journals(workspace)
    if len(known) != 1:
        which = f"name one of {', '.join(known)}" if known else "choose another one by --workspace"
        message = f"{len(known) or 'No'} journals are in {workspace}: {which}."
        raise InvalidRequest(message)
    return next(iter(known.values()))


def _print(found: Iterable[Row]) -> None:
    console = Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else _NO_END)
    with writing(sys.stdout):
        console.print(Text(_LINE.format(*_COLUMNS), "bold"))
        for row in found:
            outcome = _outcome(row)
            code = "" if row.exit_code is None else str(row.exit_code)
            seconds = "" if row.seconds is None else f"{row.seconds:.3f}"
            line = _LINE.format(_clock(row.time), row.kind or row.event, outcome, code, seconds, _summary(row)).rstrip()
            style = "red" if outcome.split(",")[0] in _FAILED else ""
            console.print(Text(line, style), no_wrap=True, overflow="ellipsis")


def _outcome(row: Row) -> str:
    """What became of it, in a word; of a cell that ended with its state lost, that too."""
    if row.event == "started":
        return "unfinished"
    if row.event == "cell":
        return f"{row.status}, state lost" if row.state == "lost" else str(row.status)
    return row.event if row.kind else str(row.why or "")


def _summary(row: Row) -> str:
    lines = (row.code or "").removeprefix("%%bash\n").strip().splitlines()
    first = lines[0] + " ..." * (len(lines) > 1) if lines else ""
    why = (row.why or "").splitlines()[0] if row.kind and row.why else str(row.cause or "")
    text = f"{first}  # {why}" if first and why else first or why
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def _clock(time: str) -> str:
    """The moment in the reader's own time zone."""
    try:
        return datetime.fromisoformat(time).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return time
