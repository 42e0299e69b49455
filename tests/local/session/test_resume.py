"""A session's journal brings it back: after an orderly end, and after its owner was killed during a cell."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kernelexec import Executor, InvalidRequest, Session
from kernelexec.records.journal import journal_path, read, read_history
from kernelexec.rules.recorded_history import RecordedCell
from tests.local.session.test_request_ids import wait_for

OWNER = """
import sys
from kernelexec import Executor
with Executor("local", workspace=sys.argv[1], config={'preload': ()}) as executor:
    session = executor.session("a")
    session.execute("import json\\nx = [1, 2]")
    session.execute("x.append(3)")
    session.execute_command("cd sub 2>/dev/null || mkdir -p sub && cd sub; export MODE=fast")
    session.execute_command("echo gone >> log; rm -f log")
    session.execute("1/0")
    session.execute("open('begun', 'w').close()\\nimport time; time.sleep(600)", timeout=700)
"""


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A workspace whose owner was killed while a cell ran."""
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stderr=subprocess.DEVNULL)
    with owner:
        wait_for(tmp_path / "a" / "begun")
        owner.send_signal(signal.SIGKILL)
    return tmp_path


def outcomes(session: Session) -> list[str]:
    assert session.replay is not None
    return [cell.outcome for cell in session.replay.cells]


def test_a_session_whose_owner_was_killed_is_replayed_with_a_true_report(killed: Path) -> None:
    journal = journal_path(killed, "a")
    raw = journal.read_bytes()
    assert raw.endswith(b"\n")
    answer = list(read(journal))
    assert len(answer) == len(raw.splitlines())
    assert [item["event"] for item in answer] == ["opened", "kernel", *["started", "finished"] * 5, "started"]
    with Executor("local", workspace=killed) as executor:
        session = executor.session("a", notebook=journal)
        assert outcomes(session) == ["repeated", "repeated", "repeated", "unsafe", "repeated", "unfinished"]
        assert session.replay is not None
        reasons = [cell.reason for cell in session.replay.cells]
        assert "log" in str(reasons[3])
        assert reasons[4] == "failed as before: ZeroDivisionError: division by zero"
        assert reasons[5] == "it had not ended when its session did"
        assert not session.replay.ok
        assert session.execute("x").text == "[1, 2, 3]"
        assert session.execute_command("basename $PWD; echo $MODE").stdout == "sub\nfast\n"
        assert "6 cells: 4 repeated, 1 not safe to repeat, 1 had not ended" in str(session.replay)
        events = [item["event"] for item in read(journal)]
        assert "replayed" in events


def test_a_resumed_session_can_be_resumed(tmp_path: Path) -> None:
    journal = journal_path(tmp_path, "a")
    for life in range(3):
        with Executor("local", workspace=tmp_path) as executor:
            session = executor.session("a", notebook=journal) if life else executor.session("a")
            if life:
                assert outcomes(session) == ["repeated"] * 2 * life
            session.execute(f"x{life} = {life}")
            assert session.execute("sorted(name for name in globals() if name[0] == 'x')", request_id=f"r{life}").ok
    names = [cell.source for cell in read_history(journal).cells]
    assert names[0] == "x0 = 0"
    with Executor("local", workspace=tmp_path) as executor:
        session = executor.session("b", notebook=journal)
        assert session.execute("x0, x1, x2").text == "(0, 1, 2)"


def test_a_life_that_was_cut_off_during_its_own_replay_is_passed_over(tmp_path: Path) -> None:
    journal = journal_path(tmp_path, "a")
    with Executor("local", workspace=tmp_path) as executor:
        session = executor.session("a")
        for number in range(3):
            session.execute(f"x{number} = 1")
    lines = journal.read_bytes().splitlines(keepends=True)
    opened = lines[0].replace(b'"workspace"', b'"replays":"a.jsonl","workspace"')
    journal.write_bytes(b"".join([*lines, opened, *lines[1:4]]))
    assert [cell.source for cell in read_history(journal).cells] == ["x0 = 1", "x1 = 1", "x2 = 1"]


