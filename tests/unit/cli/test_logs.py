"""``kernelexec logs --follow``: each row and each record is shown once, whatever ends first."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernelexec.cli import logs
from kernelexec.records.journal.records import next_part

CELL: dict[str, Any] = {"execution_id": "e1", "kind": "code"}
STARTED = {"event": "started", "code": "long_cell", **CELL}
FINISHED = {"event": "finished", "status": "ok", **CELL}
MEMORY = {"event": "memory", "used_bytes": 1}


def write(path: Path, *records: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def follow(path: Path, turns: Iterator[None], monkeypatch: pytest.MonkeyPatch, *, as_json: bool) -> None:
    """Follow a journal; each look for its session is a turn, and the session ends with the turns."""

    def list_sessions(_bases: object) -> list[SimpleNamespace]:
        return [SimpleNamespace(journal=path)] if next(turns, "ended") is None else []

    monkeypatch.setattr(logs, "_FOLLOW_SECONDS", 0)
    monkeypatch.setattr(logs, "list_live_sessions", list_sessions)
    view = logs._JournalView(path, as_json=as_json)
    view.show(None)
    view.follow()


@pytest.mark.parametrize("as_json", [False, True])
def test_a_row_during_a_cell_is_shown_once_and_so_is_the_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, as_json: bool
) -> None:
    path = tmp_path / "a.jsonl"
    write(path, {"event": "opened"}, STARTED)

    def turns() -> Iterator[None]:
        write(path, MEMORY)
        yield
        write(path, MEMORY, FINISHED)  # a second equal record is another row
        yield
        write(path, {"event": "closed"})

    follow(path, turns(), monkeypatch, as_json=as_json)
    lines = capsys.readouterr().out.splitlines()
    if as_json:
        assert [json.loads(line)["event"] for line in lines] == ["opened", "started", "memory", "memory", "finished", "closed"]
        return
    shown = [line[21:].split()[:2] for line in lines[1:]]
    assert shown == [["opened"], ["code", "unfinished"], ["memory"], ["code", "ok"], ["memory"], ["closed"]]


@pytest.mark.parametrize("as_json", [False, True])
def test_no_row_is_lost_when_the_oldest_part_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, as_json: bool
) -> None:
    path = tmp_path / "a.jsonl"
    write(path, {"event": "opened"}, STARTED, FINISHED, {"event": "gap", "missed": 1})

    def turns() -> Iterator[None]:
        oldest = next_part(path)
        path.rename(oldest)
        write(path, {"event": "restored"})
        yield
        oldest.unlink()
        write(path, {"event": "closed"})

    follow(path, turns(), monkeypatch, as_json=as_json)
    out = capsys.readouterr().out
    assert [out.count(event) for event in ("restored", "closed", "gap")] == [1, 1, 1]
