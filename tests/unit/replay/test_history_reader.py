"""Records for a replay, which cells may have written: what is believed of them, and how much is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kernelexec.config import Config
from kernelexec.errors import InvalidRequest
from kernelexec.executor.replay import read_history
from kernelexec.rules.recorded_history import RecordedCell

OPTIONS = {"options": {"env": [], "user": "root"}}


def write_notebook(path: Path, *cells: dict[str, Any], **fields: object) -> Path:
    kept: dict[str, Any] = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
    document = {"cells": [{**kept, **cell} for cell in cells], "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
    path.write_text(json.dumps({**document, **fields}))
    return path


def write_journal(path: Path) -> Path:
    path.parent.mkdir(parents=True)
    started = {"event": "started", "execution_id": "e1", "kind": "command", "code": "%%bash\nid", "lasts": True, **OPTIONS}
    finished = {"event": "finished", "execution_id": "e1", "status": "ok"}
    path.write_text("".join(json.dumps(record) + "\n" for record in ({"event": "opened"}, started, finished)))
    return path


def read_cell(path: Path, workspace: Path) -> RecordedCell:
    (cell,) = read_history(path, Config(workspace=workspace)).cells
    assert (cell.source, cell.kind) == ("id", "command")
    return cell


def test_the_account_of_a_command_is_taken_from_a_journal_of_the_workspace(tmp_path: Path) -> None:
    cell = read_cell(write_journal(tmp_path / ".journals" / "a.jsonl"), tmp_path)
    assert (cell.user, cell.omissions) == ("root", "")


def test_a_notebook_does_not_choose_the_account_of_a_command(tmp_path: Path) -> None:
    command = {"source": "%%bash\nid", "metadata": {"kernelexec": {"command": OPTIONS}}}
    cell = read_cell(write_notebook(tmp_path / "a.ipynb", command), tmp_path)
    assert (cell.user, cell.omissions) == (None, "account, which is taken from the journals in this workspace only")


@pytest.mark.parametrize("directory", ["a", "a/.journals"])
def test_a_journal_that_a_cell_may_have_written_does_not_choose_it_either(tmp_path: Path, directory: str) -> None:
    cell = read_cell(write_journal(tmp_path / directory / "a.jsonl"), tmp_path)
    assert cell.user is None
    assert cell.omissions


def test_journals_behind_a_link_do_not_choose_it_either(tmp_path: Path) -> None:
    write_journal(tmp_path / "a" / "a.jsonl")
    (tmp_path / ".journals").symlink_to("a")
    assert read_cell(tmp_path / ".journals/a.jsonl", tmp_path).user is None


def test_a_notebook_of_too_many_parts_is_refused_before_they_are_read(tmp_path: Path) -> None:
    path = write_notebook(tmp_path / "a.ipynb", metadata={"parts": [0] * 2_000_001})
    with pytest.raises(InvalidRequest, match="more than 2,000,000 elements of JSON: clear its outputs"):
        read_history(path, Config(workspace=tmp_path))
    texts = write_notebook(tmp_path / "b.ipynb", metadata={"text": "," * 2_000_001})
    assert read_history(texts, Config(workspace=tmp_path)).cells == ()


def test_lines_of_a_script_end_as_in_any_system(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_bytes(b"\xef\xbb\xbf# %%\r\nx = 1\r\ny = 2\r\n")
    assert [cell.source for cell in read_history(path, Config(workspace=tmp_path)).cells] == ["x = 1\ny = 2"]