def test_cells_of_a_journal_are_read_for_replay_unchanged(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path, config={"checkpoints": "named"}) as executor:
        session = executor.session("a")
        session.execute("1 + 1")
        session.execute_command("cat", stdin="in", work_dir=".")
        session.execute("!true")
        session.execute("raise KeyError('x')")
        session.execute("import time; time.sleep(60)", timeout=0.2)
        session.execute("import os; os._exit(3)")
        session.execute("console.log(1)", language="javascript", stdin="x")
    cells = read_history(journal_path(tmp_path, "a")).cells
    directory = str(tmp_path / "a")
    assert [(cell.source, cell.kind, cell.language) for cell in cells] == [
        ("1 + 1", "code", "python"),
        ("cat", "command", "python"),
        ("!true", "code", "python"),
        ("raise KeyError('x')", "code", "python"),
        ("import time; time.sleep(60)", "code", "python"),
        ("import os; os._exit(3)", "code", "python"),
        ("console.log(1)", "code", "javascript"),
    ]
    assert (cells[1].stdin, cells[1].work_dir, cells[6].stdin) == ("in", directory, "x")
    assert [cell.status for cell in cells] == ["ok", "ok", "ok", "error", "error", "error", "ok"]
    assert (cells[3].ename, cells[4].interrupted, cells[5].ended_kernel) == ("KeyError", "timeout", True)
    assert [cell.ended_kernel for cell in cells].count(True) == 1
    assert all(cell.seconds is not None and cell.seconds >= 0 for cell in cells)


def test_a_snapshot_is_remembered_by_the_journal_and_used(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path) as executor:
        session = executor.session("a")
        session.execute("import time; time.sleep(1.5); made = time.time()")
        created = session.execute("made").text
        session.snapshot()
        session.execute("after = 1")
    actual = read_history(journal_path(tmp_path, "a"))
    assert actual.snapshot is not None
    assert actual.covered == 2
    assert sorted(actual.snapshot.names) == ["made"]
    for life in range(3):
        with Executor("local", workspace=tmp_path) as executor:
            session = executor.session("a", notebook=journal_path(tmp_path, "a"))
            assert outcomes(session) == ["restored", "restored", *["repeated"] * (life + 1)]
            assert session.execute("made").text == created


def test_a_journal_with_no_cells_replays_nothing(tmp_path: Path) -> None:
    journal = journal_path(tmp_path, "a")
    journal.parent.mkdir()
    journal.write_text('{"event":"opened"}\n[]\nnot JSON\n{"event":"finished","execution_id":5}\n')
    assert read_history(journal).cells == ()
    with Executor("local", workspace=tmp_path) as executor:
        session = executor.session("b", notebook=journal)
        assert session.replay is not None
        assert session.replay.cells == ()


def test_a_strangers_journal_is_checked_like_any_input(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"event":"opened"}\n{"event":"started","execution_id":"e","code":"a\\u0000b"}\n')
    assert read_history(path).cells == (RecordedCell("a\x00b", status="unfinished"),)
    with Executor("local", workspace=tmp_path) as executor, pytest.raises(InvalidRequest, match="NUL character"):
        executor.session("b", notebook=path)


def test_cells_of_other_languages_come_back_as_far_as_they_can_be_judged(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path) as executor:
        session = executor.session("a")
        session.execute("export N=1", language="bash")
        session.execute("console.log(1)", language="javascript")
    with Executor("local", workspace=tmp_path) as executor:
        session = executor.session("a", notebook=journal_path(tmp_path, "a"))
        assert outcomes(session) == ["repeated", "unsafe"]
        assert session.execute("echo $N", language="bash").text == "1\n"
        session = executor.session("b", notebook=journal_path(tmp_path, "a"), repeat_unsafe=True)
        assert outcomes(session) == ["repeated", "repeated"]


def test_a_report_says_where_the_kernel_had_been_replaced(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path) as executor:
        session = executor.session("a")
        session.execute("a = 1")
        session.restart()
        session.execute("b = 2")
    with Executor("local", workspace=tmp_path) as executor:
        session = executor.session("a", notebook=journal_path(tmp_path, "a"))
        assert outcomes(session) == ["repeated", "repeated"]
        assert session.replay is not None
        assert [note[:47] for note in session.replay.notes] == ["After cell 1 a new kernel had replaced the old "]
