"""Records of a journal: events as JSON objects, and results as they are stored in them."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kernelexec import cells, events
from kernelexec.cells import Cell, ShellCell
from kernelexec.results import Error, ExecutionResult, Output, Stream
from kernelexec.text import clean, clean_text, cut_middle, head_within, make_json_encoder, utf8_size

#: Bounds in bytes: of a result whose request may be sent again, of the text of any other, of refused code.
RESULT_BYTES, TEXT_BYTES, REFUSED_BYTES = 1024 * 1024, 2048, 4096
_STREAM_BYTES = RESULT_BYTES // 8
_ERROR_BYTES = RESULT_BYTES // 16
_FILES = 1000
#: Frequent records without nested values, which are encoded without cleaning.
_FLAT = frozenset({"started", "finished"})
_encode = make_json_encoder(separators=(",", ":"), allow_nan=False)
_LINE_ENDS = {ord(end): json.dumps(end)[1:-1] for end in "\x7f\x85\u2028\u2029"}


def record(event: events.Event) -> dict[str, Any] | None:
    """Return the record of an event; None for events without one."""
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
    """Return a record as one line, also for readers that take other characters for the end of a line."""
    if fields.get("event") in _FLAT and "result" not in fields:
        with suppress(ValueError):  # a value that is not JSON, or not UTF-8
            return _as_line(fields)
    return _as_line(clean(fields))


def _as_line(fields: dict[str, Any]) -> bytes:
    text = _encode(fields)
    return (text if text.isascii() and "\x7f" not in text else text.translate(_LINE_ENDS)).encode() + b"\n"


def request_mark(request_id: str) -> bytes:
    """Return the bytes that each record of this request contains."""
    return line({"request_id": request_id})[1:-2]


def shorten_result(result: ExecutionResult) -> ExecutionResult:
    """Return a result for the journal: whole if it fits, else its shortened text and error, without displays."""
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
