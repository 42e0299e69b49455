"""Readers of journals: records, requests, rows for people, cells for a replay, the cell of a dead owner, and statistics.

Any program may have written the file: types and sizes of values are checked, and lines that are not records are skipped.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kernelexec import cells
from kernelexec.cells import Cell
from kernelexec.errors import InvalidCode, InvalidRequest, did_you_mean
from kernelexec.recorded_history import History, RecordedCell, restore_call
from kernelexec.records.journal.records import request_mark
from kernelexec.results import CallStatistics, ExecutionResult, Snapshot, Statistics, StatisticsAccumulator

DIRECTORY, SUFFIX = ".journals", ".jsonl"
#: Separators of the numbers of parts, and of sibling journals of other processes; session names do not contain them.
_PART, _KEEPER = "~", "@"
#: The second form is what other programs write that rewrite a journal.
_ANY_REQUEST, _ANY_SPACED = b'"request_id":"', b'"request_id": "'
#: The keys of a record for the fields of a row that have another name.
_KEYS = {"reason": "why"}
#: Larger recorded values are not believed: of a duration in seconds, of another number.
_LONGEST, _LARGEST = 1e9, 2.0**53
#: The timeout of a running cell whose record names none, in seconds.
_TIMEOUT = 60.0


@dataclass(frozen=True, slots=True)
class JournalRow:
    """A row for people: a cell with its outcome, a refusal, or a change in the session's life."""

    time: str
    session: str
    event: str
    execution_id: str | None = None
    kind: str | None = None
    code: str | None = None
    status: str | None = None
    exit_code: int | None = None
    seconds: float | None = None
    state: str | None = None
    cause: str | None = None
    reason: str | None = None
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class JournaledRequest:
    """A request in a journal: its execution, the fingerprint of its cell, and the result if its end is recorded.

    ``in_this_run`` says whether it was sent after the session that the journal is open for was opened.
    """

    execution_id: str
    fingerprint: str
    result: ExecutionResult | None
    in_this_run: bool = False


def parts(path: Path) -> list[Path]:
    """Return the existing files of a journal, the oldest first."""
    numbered = sorted((number, file) for file in path.parent.glob(f"*{path.suffix}") if (number := _part_number(path, file)))
    return [file for _, file in numbered] + [path] * path.is_file()


def next_part(path: Path) -> Path:
    """Return the name that the journal's newest file gets when a new part begins."""
    newest = max((_part_number(path, file) for file in parts(path)), default=0)
    return path.with_name(f"{path.stem}{_PART}{newest + 1}{path.suffix}")


def sibling_path(path: Path, number: int) -> Path:
    """Return the path of another process's journal for a session of the same name."""
    return path.with_name(f"{path.stem}{_KEEPER}{number}{path.suffix}")


def _part_number(path: Path, file: Path) -> int:
    """Return the number of this part of the journal; 0 for the newest part and for other files."""
    stem, _, number = file.stem.rpartition(_PART)
    return int(number) if stem == path.stem and number.isdecimal() else 0


def journals(workspace: Path) -> dict[str, Path]:
    """Return the journals of a workspace by the names that ``path_of`` and people use."""
    paths = workspace.joinpath(DIRECTORY).glob(f"*{SUFFIX}")
    return {path.stem: path for path in sorted(paths) if _PART not in path.stem}


def journal_path(workspace: Path, name: str) -> Path:
    """Return the path of a session's journal, unless another process writes there."""
    return workspace.expanduser().absolute() / DIRECTORY / f"{name}{SUFFIX}"


def path_of(workspace: Path, name: str) -> Path:
    """Return the path of a session's existing journal.

    Raises:
        InvalidRequest: there is none; the message names the nearest one.
    """
    known = journals(workspace)
    if name not in known:
        message = f"No journal of a session {name!r} in {workspace / DIRECTORY}{did_you_mean(name, known)}."
        raise InvalidRequest(message)
    return known[name]


def read(path: Path, *marks: bytes) -> Iterator[dict[str, Any]]:
    """Yield the records of a journal, the oldest first; with ``marks`` only those whose line contains one of them."""
    for part in parts(path):
        with suppress(FileNotFoundError), part.open("rb") as file:  # the oldest part may be removed at any time
            for raw in file:
                if (not marks or any(mark in raw for mark in marks)) and (fields := _parse(raw)) is not None:
                    yield fields


