"""The records of a journal: events as JSON objects, stored results, and the readers.

The readers return records, requests, cells as rows for people, and statistics. Any program may have written the file, so types
and sizes of values are checked, and lines without a record are skipped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kernelexec import cells, events
from kernelexec.cells import Cell, ShellCell
from kernelexec.errors import InvalidRequest, did_you_mean
from kernelexec.results import CallStatistics, Error, ExecutionResult, Output, Statistics, StatisticsAccumulator, Stream
from kernelexec.text import clean, clean_text, cut_middle, head_within, make_json_encoder, utf8_size

#: Bounds in bytes: of the result of a request with a name, of the text of any other result, of refused code.
RESULT_BYTES, TEXT_BYTES, REFUSED_BYTES = 1024 * 1024, 2048, 4096
_STREAM_BYTES = RESULT_BYTES // 8
_ERROR_BYTES = RESULT_BYTES // 16
_FILES = 1000
#: Frequent records, encoded without cleaning at first.
_FLAT = frozenset({"started", "finished"})
_encode = make_json_encoder(separators=(",", ":"), allow_nan=False)
_LINE_ENDS = {ord(end): json.dumps(end)[1:-1] for end in "\x7f\x85\u2028\u2029"}
DIRECTORY, SUFFIX = ".journals", ".jsonl"
#: Separators before the numbers of parts, and of sibling journals of other processes; session names have neither.
_PART, _KEEPER = "~", "@"
#: The second form is written by other programs that rewrite a journal.
_ANY_REQUEST, _ANY_SPACED = b'"request_id":"', b'"request_id": "'
#: An ASCII line without these, as nearly all are, has no halves of surrogate pairs: neither escaped nor in UTF-16.
_ODD = (b"\\ud", b"\\uD", b"\0")
#: The keys of a record for the fields of a row that have another name.
_KEYS = {"reason": "why"}
#: Larger recorded values are not believed: of a duration in seconds, of another number.
SECONDS_MAX, _LARGEST = 1e9, 2.0**53


def record(event: events.Event) -> dict[str, Any] | None:
    """Return the record of an event; None for events without a record."""
    match event:
        case events.CellRefused() | events.CellStarted() | events.CellExecuted() | events.CellAborted():
            fields = _of_cell(event)
        case events.KernelChanged():
            fields = {"event": "kernel", "change": event.change, "kernel_epoch": event.kernel_epoch, "cause": event.cause}
            fields |= {"language": event.language}
        case events.StateRestored():
            fields = {"event": "restored", "checkpoint": event.checkpoint, "after": event.after}
            fields |= {"kernel_epoch": event.kernel_epoch}
        case events.BranchPromoted():
            fields = {"event": "promoted", "branch": event.branch, "after": event.after, **_path("journal", event.journal)}
        case events.DisplayUpdated() | events.OutputReceived() | events.LateOutputReported():
            return None
        case events.FilesTouched():
            fields = _files(event)
        case events.MemoryHigh():
            fields = {"event": "memory", "used_bytes": event.used_bytes, "limit_bytes": event.limit_bytes}
            fields |= {"biggest": {holder.name: holder.size_bytes for holder in event.biggest}}
        case _:
            fields = _of_session(event)
    return {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "session": event.session, **fields}


def _of_cell(event: events.CellEvent) -> dict[str, Any]:
    match event:
        case events.CellRefused():
            return {"event": "refused", "decision": "refused", **_refusal_fields(event)}
        case events.CellStarted():
            fields = {"event": "started", "execution_id": event.execution_id, "decision": "allowed", **_cell(event.cell)}
            fields |= {"kernel_epoch": event.kernel_epoch} | ({} if event.timeout is None else {"timeout": event.timeout})
            return {**fields, **_request(event.request_id, event.cell)}
        case events.CellExecuted():
            kept_whole = {} if event.request_id is None else {"result": shorten_result(event.result).to_dict()}
            return {"event": "finished", **_outcome(event.result), **_request(event.request_id, event.cell), **kept_whole}
        case events.CellAborted():
            fields = {"event": "aborted", "execution_id": event.result.execution_id, **_cell(event.cell)}
            why_not = event.result.diagnosis
            fields |= {} if why_not is None else {"decision": "refused", "rule": why_not.cause}
            return {**fields, "why": " ".join(event.result.notes), **_request(event.request_id, event.cell)}


def _of_beginning(event: events.SessionOpened | events.SessionAdopted) -> dict[str, Any]:
    fields = {"owner_pid": os.getpid(), "workspace": str(event.workspace)}
    if isinstance(event, events.SessionAdopted):
        return {"event": "adopted", **fields, "kernel_epoch": event.kernel_epoch}
    fields |= {} if event.replays is None else {"replays": event.replays}
    if (point := event.branch) is not None:
        fields["branch"] = {"session": point.session, "after": point.after, **_path("journal", point.journal)}
    return {"event": "opened", **fields}


def _path(name: str, path: Path | None) -> dict[str, str]:
    return {} if path is None else {name: str(path)}


def _of_session(event: events.SessionEvent) -> dict[str, Any]:
    match event:
        case events.SessionOpened() | events.SessionAdopted():
            return _of_beginning(event)
        case events.SessionReplayed():
            return {"event": "replayed", **event.replay.to_dict(), **event.past.to_metadata()}
        case events.SnapshotTaken():
            return {"event": "snapshot", "snapshot": event.snapshot.to_dict()}
        case events.TestsRun():
            return {"event": "tested", "report": event.report.to_dict()}
        case events.SessionClosing():
            return {"event": "closing", "names": list(event.names)} if event.names else {"event": "closing"}
    return {"event": "closed", "cut": list(event.cut)} if event.cut else {"event": "closed"}


def line(fields: dict[str, Any]) -> bytes:
    """Return a record as one line, also for readers with other line ends than LF, such as `str.splitlines`."""
    if fields.get("event") in _FLAT and "result" not in fields:
        with suppress(ValueError):  # a value that is not JSON, or not UTF-8
            return _as_line(fields)
    return _as_line(clean(fields))


def _as_line(fields: dict[str, Any]) -> bytes:
    text = _encode(fields)
    return (text if text.isascii() and "\x7f" not in text else text.translate(_LINE_ENDS)).encode() + b"\n"


def request_mark(request_id: str) -> bytes:
    """Return bytes contained in each record of a request."""
    return line({"request_id": request_id})[1:-2]


def shorten_result(result: ExecutionResult) -> ExecutionResult:
    """Return a result for the journal: unchanged up to 1 MiB of JSON, else with shortened text and error, without displays."""
    if utf8_size(result.to_json()) <= RESULT_BYTES:
        return result
    streams = [Stream("stdout", result.stdout), Stream("stderr", result.stderr)]
    texts = [stream for stream in streams if stream.text] or [Stream("stdout", result.text)]
    outputs: list[Output] = [Stream(stream.name, cut_middle(stream.text, _STREAM_BYTES)) for stream in texts]
    if (error := result.error) is not None:
        evalue, traceback = cut_middle(error.evalue, _ERROR_BYTES), cut_middle("\n".join(error.traceback), _ERROR_BYTES)
        outputs.append(Error(head_within(error.ename, 1024), evalue, tuple(traceback.split("\n"))))
    notes = (*result.notes, "From the journal, which keeps no displays of a result this large, and of its text head and tail.")
    return replace(result, outputs=tuple(outputs), late=(), truncated=True, files=result.files[:_FILES], notes=notes)


def _cell(cell: Cell) -> dict[str, Any]:
    data: dict[str, Any] = {
        "code": cell.source,
        "sha256": cells.source_digest(cell),
        "language": cell.language,
        "kernel": cell.kernel,
    }
    if not isinstance(cell, ShellCell):
        return {"kind": "code", **data}
    options = {name: value for name in ("work_dir", "stdin") if (value := getattr(cell, name)) is not None}
    options |= {} if cell.options is None else {"options": cell.options.to_record()}
    return {"kind": "command", **data, "lasts": cell.persistent, **options}


def _request(request_id: str | None, cell: Cell) -> dict[str, Any]:
    return {} if request_id is None else {"request_id": request_id, "fingerprint": cells.fingerprint(cell)}


def _refusal_fields(event: events.CellRefused) -> dict[str, Any]:
    code = event.source if isinstance(event.source, str) else f"<{type(event.source).__name__}>"
    fields = {"kind": event.kind, "code": head_within(clean_text(code[:REFUSED_BYTES]), REFUSED_BYTES)}
    fields |= {"error": type(event.error).__name__, "why": head_within(clean_text(str(event.error)), REFUSED_BYTES)}
    return fields | ({"request_id": event.request_id[:200]} if isinstance(event.request_id, str) else {})


def _files(event: events.FilesTouched) -> dict[str, Any]:
    done = "refused" if event.refused and not event.paths else "done"
    fields: dict[str, Any] = {"event": done, "kind": event.operation, "files": list(event.paths[:_FILES])}
    fields["code"] = head_within(clean_text(" ".join(event.paths[:_FILES])), TEXT_BYTES)  # for rows
    reason = head_within(clean_text(" ".join(event.refused[:_FILES])), REFUSED_BYTES)
    return fields | ({"why": reason} if reason else {})


def _outcome(result: ExecutionResult) -> dict[str, Any]:
    timing = result.timing
    cpu = timing.cpu_seconds
    data: dict[str, Any] = {
        name: getattr(result, name)
        for name in ("execution_id", "status", "exit_code", "interrupted", "ended_by", "state", "cause", "kernel_epoch")
    }
    data |= {
        "seconds": round(timing.run, 6),
        "queue_seconds": round(timing.queue, 6),
        "cpu_seconds": None if cpu is None else round(cpu, 6),
    }
    data |= {"peak_memory_bytes": timing.peak_memory_bytes, "total_bytes": result.total_bytes}
    if result.error is not None:
        data["error"] = {"ename": head_within(result.error.ename, 200), "evalue": head_within(result.error.evalue, TEXT_BYTES)}
    files = list(result.files[:_FILES])
    return data | {"text": cut_middle(result.text[: 4 * RESULT_BYTES], TEXT_BYTES), "files": files, "notes": list(result.notes)}


@dataclass(frozen=True, slots=True)
class JournalRow:
    """A row for people: a cell with its outcome, a refusal, or a change of the session's life."""

    time: str = ""
    event: str = ""
    execution_id: str | None = None
    kind: str | None = None
    code: str | None = None
    status: str | None = None
    exit_code: int | None = None
    seconds: float | None = None
    state: str | None = None
    cause: str | None = None
    reason: str | None = None
    text: str | None = None
    """Head and tail of the cell's output."""


