"""A journal is a file that anybody may have written: whatever stands in it, reading it is an answer and never a crash."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelexec.cli.logs import logs
from kernelexec.config import Capacity, Config
from kernelexec.errors import KernelexecError
from kernelexec.executor.replay import read_history
from tests.support.night import named_cases

SNAPSHOT = {"snapshot_id": "s", "directory": "/tmp/x", "variables": [], "left_out": []}
LIFE: list[dict[str, Any]] = [
    {"time": "t", "session": "a", "event": "opened"},
    {"time": "t", "event": "kernel", "change": "started", "cause": None, "language": "python"},
    {"time": "t", "event": "started", "execution_id": "e1", "kind": "code", "code": "x = 1", "kernel": "python"},
    {"time": "t", "event": "finished", "execution_id": "e1", "status": "ok", "exit_code": 0, "seconds": 0.5},
    {"time": "t", "event": "refused", "kind": "code", "code": "y", "why": "w"},
    {"event": "replayed", "snapshot": SNAPSHOT, "covered": [], "cells": [{"execution_id": "e1"}]},
    {"event": "gap", "missed": 3},
]
JUNK: dict[str, list[Any]] = {
    "one of a kind": [None, "\ud800", -1, float("nan"), True, 10**400, ["a"], {"a": 1}],
    "others": [[], {}, "", "s", "\x00", 5, 1e308, float("inf")],
}


def places(value: object, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*above, key)
        yield from places(item, (*above, key))


@pytest.mark.parametrize("values", named_cases(JUNK, {"one of a kind"}))
@pytest.mark.parametrize("location", list(places(LIFE)), ids=str)
def test_any_value_in_any_place_of_a_journal_is_borne(
    tmp_path: Path, location: tuple[Any, ...], values: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.jsonl"
    for junk in values:
        life = json.loads(json.dumps(LIFE))
        within = life
        for key in location[:-1]:
            within = within[key]
        within[location[-1]] = junk
        path.write_text("".join(json.dumps(output) + "\n" for output in life))
        assert logs(str(path)) == 0
        try:
            past = read_history(path, Config(capacity=Capacity(code_bytes=1000)))
        except KernelexecError:
            continue
        assert all(cell.seconds is None or 0 <= cell.seconds <= 1e9 for cell in past.cells)
        assert all(cell.source.encode() for cell in past.cells)
    assert capsys.readouterr().out
