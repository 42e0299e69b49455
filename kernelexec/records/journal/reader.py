"""Readers of journals: their records, their requests, their cells as rows for people, and statistics.

Any program may have written the file: types and sizes of values are checked, and lines that are not records are skipped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kernelexec.errors import InvalidRequest, did_you_mean
from kernelexec.records.journal.records import request_mark
from kernelexec.results import CallStatistics, ExecutionResult, Statistics, StatisticsAccumulator
from kernelexec.text import clean

DIRECTORY, SUFFIX = ".journals", ".jsonl"
#: Separators of the numbers of parts, and of sibling journals of other processes; session names do not contain them.
_PART, _KEEPER = "~", "@"
#: The second form is what other programs write that rewrite a journal.
_ANY_REQUEST, _ANY_SPACED = b'"request_id":"', b'"request_id": "'
#: An ASCII line without these, as nearly all are, has no halves of surrogate pairs: neither escaped nor in UTF-16.
_ODD = (b"\\ud", b"\\uD", b"\0")
#: The keys of a record for the fields of a row that have another name.
_KEYS = {"reason": "why"}
#: Larger recorded values are not believed: of a duration in seconds, of another number.
SECONDS_MAX, _LARGEST = 1e9, 2.0**53


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
    text: str | None = None
    """The beginning of the cell's output."""


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
                if (not marks or any(mark in raw for mark in marks)) and (fields := parse_record(raw)) is not None:
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
            with suppress(ValueError, RecursionError):  # the file was changed by another program
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
            return read_number(value, SECONDS_MAX) is not None
        case _:
            return isinstance(value, str)


def parse_record(raw: bytes) -> dict[str, Any] | None:
    """Return the record of a line, whose text can be encoded; None for other lines."""
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    return fields if raw.isascii() and not any(mark in raw for mark in _ODD) else clean(fields)


def read_number(value: object, limit: float = _LARGEST) -> float | None:
    """Return a recorded number if it is plausible."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < limit else None  # type: ignore[arg-type, operator]


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
    peak = read_number(ended.get("peak_memory_bytes"))
    return CallStatistics(
        name,
        str(begun.get("language", "")),
        ended.get("status") == "ok",
        read_number(ended.get("seconds")) or 0.0,
        read_number(begun.get("timeout")),
        cpu_seconds=read_number(ended.get("cpu_seconds")),
        peak_memory_bytes=None if peak is None else int(peak),
        output_bytes=int(read_number(ended.get("total_bytes")) or 0),
    )
