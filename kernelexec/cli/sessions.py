"""The commands about sessions: journals, and the open sessions of this machine with their variables."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Annotated

import anyio
import typer

from kernelexec.cli.console import show_table
from kernelexec.cli.options import not_blank, option
from kernelexec.cli.stdio import OWN_FAILURE, write_guard, write_text
from kernelexec.control.selection import find_session
from kernelexec.errors import InvalidRequest, KernelNotAnswering
from kernelexec.kernel import request_once
from kernelexec.launcher import protocol
from kernelexec.provisioning.runtime.discovery import LiveSession, list_live_sessions
from kernelexec.provisioning.runtime.locations import runtime_bases
from kernelexec.records.journal import SUFFIX, JournalRow, journals, path_of, read, rows, statistics
from kernelexec.results import CallStatistics, Statistics, Variable, Variables
from kernelexec.results.usage import format_size
from kernelexec.results.variables import VARIABLES_MAX
from kernelexec.session.features.statistics_hook import CALLS_MAX
from kernelexec.untrusted_text import escape_line

sessions_app = typer.Typer()
_ANSWER_SECONDS = 5.0
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
ListJsonOption = Annotated[bool, option("--json", "Print them as JSON.")]


@sessions_app.command(epilog=f"Exit status: 0; {OWN_FAILURE} after wrong usage, or if the journal does not exist.")
def log(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            callback=not_blank,
            help="A session's name, or the path of a journal. Default: the only one.",
        ),
    ] = None,
    workspace: Annotated[
        str, option("--workspace", "The executor's workspace.", "DIRECTORY", callback=not_blank)
    ] = "workspaces",
    last: Annotated[int | None, typer.Option("--last", "-n", min=1, metavar="N", help="Only the newest N rows.")] = None,
    as_json: Annotated[bool, option("--json", "Print the journal's own lines.")] = False,
    show_statistics: Annotated[bool, option("--statistics", "Show statistics of the cells instead.")] = False,
) -> int:
    """Show a session's journal: its cells with their results, refusals, and changes of its kernels."""
    if not show_statistics:
        return show_journal(name, workspace=Path(workspace), last=last, as_json=as_json)
    figures = statistics(_find_journal(name, Path(workspace)), keep=last or CALLS_MAX)
    if as_json:
        write_text(sys.stdout, json.dumps(figures.to_dict()) + "\n")
        return 0
    show_table(_TOTALS_HEADINGS, [_totals_row(figures)])
    write_text(sys.stdout, "\n")
    show_table(_CALL_HEADINGS, [_call_row(call) for call in figures.calls])
    return 0


@sessions_app.command(epilog=f"Exit status: 0; {OWN_FAILURE} if kernelexec itself failed.")
def sessions(as_json: ListJsonOption = False) -> int:
    """List your open sessions on this machine, of all processes, and how to attach to their kernels."""
    listed = [_as_dict(session) for session in list_live_sessions(runtime_bases())]
    if as_json:
        write_text(sys.stdout, json.dumps(listed) + "\n")
    else:
        headings = ("session", "workspace", "process", "epoch", "connection file")
        show_table(headings, [list(map(str, session.values())) for session in listed])
    return 0


@sessions_app.command(
    epilog=f"Exit status: 0; {OWN_FAILURE} if kernelexec itself failed: unknown session, or a kernel that does not answer."
)
def variables(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", callback=not_blank, help="The session, as NAME or NAME@PROCESS.")
    ] = None,
    as_json: ListJsonOption = False,
) -> int:
    """Show the variables of an open session on this machine, also while a cell runs, without running its code."""
    session = find_session(name)
    if (kernel := session.kernel) is None:
        message = f"Session {session.name!r} has no running kernel: its next cell starts one."
        raise KernelNotAnswering(message)

    async def request() -> dict[str, object]:
        content = {"names": None, "limit": VARIABLES_MAX}
        return await request_once(kernel, protocol.VARIABLES_REQUEST, content, patience=_ANSWER_SECONDS)

    listed = Variables.from_reply(anyio.run(request), VARIABLES_MAX)
    if as_json:
        write_text(sys.stdout, json.dumps(listed.to_dict()) + "\n")
        return 0
    show_table(("name", "type", "shape", "size", "value"), [_variable_row(variable) for variable in listed])
    if listed.total > len(listed):
        write_text(sys.stderr, f"kernelexec: {len(listed)} of {listed.total} variables are shown\n")
    return 0


def _as_dict(session: LiveSession) -> dict[str, object]:
    file = str(session.kernel.connection_file) if session.kernel else None
    return {
        "name": session.name,
        "workspace": session.workspace,
        "pid": session.pid,
        "kernel_epoch": session.epoch,
        "connection_file": file,
    }


def _variable_row(variable: Variable) -> list[str]:
    shape = "" if variable.shape is None else " x ".join(map(str, variable.shape))
    return [variable.name, variable.type, shape, _format_size(variable.size_bytes), variable.text]


def _format_size(size_bytes: float | None) -> str:
    if size_bytes is None:
        return ""
    unit = 0
    while size_bytes >= 1024 and unit < len(_UNITS) - 1:  # noqa: PLR2004 - of the units
        size_bytes, unit = size_bytes / 1024, unit + 1
    return f"{size_bytes:.0f} {_UNITS[unit]}" if not unit else f"{size_bytes:.1f} {_UNITS[unit]}"


_COLUMNS = ("time", "what", "outcome", "exit", "seconds", "code or reason")
_NO_END = 1_000_000
_LINE = "{:19}  {:7}  {:17}  {:>4}  {:>8}  {}"
_FAILED = frozenset({"error", "refused", "unknown", "unfinished"})


def show_journal(name: str | None, *, workspace: Path, last: int | None, as_json: bool) -> int:
    """Print a journal, newest entry last.

    Raises:
        InvalidRequest: the journal does not exist, or the name is ambiguous.
    """
    path = _find_journal(name, workspace)
    if as_json:
        for record in deque(read(path), maxlen=last):
            write_text(sys.stdout, json.dumps(record, ensure_ascii=False) + "\n")
        return 0
    journal_rows = rows(path)
    _print_rows(journal_rows[-last:] if last else journal_rows)
    return 0


def _find_journal(name: str | None, workspace: Path) -> Path:
    """Return the path of a journal by its session's name or its own path; without a name the only one.

    Raises:
        InvalidRequest: there is no journal, or the choice is ambiguous.
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
        which = f"choose one of {', '.join(known)}" if known else "choose another workspace with --workspace"
        message = f"{len(known) or 'No'} journals are in {workspace}: {which}."
        raise InvalidRequest(message)
    return next(iter(known.values()))


def _print_rows(journal_rows: Iterable[JournalRow]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else _NO_END)
    with write_guard(sys.stdout):
        console.print(Text(_LINE.format(*_COLUMNS), "bold"))
        for row in journal_rows:
            outcome = _outcome(row)
            code = "" if row.exit_code is None else str(row.exit_code)
            seconds = "" if row.seconds is None else f"{row.seconds:.3f}"
            line = _LINE.format(_local_time(row.time), row.kind or row.event, outcome, code, seconds, _summary(row)).rstrip()
            style = "red" if outcome.split(",")[0] in _FAILED else ""
            console.print(Text(escape_line(line), style), no_wrap=True, overflow="ellipsis")


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