def requests(path: Path, request_id: str | None = None) -> dict[str, JournaledRequest]:
    """Return the newest executions of all requests of a journal, without their results; or of one request, with its result."""
    newest: dict[str, JournaledRequest] = {}
    for fields in _records_about(path, request_id):
        name = fields["request_id"]
        known = JournaledRequest(str(fields.get("execution_id")), str(fields.get("fingerprint")), None)
        if fields["event"] != "aborted":
            newest[name] = known
        elif name in newest and newest[name].execution_id == known.execution_id:
            del newest[name]  # it was not sent
        if request_id is not None and fields["event"] == "finished" and "result" in fields:
            with suppress(ValueError):  # the file was changed by another program
                newest[name] = replace(known, result=ExecutionResult.from_json(json.dumps(fields["result"])))
    return newest


def requests_of_life(path: Path) -> set[str]:
    """Return the requests whose cells were sent since the session was opened, by any of its owners."""
    names: set[str] = set()
    for fields in read(path):
        if fields.get("event") == "opened":
            names.clear()
        elif fields.get("event") == "started" and isinstance(named := fields.get("request_id"), str):
            names.add(named)
    return names


def _records_about(path: Path, request_id: str | None) -> Iterator[dict[str, Any]]:
    """Yield the records of cells that were sent with this request id, or with any."""
    mark = _ANY_REQUEST if request_id is None else request_mark(request_id)
    for fields in read(path, mark, _ANY_SPACED):
        named = fields.get("request_id")
        if fields.get("event") in ("started", "finished", "aborted") and isinstance(named, str) and request_id in (None, named):
            yield fields


def rows(path: Path) -> list[JournalRow]:
    """Return the rows of a journal: one for each cell, refusal and change of life, in the order in which they began."""
    by_id: dict[object, JournalRow] = {}
    for number, fields in enumerate(read(path)):
        keys = {name: _KEYS.get(name, name) for name in JournalRow.__dataclass_fields__}
        values = {name: fields[key] for name, key in keys.items() if _fits(name, fields.get(key))}
        row = values.get("execution_id", number)
        if fields.get("event") == "finished" and row in by_id:
            values = {name: value for name, value in values.items() if name not in ("time", "event")}
            if isinstance(error := fields.get("error"), dict):
                values["reason"] = f"{error.get('ename')}: {error.get('evalue')}"
            by_id[row] = replace(by_id[row], event="cell", **values)
        else:
            about = fields.get("change") or fields.get("missed")
            by_id[row] = JournalRow(
                **{"reason": None if about is None else str(about), "time": "", "session": "", "event": "", **values}
            )
    return list(by_id.values())


def _fits(name: str, value: object) -> bool:
    """Return whether a recorded value fits a field of a row."""
    match name:
        case "exit_code":
            return isinstance(value, int)
        case "seconds":
            return _number(value, _LONGEST) is not None
        case _:
            return isinstance(value, str)


def _parse(raw: bytes) -> dict[str, Any] | None:
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None


@dataclass(slots=True)
class _SessionRun:
    """A life of a session: from its opening to its end, or to the end of its owner."""

    whole: bool = True
    """Whether its own replay was completed."""
    cells: dict[str, RecordedCell] = field(default_factory=dict)
    running: str | None = None
    kernel: object = None
    snapshot: Snapshot | None = None
    covered: int = 0
    replaced: list[int] = field(default_factory=list)

    def take(self, record: dict[str, Any]) -> None:
        """Add the next record of this life."""
        match record.get("event"):
            case "started":
                self.running, self.kernel = str(record.get("execution_id")), record.get("kernel")
                self.cells[self.running] = _start_cell(record)
            case "finished" if (execution_id := str(record.get("execution_id"))) in self.cells:
                self.cells[execution_id] = _finish_cell(self.cells[execution_id], record)
                self.running = None
            case "aborted" if self.running is not None and self.running == record.get("execution_id"):
                del self.cells[self.running]
                self.running = None
            case "kernel":
                self._kernel_changed(record)
            case "snapshot":
                with suppress(ValueError, TypeError):
                    self.snapshot, self.covered = Snapshot.from_dict(record["snapshot"]), len(self.cells)
            case "replayed":
                self.whole = True
                self._take_over(record)

    def _kernel_changed(self, record: dict[str, Any]) -> None:
        change, language = record.get("change"), record.get("language")
        if change == "started" and language == "python" and self.cells:
            self.replaced.append(len(self.cells))
        elif change == "died" and self.running is not None and language == self.kernel:
            self.cells[self.running] = replace(self.cells[self.running], ended_kernel=True)

    def _take_over(self, record: dict[str, Any]) -> None:
        """Replace the cells that a replay ran by those that its snapshot stood for."""
        carried, played = History.from_metadata(record), record.get("cells")
        if carried is None or not isinstance(played, list):
            return
        rest = {str(cell.get("execution_id")) for cell in played[carried.covered :] if isinstance(cell, dict)}
        cells = {f"covered {number}": cell for number, cell in enumerate(carried.cells)}
        self.cells = cells | {execution_id: cell for execution_id, cell in self.cells.items() if execution_id in rest}
        self.snapshot, self.covered = carried.snapshot, carried.covered
        self.replaced.clear()


