"""Sessions on this machine: their list, their variables, their journals and the statistics of their cells."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

import anyio

from kernelexec.cli.console import show_table
from kernelexec.cli.stdio import write_any, writing
from kernelexec.errors import InvalidRequest, KernelNotAnswering, UnknownSession, nearest
from kernelexec.kernel import ask_kernel
from kernelexec.provisioning.runtime.discovery import LiveSession, live_sessions
from kernelexec.provisioning.runtime.locations import bases
from kernelexec.records.journal import SUFFIX, Row, journals, path_of, read, rows, statistics
from kernelexec.results import CallStatistics, Statistics, Variable, Variables
from kernelexec.results.usage import size_text
from kernelexec.results.variables import VARIABLES_MAX

_ANSWER_SECONDS = 5.0
_LISTED = 10
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def list_sessions(*, as_json: bool) -> int:
    """Show all living sessions of this user; exit status 0, also where there is none."""
    found = live_sessions(bases())
    if as_json:
        write_any(sys.stdout, json.dumps([_as_dict(session) for session in found]) + "\n")
        return 0
    rows = [[str(value) for value in _as_dict(session).values()] for session in found]
    show_table(("session", "workspace", "process", "epoch", "connection file"), rows)
    return 0


def list_variables(name: str | None, *, as_json: bool) -> int:
    """Show the variables of one living session, idle or busy.

    Raises:
        UnknownSession, InvalidRequest: no such session, or more than one.
        KernelNotAnswering: it has no living kernel, or the kernel does not answer in time.
    """
    session = select_session(name, live_sessions(bases()))
    if session.kernel is None:
        message = f"Session {session.name!r} has no living kernel: its next cell starts one."
        raise KernelNotAnswering(message)
    said = anyio.run(_variables_of, session)
    found = Variables.of(said, VARIABLES_MAX)
    if as_json:
        write_any(sys.stdout, json.dumps(found.to_dict()) + "\n")
        return 0
    show_table(("name", "type", "shape", "size", "value"), [_variable_row(variable) for variable in found])
    if found.total > len(found):
        write_any(sys.stderr, f"kernelexec: {len(found)} of {found.total} variables are shown\n")
    return 0


async def _variables_of(session: LiveSession) -> dict[str, object]:
    assert session.kernel is not None
    content = {"names": None, "limit": VARIABLES_MAX}
    return await ask_kernel(session.kernel, "kernelexec_variables_request", content, patience=_ANSWER_SECONDS)


def select_session(name: str | None, sessions: list[LiveSession]) -> LiveSession:
    """The session of that name, given as NAME or NAME@PROCESS; the only one there is where no name is given."""
    if not sessions:
        raise UnknownSession("No session of yours lives on this machine: they end with the process that opened them.")
    wanted, _, pid = (name or "").partition("@")
    found = [session for session in sessions if name is None or (session.name == wanted and pid in ("", str(session.pid)))]
    listed = ", ".join(f"{session.name}@{session.pid}" for session in (found or sessions)[:_LISTED])
    if not found:
        message = f"No session {name!r} lives here{nearest(str(name), _names(sessions))}: there are {listed}."
        raise UnknownSession(message)
    if len(found) > 1:
        which = "sessions live here" if name is None else f"sessions are named {name!r}"
        message = f"{len(found)} {which}: name one as NAME@PROCESS, of {listed}."
        raise InvalidRequest(message)
    return found[0]


def _names(sessions: list[LiveSession]) -> Iterable[str]:
    for session in sessions:
        yield from (session.name, f"{session.name}@{session.pid}")


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
    return [variable.name, variable.type, shape, _size(variable.size_bytes), variable.text]


def _size(size_bytes: float | None) -> str:
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
    _print_rows(found[-last:] if last else found)
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


def _print_rows(found: Iterable[Row]) -> None:
    from rich.console import Console
    from rich.text import Text

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


_ALL = ("cells", "ok", "p50 s", "p95 s", "all s", "cpu s", "peak memory", "output")
_EACH = ("execution", "language", "ok", "seconds", "timeout", "cpu s", "peak memory", "output")
_NONE = "-"


def show_statistics(path: Path, *, last: int, as_json: bool) -> int:
    """Print what a journal's cells took."""
    found = statistics(path, keep=last)
    if as_json:
        write_any(sys.stdout, json.dumps(found.to_dict()) + "\n")
        return 0
    show_table(_ALL, [_all(found)])
    write_any(sys.stdout, "\n")
    show_table(_EACH, [_each(call) for call in found.calls])
    return 0


def _all(found: Statistics) -> list[str]:
    rate = _NONE if found.success_rate is None else f"{found.success_rate:.0%}"
    times = [_seconds(found.p50), _seconds(found.p95), _seconds(found.execution_time), _seconds(found.cpu_seconds)]
    return [str(found.count), rate, *times, _bytes(found.peak_memory_bytes), _bytes(found.output_bytes)]


def _each(call: CallStatistics) -> list[str]:
    times = [_seconds(call.execution_time), _seconds(call.timeout), _seconds(call.cpu_seconds)]
    peak, output = _bytes(call.peak_memory_bytes), _bytes(call.output_bytes)
    return [call.execution_id[:8], call.language, "yes" if call.success else "no", *times, peak, output]


def _seconds(found: float | None) -> str:
    return _NONE if found is None else f"{found:.3f}"


def _bytes(found: int | None) -> str:
    return _NONE if found is None else size_text(found)
