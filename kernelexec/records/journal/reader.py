"""Reading journals: their records, what they know of a request, and their cells as rows for people."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kernelexec.errors import InvalidRequest, nearest
from kernelexec.events import Earlier
from kernelexec.records.journal.records import request_mark
from kernelexec.results import ExecutionResult

DIRECTORY, SUFFIX = ".journals", ".jsonl"
#: Parts of a journal, and journals of one session's name in several processes, are numbered after what no name holds.
_PART, _KEEPER = "~", "@"
#: The second is how other programs that rewrite a journal would put it.
_ANY_REQUEST, _ANY_SPACED = b'"request_id":"', b'"request_id": "'
#: More seconds than any cell ran.
_LONGEST = 1e9


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that happened: a cell with its outcome, a refusal, or a change in the session's life."""

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
    why: str | None = None
    request_id: str | None = None


def parts(path: Path) -> list[Path]:
    """The files of a journal that are there, the oldest first."""
    numbered = sorted((number, found) for found in path.parent.glob(f"*{path.suffix}") if (number := _number(path, found)))
    return [found for _, found in numbered] + [path] * path.is_file()


def part_after(path: Path) -> Path:
    """The name for what is in the journal's newest file, when another one takes its place."""
    newest = max((_number(path, found) for found in parts(path)), default=0)
    return path.with_name(f"{path.stem}{_PART}{newest + 1}{path.suffix}")


def beside(path: Path, number: int) -> Path:
    """The journal of another process's session of the same name."""
    return path.with_name(f"{path.stem}{_KEEPER}{number}{path.suffix}")


def _number(path: Path, found: Path) -> int:
    """Which part of the journal this file is; 0 for its newest, and for what is none of it."""
    stem, _, number = found.stem.rpartition(_PART)
    return int(number) if stem == path.stem and number.isdecimal() else 0


def journals(workspace: Path) -> dict[str, Path]:
    """The journals of a workspace, by the names that ``path_of`` and people use."""
    found = workspace.joinpath(DIRECTORY).glob(f"*{SUFFIX}")
    return {path.stem: path for path in sorted(found) if _PART not in path.stem}


def journal_path(workspace: Path, name: str) -> Path:
    """Where a session of that name keeps its journal, unless another process does."""
    return workspace.expanduser().absolute() / DIRECTORY / f"{name}{SUFFIX}"


def path_of(workspace: Path, name: str) -> Path:
    """Where the journal of a session is.

    Raises:
        InvalidRequest: there is none; the message names the nearest.
    """
    known = journals(workspace)
    if name not in known:
        message = f"No journal of a session {name!r} in {workspace / DIRECTORY}{nearest(name, known)}."
        raise InvalidRequest(message)
    return known[name]


def read(path: Path) -> Iterator[dict[str, Any]]:
    """All records of a journal, the oldest first. A line that is none is passed over."""
    yield from _parsed(raw for part in parts(path) for raw in _lines(part))


def requests(path: Path, request_id: str | None = None) -> dict[str, Earlier]:
    """The newest executions of all requests that a journal knows, without their results; or of one, with it."""
    found: dict[str, Earlier] = {}
    for said in _records_about(path, request_id):
        name, known = said["request_id"], _earlier(said)
        if said["event"] != "aborted":
            found[name] = known
        elif name in found and found[name].execution_id == known.execution_id:
            del found[name]  # it was about to be sent
        if request_id is not None and said["event"] == "finished" and "result" in said:
            with suppress(ValueError):  # somebody changed it
                found[name] = replace(known, result=ExecutionResult.from_json(json.dumps(said["result"])))
    return found


def requests_of_life(path: Path) -> set[str]:
    """The requests whose cells were sent since the session was opened, by whichever of its owners."""
    found: set[str] = set()
    for said in read(path):
        if said.get("event") == "opened":
            found.clear()
        elif said.get("event") == "started" and isinstance(named := said.get("request_id"), str):
            found.add(named)
    return found


def _records_about(path: Path, request_id: str | None) -> Iterator[dict[str, Any]]:
    """The records of cells that were sent with this request id, or with any."""
    mark = _ANY_REQUEST if request_id is None else request_mark(request_id)
    for said in _parsed(raw for part in parts(path) for raw in _lines(part) if mark in raw or _ANY_SPACED in raw):
        named = said.get("request_id")
        if said.get("event") in ("started", "finished", "aborted") and isinstance(named, str) and request_id in (None, named):
            yield said


def _earlier(said: dict[str, Any]) -> Earlier:
    return Earlier(str(said.get("execution_id")), str(said.get("fingerprint")), None)


def rows(path: Path) -> list[Row]:
    """The journal for a reader: one row for each cell, refusal and change of life, in the order in which they began."""
    found: dict[object, Row] = {}
    for number, said in enumerate(read(path)):
        values = {name: said[name] for name in Row.__dataclass_fields__ if _fits(name, said.get(name))}
        key = values.get("execution_id", number)
        if said.get("event") == "finished" and key in found:
            values = {name: value for name, value in values.items() if name not in ("time", "event")}
            if isinstance(error := said.get("error"), dict):
                values["why"] = f"{error.get('ename')}: {error.get('evalue')}"
            found[key] = replace(found[key], event="cell", **values)
        else:
            about = said.get("change") or said.get("missed")
            found[key] = Row(**{"why": None if about is None else str(about), "time": "", "session": "", "event": "", **values})
    return list(found.values())


def _fits(name: str, value: object) -> bool:
    """Whether a value that a journal holds can be this one of a row: journals are files, and anybody may write one."""
    match name:
        case "exit_code":
            return isinstance(value, int)
        case "seconds":
            return isinstance(value, int | float) and abs(value) < _LONGEST
        case _:
            return isinstance(value, str)


def _lines(path: Path) -> Iterator[bytes]:
    with suppress(FileNotFoundError), path.open("rb") as file:  # the oldest part may go at any time
        yield from file


def _parsed(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for raw in lines:
        try:
            said = json.loads(raw)
        except (ValueError, RecursionError):
            continue
        if isinstance(said, dict):
            yield said
