"""The command for journals: the cells of open and closed sessions, as recorded or as they come."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernelexec.cli.console import show_table
from kernelexec.cli.options import complete_session, not_blank, option
from kernelexec.cli.stdio import OWN_FAILURE, CommandFailed, encode_json, print_json, write_guard, write_text
from kernelexec.errors import InvalidRequest, did_you_mean
from kernelexec.executor.control.control_client import select_session
from kernelexec.provisioning.runtime.discovery import list_live_sessions
from kernelexec.provisioning.runtime.owned_directory import runtime_bases
from kernelexec.records.journal import SUFFIX, JournalRow, journals, read, rows, statistics
from kernelexec.results.usage import format_size
from kernelexec.session.features.limits import CALLS_MAX
from kernelexec.text import escape_line
from kernelexec.workspace.directory import find_names

if TYPE_CHECKING:
    from kernelexec.results import CallStatistics, Statistics

logs_app = typer.Typer()
Entry = JournalRow | dict[str, Any]
_WORKSPACE = "workspaces"
_FOLLOW_SECONDS = 0.5


@logs_app.command(epilog=f"Exit status: 0; {OWN_FAILURE} after wrong usage, or if the journal does not exist.")
def logs(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            callback=not_blank,
            autocompletion=complete_session,
            help="A session, as NAME or NAME@PROCESS, or the path of a journal. Default: the only one.",
        ),
    ] = None,
    workspace: Annotated[
        str | None,
        option("--workspace", f"The workspace of closed sessions. Default: ./{_WORKSPACE}.", "DIRECTORY", callback=not_blank),
    ] = None,
    last: Annotated[int | None, typer.Option("--last", "-n", min=1, metavar="N", help="Only the newest N rows.")] = None,
    follow: Annotated[bool, option("--follow -f", "Show new rows as cells end, until the session ends.")] = False,
    as_json: Annotated[bool, option("--json", "Print the journal's own lines.")] = False,
    show_statistics: Annotated[bool, option("--statistics", "Show statistics of the cells instead.")] = False,
) -> int:
    """Show the journal of a session, open or closed: its cells with their results, refusals, changes of its kernels."""
    path = _find_journal(name, workspace)
    if show_statistics:
        return _show_statistics(path, last, as_json=as_json)
    view = _JournalView(path, as_json=as_json)
    view.show(last)
    if follow:
        with suppress(KeyboardInterrupt):
            view.follow()
    return 0


logs_app.command(name="log", hidden=True)(logs)


def _find_journal(name: str | None, workspace: str | None) -> Path:
    """Return a journal's path from a file path, a session name in a workspace, or an open session.

    Raises:
        InvalidRequest: no journal matches, or several match.
        CommandFailed: the open session has no journal.
    """
    live = [] if workspace is not None else list_live_sessions(runtime_bases())
    workspace = workspace or _WORKSPACE
    known = journals(Path(workspace))
    wanted, names = (name or "").partition("@")[0], [session.name for session in live]
    if name is not None and (name.endswith(SUFFIX) or ("/" in name and not find_names(wanted, [*known, *names]))):
        if not Path(name).is_file():
            raise InvalidRequest(f"No journal {name}.")
        return Path(name)
    matches = [*known] if name is None else find_names(name, known)
    if len(matches) == 1:
        return known[matches[0]]
    is_open = bool(live) and (name is None or bool(find_names(wanted, names)))
    if is_open and not (name is None and known):
        session = select_session(name, live)
        if session.journal is None or not session.journal.is_file():
            raise CommandFailed(f"Session {session.name!r} has no journal.")
        return session.journal
    if name is not None and not matches:
        raise InvalidRequest(f"No journal of a session {name!r} in {workspace}{did_you_mean(name, [*known, *names])}.")
    which = f"choose one of {', '.join(matches)}" if matches else "choose another workspace with --workspace"
    raise InvalidRequest(f"{len(matches) or 'No'} journals{f' of {name!r}' if name else ''} are in {workspace}: {which}.")


@dataclass(slots=True)
class _JournalView:
    """The rows or records of a journal on stdout; ``shown`` counts the final entries so far, by their keys."""

    path: Path
    as_json: bool
    shown: Counter[Hashable] = field(default_factory=Counter)

    def show(self, last: int | None) -> None:
        """Show the newest entries; rows with the headings."""
        entries = self._read()
        if not self.as_json:
            _print_line(_LINE.format(*_COLUMNS), "bold")
        for entry in entries[-last:] if last else entries:
            _print_entry(entry)
        self.shown = Counter(map(_key, filter(_is_final, entries)))

    def follow(self) -> None:
        """Show entries as they come, rows as they end, until no open session writes the journal."""
        while True:  # the session is looked for before the read: what it writes at its end is shown in a last turn
            is_open = any(session.journal == self.path.absolute() for session in list_live_sessions(runtime_bases()))
            present = Counter[Hashable]()
            for entry in filter(_is_final, self._read()):
                present[key := _key(entry)] += 1
                if present[key] > self.shown[key]:
                    _print_entry(entry)
            self.shown = present
            if not is_open:
                return
            time.sleep(_FOLLOW_SECONDS)  # polling: there is no portable notification of file growth

    def _read(self) -> list[Entry]:
        return list(read(self.path) if self.as_json else rows(self.path))


def _is_final(entry: Entry) -> bool:
    """Return whether an entry is final, unlike the row of a running cell."""
    return not isinstance(entry, JournalRow) or entry.event != "started"


def _key(entry: Entry) -> Hashable:
    """Return what tells an entry from others. Its place does not: cells end in any order, and old parts are removed."""
    return (entry.execution_id or entry) if isinstance(entry, JournalRow) else json.dumps(entry)


def _print_entry(entry: Entry) -> None:
    if isinstance(entry, JournalRow):
        _print_row(entry)
    else:
        write_text(sys.stdout, encode_json(entry) + "\n")


def _show_statistics(path: Path, last: int | None, *, as_json: bool) -> int:
    figures = statistics(path, keep=last or CALLS_MAX)
    if as_json:
        return print_json(figures.to_dict())
    show_table(_TOTALS_HEADINGS, [_totals_row(figures)])
    write_text(sys.stdout, "\n")
    show_table(_CALL_HEADINGS, [_call_row(call) for call in figures.calls])
    return 0


_COLUMNS = ("time", "what", "outcome", "exit", "seconds", "code or reason", "output")
_CODE_CHARS = 60
_NO_END = 1_000_000
_LINE = "{:19}  {:7}  {:17}  {:>4}  {:>8}  {:<40}  {}"
_FAILED = frozenset({"error", "refused", "unknown", "unfinished"})


def _print_row(row: JournalRow) -> None:
    outcome = _outcome(row)
    code = "" if row.exit_code is None else str(row.exit_code)
    seconds = "" if row.seconds is None else f"{row.seconds:.3f}"
    what = row.kind or row.event
    line = _LINE.format(
        _local_time(row.time), what, outcome, code, seconds, _shorten(_summary(row), _CODE_CHARS), _last_line(row)
    )
    _print_line(line, "red" if outcome.split(",")[0] in _FAILED else "")


def _print_line(line: str, style: str) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else _NO_END)
    with write_guard(sys.stdout):
        console.print(Text(escape_line(line.rstrip()), style), no_wrap=True, overflow="ellipsis")


def _last_line(row: JournalRow) -> str:
    """Return the last line of a cell's output; empty for a failed cell, whose row has a reason already."""
    lines = (row.text or "").strip().splitlines()
    return f"-> {lines[-1]}" if lines and row.status == "ok" else ""