@dataclass(frozen=True, slots=True)
class JournaledRequest:
    """A request in a journal: its execution, the fingerprint of its cell, and the result if the end is recorded.

    ``in_this_run`` says whether the request was sent in the current life of the session.
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
    """Return the next name of the journal's newest file, for the beginning of a new part."""
    newest = max((_part_number(path, file) for file in parts(path)), default=0)
    return path.with_name(f"{path.stem}{_PART}{newest + 1}{path.suffix}")


def sibling_path(path: Path, number: int) -> Path:
    """Return the path of another process's journal for a session of the same name."""
    return path.with_name(f"{path.stem}{_KEEPER}{number}{path.suffix}")


def _part_number(path: Path, file: Path) -> int:
    """Return the number of a part of the journal; 0 for the newest part and for other files."""
    stem, _, number = file.stem.rpartition(_PART)
    return int(number) if stem == path.stem and number.isdecimal() else 0


def journals(workspace: Path) -> dict[str, Path]:
    """Return the journals of a workspace by name, as for ``path_of``."""
    paths = workspace.joinpath(DIRECTORY).glob(f"*{SUFFIX}")
    return {path.stem: path for path in sorted(paths) if _PART not in path.stem}


def journal_path(workspace: Path, name: str) -> Path:
    """Return the path of a session's journal, unless another process writes there."""
    return workspace.expanduser().absolute() / DIRECTORY / f"{name}{SUFFIX}"