def read_history(path: Path) -> History:
    """Return the cells of the newest life that has any; a life that ended during its own replay does not count.

    Cells that never ran are left out: nothing of them was lost.
    """
    life = newest = _SessionRun()
    for record in read(path):
        if record.get("event") == "opened":
            if life.cells and life.whole:
                newest = life
            life = _SessionRun(whole="replays" not in record)
        else:
            life.take(record)
    last = life if life.cells and life.whole else newest
    return History(tuple(last.cells.values()), last.snapshot, last.covered, tuple(last.replaced))


def _start_cell(record: dict[str, Any]) -> RecordedCell:
    cell = RecordedCell(str(record.get("code", "")), language=str(record.get("language", "python")), status="unfinished")
    return restore_call(cell, record) if record.get("lasts") is True else cell


def _finish_cell(cell: RecordedCell, record: dict[str, Any]) -> RecordedCell:
    status, error, interrupted = (record.get(name) for name in ("status", "error", "interrupted"))
    return replace(
        cell,
        status=status if status in ("ok", "error") else None,
        interrupted=interrupted if interrupted in ("timeout", "request") else None,
        seconds=_number(record.get("seconds"), _LONGEST),
        ename=str(error.get("ename")) if isinstance(error, dict) else None,
    )


@dataclass(frozen=True, slots=True)
class RunningCell:
    """A cell that was sent to a kernel, and whose end is not recorded."""

    execution_id: str
    cell: Cell
    kernel_epoch: int
    request_id: str | None
    timeout: float
    """The timeout from its start, in seconds."""
    began: float
    """The time when it was sent, in seconds of ``time.monotonic``."""


def running_cell(path: Path) -> RunningCell | None:
    """Return the cell that is running in the newest life of a session, if any. For a thread: a journal may be long."""
    running: dict[str, Any] | None = None
    for fields in read(path):
        match fields.get("event"):
            case "opened" | "closed":
                running = None
            case "started":
                running = fields
            case "finished" | "aborted" if running and running.get("execution_id") == fields.get("execution_id"):
                running = None
    with suppress(LookupError, TypeError, ValueError, InvalidCode):
        return None if running is None else _restore_running(running)
    return None


def _restore_running(fields: dict[str, Any]) -> RunningCell | None:
    """Return the cell of a record; None if it cannot be restored."""
    timeout, epoch, request_id, execution_id = (
        fields.get(name) for name in ("timeout", "kernel_epoch", "request_id", "execution_id")
    )
    cell = cells.from_record(fields)
    if not isinstance(execution_id, str) or not isinstance(epoch, int) or cells.source_digest(cell) != fields["sha256"]:
        return None
    if request_id is not None and (not isinstance(request_id, str) or cells.fingerprint(cell) != fields["fingerprint"]):
        return None
    elapsed = max(0.0, (datetime.now(UTC) - datetime.fromisoformat(fields["time"])).total_seconds())
    budget = float(timeout) if isinstance(timeout, int | float) and timeout > 0 else _TIMEOUT
    return RunningCell(execution_id, cell, epoch, request_id, budget, time.monotonic() - elapsed)


def statistics(path: Path, *, keep: int) -> Statistics:
    """Return the statistics of all ended cells of a journal, and the newest of them one by one; without their limits."""
    tally, begun = StatisticsAccumulator(keep), dict[str, dict[str, Any]]()
    for fields in read(path):
        name = fields.get("execution_id")
        if isinstance(name, str) and fields.get("event") == "started":
            begun[name] = fields
        elif isinstance(name, str) and fields.get("event") == "finished":
            tally.add(_call(name, begun.pop(name, {}), fields))
    return tally.statistics


def _call(name: str, begun: dict[str, Any], ended: dict[str, Any]) -> CallStatistics:
    peak = _number(ended.get("peak_memory_bytes"))
    return CallStatistics(
        name,
        str(begun.get("language", "")),
        ended.get("status") == "ok",
        _number(ended.get("seconds")) or 0.0,
        _number(begun.get("timeout")),
        cpu_seconds=_number(ended.get("cpu_seconds")),
        peak_memory_bytes=None if peak is None else int(peak),
        output_bytes=int(_number(ended.get("total_bytes")) or 0),
    )


def _number(value: object, limit: float = _LARGEST) -> float | None:
    """Return a recorded number if it is plausible."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < limit else None  # type: ignore[arg-type, operator]