def _shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _outcome(row: JournalRow) -> str:
    """Return the outcome of a row as text, with a note if the cell's state was lost."""
    if row.event == "started":
        return "unfinished"
    if row.event == "cell":
        return f"{row.status}, state lost" if row.state == "lost" else str(row.status)
    return row.event if row.kind else str(row.reason or "")


def _summary(row: JournalRow) -> str:
    lines = (row.code or "").removeprefix("%%bash\n").strip().splitlines()
    first = lines[0] + " ..." * (len(lines) > 1) if lines else ""
    reason = (row.reason or "").splitlines()[0] if row.kind and row.reason else str(row.cause or "")
    text = f"{first}  # {reason}" if first and reason else first or reason
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def _local_time(time: str) -> str:
    """Return a time in the local time zone."""
    try:
        return datetime.fromisoformat(time).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return time


_TOTALS_HEADINGS = ("cells", "ok", "p50 s", "p95 s", "all s", "cpu s", "peak memory", "output")
_CALL_HEADINGS = ("execution", "language", "ok", "seconds", "timeout", "cpu s", "peak memory", "output")


def _totals_row(figures: Statistics) -> list[str]:
    rate = "-" if figures.success_rate is None else f"{figures.success_rate:.0%}"
    times = map(_seconds, (figures.p50, figures.p95, figures.execution_time, figures.cpu_seconds))
    return [str(figures.count), rate, *times, _bytes(figures.peak_memory_bytes), _bytes(figures.output_bytes)]


def _call_row(call: CallStatistics) -> list[str]:
    times = map(_seconds, (call.execution_time, call.timeout, call.cpu_seconds))
    success = "yes" if call.success else "no"
    return [call.execution_id[:8], call.language, success, *times, _bytes(call.peak_memory_bytes), _bytes(call.output_bytes)]


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.3f}"


def _bytes(count: int | None) -> str:
    return "-" if count is None else format_size(count)
