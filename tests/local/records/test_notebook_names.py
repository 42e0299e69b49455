"""Each session's notebook is its own: sessions of one name in one workspace, in other processes too, write apart."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from kernelexec import AsyncExecutor, Executor, KernelStartFailed
from kernelexec.records.notebook import recorder as recorders
from kernelexec.workspace.safe_files import replace_file
from tests.contract.records.test_recorder import cells_of
from tests.support.pace import BOUND

OTHER = """
import sys
from kernelexec import Executor
with Executor("local", workspace=sys.argv[1], config={'preload': ()}) as executor:
    session = executor.session("same")
    print(session.execute("'other'").ok, session.notebook, flush=True)
"""


def sources(path: Path | None) -> list[str]:
    assert path is not None
    return [cell.source for cell in cells_of(path)]


def test_two_executors_keep_two_records_of_one_name(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncExecutor("local", workspace=tmp_path) as item, AsyncExecutor("local", workspace=tmp_path) as two:
            sessions = [await each.session("same") for each in (item, two)]

            async def fill(number: int) -> None:
                for _ in range(20):
                    assert (await sessions[number].execute(f"{number}")).ok

            await asyncio.gather(fill(0), fill(1))
            await asyncio.gather(*(session.save_notebook() for session in sessions))
            assert [session.notebook for session in sessions] == [tmp_path / "same" / f"same{end}.ipynb" for end in ("", "-2")]
            assert [sources(session.notebook) for session in sessions] == [["0"] * 20, ["1"] * 20]

    asyncio.run(main())


def test_two_processes_keep_two_records_of_one_name(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path) as mine:
        session = mine.session("same")
        reported = subprocess.run(
            [sys.executable, "-c", OTHER, str(tmp_path)], capture_output=True, text=True, check=True
        ).stdout
        assert reported == f"True {tmp_path / 'same' / 'same-2.ipynb'}\n"
        assert session.execute("'mine'").ok
        session.save_notebook()
        assert sources(session.notebook) == ["'mine'"]
        assert sources(tmp_path / "same" / "same-2.ipynb") == ["'other'"]


def test_later_sessions_of_a_name_go_on_in_its_notebook(tmp_path: Path) -> None:
    path = tmp_path / "same" / "same.ipynb"
    for number in range(3):
        with Executor("local", workspace=tmp_path) as executor:
            session = executor.session("same")
            assert session.notebook == path
            session.execute(f"x = {number}")
    assert sources(path) == ["x = 0", "x = 1", "x = 2"]
    assert [cell.metadata.get("tags", []) for cell in cells_of(path)] == [["skip-execution"], ["skip-execution"], []]
    with Executor("local", workspace=tmp_path) as executor:
        again = executor.session("again", notebook=path)
        assert again.execute("x").text == "2"
        assert again.replay is not None
        assert len(again.replay.cells) == 1
    before = path.read_bytes()
    with Executor("local", workspace=tmp_path) as executor:
        executor.session("same")  # without a cell of its own it changes nothing
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.glob("*.ipynb")] == ["same.ipynb"]


def test_notebooks_of_replays_do_not_pile_up_and_those_of_others_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert recorders._NOTEBOOKS_MAX == 9
    monkeypatch.setattr(recorders, "_NOTEBOOKS_MAX", 4)
    (tmp_path / "cells.py").write_text("x = 1\n")
    paths = [tmp_path / "same" / f"same{end}.ipynb" for end in ("", *(f"-{number}" for number in range(2, 5)))]
    with Executor("local", workspace=tmp_path) as executor:

        def replay() -> Path | None:
            session = executor.session("same", notebook=tmp_path / "cells.py")
            session.close()
            return session.notebook

        assert [replay() for _ in paths] == paths
        assert replay() == tmp_path / "same" / "same-5.ipynb"  # the others are younger than an hour
        for age, path in enumerate(reversed(paths)):
            os.utime(path, (time.time() - 7200 - age, time.time() - 7200 - age))
        paths[0].write_text(paths[0].read_text().replace("kernelexec", "mine"))
        os.utime(paths[0], (0, 0))
        assert replay() == tmp_path / "same" / "same-6.ipynb"  # the oldest is another program's
        os.utime(paths[0])
        assert replay() == paths[1]
        assert sources(paths[1]) == ["x = 1"]


def test_requests_at_once_get_a_name_each(tmp_path: Path) -> None:
    begin = threading.Barrier(16)
    (tmp_path / "s.ipynb").symlink_to("nowhere")
    actual: list[Path] = []

    def ask() -> None:
        begin.wait(BOUND)
        recorder = recorders.open_recorder("s", tmp_path)
        actual.append(recorder.path)

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND)
    assert sorted(actual) == sorted(tmp_path / f"s-{number}.ipynb" for number in range(2, 18))
    assert not (tmp_path / "nowhere").exists()


def test_two_writers_of_one_file_are_not_in_each_others_way(tmp_path: Path) -> None:
    path = tmp_path / "s.ipynb"

    def content() -> Iterator[bytes]:
        replace_file(path, [b"inner"])
        yield b"outer"

    replace_file(path, content())
    assert path.read_bytes() == b"outer"
    assert list(tmp_path.iterdir()) == [path]


def test_a_notebook_is_valid_before_its_first_cell_and_gone_where_none_ran(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path) as mine:
        for _ in range(2):
            session = mine.session("s")
            assert session.notebook == tmp_path / "s" / "s.ipynb"
            assert cells_of(session.notebook) == []
            nbformat.validate(nbformat.read(session.notebook, as_version=4))
            session.close()
            assert list((tmp_path / "s").iterdir()) == []


def test_a_file_that_took_the_notebooks_place_is_not_removed(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path) as mine:
        path = mine.session("s").notebook
        assert path is not None
        path.write_text("precious")
    assert path.read_text() == "precious"


def test_a_session_whose_kernel_does_not_come_up_leaves_no_notebook(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path, config={"python": "/bin/false"}) as mine:
        with pytest.raises(KernelStartFailed):
            mine.session("s")
        assert list((tmp_path / "s").iterdir()) == []


def test_where_no_notebook_can_be_made_a_session_goes_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(recorders, "make_empty", fail)
    with caplog.at_level(logging.ERROR, logger="kernelexec"), Executor("local", workspace=tmp_path) as mine:
        session = mine.session("s")
        assert session.notebook is None
        result = session.execute("1 + 1")
        assert result.text == "2"
        note = f"No notebook is recorded: {session.workspace} cannot be written (Read-only file system)."
        assert result.notes[0] == note
        assert session.execute("1").notes == ()
    assert [record.message for record in caplog.records] == ["kernelexec.notebook_not_created"]