def path_of(workspace: Path, name: str) -> Path:
    """Return the path of a session's existing journal.

    Raises:
        InvalidRequest: there is no such journal; the message suggests the nearest name.
    """
    known = journals(workspace)
    if name not in known:
        message = f"No journal of a session {name!r} in {workspace / DIRECTORY}{did_you_mean(name, known)}."
        raise InvalidRequest(message)
    return known[name]


def read(path: Path, *marks: bytes) -> Iterator[dict[str, Any]]:
    """Yield the records of a journal, the oldest first; with ``marks``, only records with a mark in their line."""
    for part in parts(path):
        with suppress(FileNotFoundError), part.open("rb") as file:  # the oldest part may be removed at any time
            for raw in file:
                # A search in bytes is far cheaper than JSON. A mark may match text of a cell, so callers check the record.
                if (not marks or any(mark in raw for mark in marks)) and (fields := parse_record(raw)) is not None:
                    yield fields


def requests(path: Path, request_id: str | None = None) -> dict[str, JournaledRequest]:
    """Return the newest execution of each request, without results; with a ``request_id``, only this request's, with result."""
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
    """Return the requests with cells sent since the session was opened, by any of its owners."""
    names: set[str] = set()
    for fields in read(path):
        if fields.get("event") == "opened":
            names.clear()
        elif fields.get("event") == "started" and isinstance(named := fields.get("request_id"), str):
            names.add(named)
    return names


def _records_about(path: Path, request_id: str | None) -> Iterator[dict[str, Any]]:
    """Yield the records of cells sent with this request id; None means any id."""
    mark = _ANY_REQUEST if request_id is None else request_mark(request_id)
    for fields in read(path, mark, _ANY_SPACED):
        named = fields.get("request_id")
        if fields.get("event") in ("started", "finished", "aborted") and isinstance(named, str) and request_id in (None, named):
            yield fields


def rows(path: Path) -> list[JournalRow]:
    """Return the rows of a journal, a row for each cell, refusal and change of life, in the order of their beginnings."""
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
            by_id[row] = JournalRow(**{"reason": None if about is None else str(about), **values})
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
    """Return the record of a line, with text that can be encoded; None for other lines."""
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    return fields if raw.isascii() and not any(mark in raw for mark in _ODD) else clean(fields)


def read_number(value: object, limit: float = _LARGEST) -> float | None:
    """Return a recorded number from 0 to below ``limit``; None for another value."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < limit else None  # type: ignore[arg-type, operator]


def statistics(path: Path, *, keep: int) -> Statistics:
    """Return the statistics of all ended cells of a journal, with the ``keep`` newest cells, without their limits."""
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
