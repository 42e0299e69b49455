"""Commands that run at the same time as cells: started, read and ended while a cell runs, by the same rules."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kernelexec import BackgroundCommand, Executor, SecurityError, Session
from kernelexec.errors import CapacityReached, InvalidCode, InvalidRequest, InvalidWorkDir, UnknownExecution
from kernelexec.launcher.processes import background_commands as launcher
from kernelexec.session.features import background_commands
from tests.conftest import EVERY_KIND, KINDS, WRAPPED
from tests.support.engine import needs_bubblewrap
from tests.support.pace import BOUND, RunningCell
from tests.support.pace import until as comes_true

ALSO_CONFINED = (
    "test_a_command_runs_beside_a_cell[container]",
    "test_one_that_is_killed_takes_its_children_along",
)
#: Gives an answer of the kernel's own to each request about background commands.
FORGED = """
import json
kernel = get_ipython().kernel
def answer(stream, ident, parent):
    content = json.loads({answer!r})
    if "job" in content:
        content["job"] |= {more}
    kernel.session.send(stream, "kernelexec_jobs_reply", content, parent, ident)
kernel.control_handlers["kernelexec_jobs_request"] = answer
"""
ALL = [*EVERY_KIND, pytest.param("bubblewrap", marks=needs_bubblewrap)]


@pytest.fixture(scope="module", params=ALL)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def until(session: Session, command_id: str, status: str) -> BackgroundCommand:
    """The command once it has that status."""
    deadline = time.monotonic() + BOUND
    while (actual := session.background(command_id)).status != status:
        assert time.monotonic() < deadline, actual
        time.sleep(0.02)
    return actual


def read_until(session: Session, command_id: str, expected: str) -> str:
    """What it has written once that is in it."""
    deadline = time.monotonic() + BOUND
    while expected not in (actual := session.background_output(command_id)).stdout:
        assert time.monotonic() < deadline, actual
        time.sleep(0.02)
    return actual.stdout


def test_a_command_runs_beside_a_cell(session: Session) -> None:
    started = session.start_background("mkfifo gate; echo begun; read line < gate; echo $line")
    assert started.status == "running"
    assert started.command_id.startswith("shell_")
    cell = RunningCell(session, "import time; print('begun', flush=True); time.sleep(600)", timeout=600)
    read_until(session, started.command_id, "begun")
    assert session.background(started.command_id).status == "running"
    session.start_background("echo opened > gate")
    assert read_until(session, started.command_id, "opened") == "begun\nopened\n"
    assert until(session, started.command_id, "stopped").exit_code == 0
    [running] = session.executions()
    session.interrupt(running)
    assert (cell.result().execution_id, cell.result().state) == (running, "kept")


def test_output_of_an_ended_command_is_complete(session: Session) -> None:
    counts = set()
    for _ in range(50):
        command_id = session.start_background("seq 10000; echo err >&2").command_id
        while (actual := session.background(command_id)).status == "running":
            pass
        counts.add((actual.stdout_lines, actual.stderr_lines))
    assert counts == {(10_000, 1)}


def test_streams_and_exit_codes_are_apart(session: Session) -> None:
    good = session.start_background("echo out; echo err >&2")
    bad = session.start_background("echo lost; exit 7")
    ended = until(session, good.command_id, "stopped")
    assert (ended.exit_code, ended.stdout_lines, ended.stderr_lines) == (0, 1, 1)
    actual = session.background_output(good.command_id)
    assert (actual.stdout, actual.stderr, actual.stdout_dropped) == ("out\n", "err\n", 0)
    assert until(session, bad.command_id, "failed").exit_code == 7
    assert [item.status for item in session.background_commands()] == ["stopped", "failed"]


def test_background_commands_start_in_the_sessions_state_and_leave_it_unchanged(session: Session) -> None:
    session.execute_command("mkdir -p sub && cd sub && export COLOUR=blue")
    started = session.start_background("echo $PWD $COLOUR; cd /; export COLOUR=red")
    until(session, started.command_id, "stopped")
    assert read_until(session, started.command_id, "blue").strip().endswith("sub blue")
    assert session.execute_command("echo $PWD $COLOUR").stdout.strip().endswith("sub blue")
    elsewhere = session.start_background("pwd", work_dir=".")
    assert not read_until(session, elsewhere.command_id, "\n").strip().endswith("sub")


def test_the_newest_lines_are_kept(session: Session) -> None:
    started = session.start_background("seq 25000; echo the end")
    until(session, started.command_id, "stopped")
    read_until(session, started.command_id, "the end")
    actual = session.background_output(started.command_id, lines=2)
    assert (actual.stdout, actual.stdout_dropped, actual.command.stdout_lines) == ("25000\nthe end\n", 24_999, 25_001)
    assert session.background_output(started.command_id, lines=10_000).stdout.startswith("15002\n")


def test_lines_that_are_too_much_for_a_reply_are_fewer_and_not_none(session: Session) -> None:
    started = session.start_background("line=$(head -c 500 /dev/zero | tr '\\0' '\\1'); yes $line | head -n 9000")
    until(session, started.command_id, "stopped")
    comes_true(lambda: session.background(started.command_id).stdout_lines == 9000)
    actual = session.background_output(started.command_id, lines=9000)
    shown = actual.stdout.splitlines()
    assert set(shown) == {"\x01" * 500}
    assert len(shown) + actual.stdout_dropped == 9000


def test_one_that_is_killed_takes_its_children_along(session: Session) -> None:
    started = session.start_background(
        "trap '' TERM; (setsid sleep 300 & echo $! > child); echo ready; while :; do sleep 0.1; done"
    )
    read_until(session, started.command_id, "ready")
    child = (session.workspace / "child").read_text().strip()
    ended = session.kill_background(started.command_id)
    assert ended.status == "killed"
    assert ended.exit_code == 137
    state = f"cat /proc/{child}/status 2>/dev/null | grep State || echo gone"
    comes_true(lambda: {"gone", "(zombie)"} & set(session.execute_command(state).stdout.split()))
    assert session.kill_background(started.command_id).status == "killed"


def test_a_restart_loses_them_and_says_so(session: Session) -> None:
    ended = session.start_background("echo 1")
    until(session, ended.command_id, "stopped")
    started = session.start_background("sleep 300")
    session.restart()
    session.execute("1")
    assert session.background(started.command_id).status == "lost"
    assert session.background(ended.command_id).status == "stopped"
    assert session.background_output(started.command_id).stdout == ""
    assert session.kill_background(started.command_id).status == "lost"
    assert session.start_background("true").kernel_epoch == 2


def test_bad_input_is_refused_before_anything_runs(session: Session) -> None:
    with pytest.raises(InvalidCode):
        session.start_background(" ")
    with pytest.raises(InvalidWorkDir):
        session.start_background("true", work_dir="/etc")
    with pytest.raises(UnknownExecution, match="shell_nothing"):
        session.background_output("shell_nothing")
    started = session.start_background("true")
    for lines in (-1, 10_001, "all", True):
        with pytest.raises(InvalidRequest, match="lines="):
            session.background_output(started.command_id, lines=lines)  # type: ignore[arg-type]
    assert len(session.background_commands()) == 1


@pytest.fixture(scope="module")
def strict(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """A session with rules, and room for two."""
    config = {**(KINDS | WRAPPED)[kind], "rules": {"allowed_commands": ["sleep", "ls"]}}
    with (
        pytest.MonkeyPatch.context() as patch,
        Executor(kind, workspace=tmp_path_factory.mktemp("strict"), config=config) as executor,
    ):
        patch.setattr("kernelexec.session.features.background_commands.RUNNING_MAX", 2)
        yield executor.session("strict")


def test_the_rules_are_those_of_all_commands(strict: Session) -> None:
    for command in ("rm -rf /", "cat /etc/passwd", "sleep 1; curl x", "sudo ls"):
        with pytest.raises(SecurityError, match="rule"):
            strict.start_background(command)
    assert strict.background_commands() == ()


def test_there_is_a_bound(strict: Session) -> None:
    first, _ = (strict.start_background("sleep 300") for _ in range(2))
    with pytest.raises(CapacityReached, match="2 background commands"):
        strict.start_background("sleep 300")
    strict.kill_background(first.command_id)
    strict.start_background("sleep 300")


def test_starts_at_the_same_time_keep_to_the_bound(strict: Session) -> None:
    for command in strict.background_commands():
        strict.kill_background(command.command_id)
    with ThreadPoolExecutor(8) as pool:
        starts = [pool.submit(strict.start_background, "sleep 300") for _ in range(8)]
    refused = [start.exception() for start in starts if start.exception() is not None]
    assert [type(error) for error in refused] == [CapacityReached] * 6
    assert [command.status for command in strict.background_commands()].count("running") == 2


def test_background_commands_cannot_write_outside(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    with Executor("local", workspace=tmp_path / "workspaces") as executor:
        session = executor.session()
        started = session.start_background(f"echo x > {tmp_path / 'outside' / 'made'}")
        assert until(session, started.command_id, "failed").stderr_lines == 1
    assert list((tmp_path / "outside").iterdir()) == []


@pytest.fixture
def forging(tmp_path: Path) -> Iterator[Session]:
    with Executor("local", workspace=tmp_path) as executor:
        yield executor.session()


def forge(session: Session, answer: dict[str, Any], more: str = "{}") -> None:
    session.execute(FORGED.format(answer=json.dumps(answer), more=more)).raise_for_error()


def test_of_a_forged_answer_no_more_is_read_than_the_launcher_sends(forging: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    command_id = forging.start_background("sleep 300").command_id
    read: list[str] = []
    monkeypatch.setattr(background_commands, "apply_returns", lambda text: [text, read.append(text)][0])  # type: ignore[func-returns-value]
    answer: dict[str, Any] = {"status": "ok", "job": {"status": "running"}}
    forge(forging, answer, r"{'stdout': 'a\n' * 3_000_000 + 'end', 'stderr': 'a\n' * 3_000_000}")
    actual = forging.background_output(command_id, lines=3)
    assert read == [actual.stdout, actual.stderr] == ["a\na\nend", "a\n" * 3]
    forge(forging, answer, r"{'stdout': 'x' * 20_000_000, 'stderr': 'a\n' * 100_000}")
    actual = forging.background_output(command_id, lines=10_000)
    assert len(actual.stdout) == launcher._CHARS + launcher._LINE_CHARS
    assert actual.stderr == "a\n" * launcher._LINES


@pytest.mark.parametrize("value", [None, [[]], {"a": 1}, 10**400, -1, "\ud800", "x" * 10_000])
def test_a_forged_field_of_another_kind_harms_no_call(forging: Session, value: object) -> None:
    command_id = forging.start_background("sleep 300").command_id
    names = ("name", "status", "exit_code", "seconds", "stdout", "stderr", "stdout_lines", "stdout_dropped")
    job = dict.fromkeys(names, value)
    forge(forging, {"status": "ok", "job": job, "jobs": [job, value]})
    actual = forging.background_output(command_id)
    assert (actual.command.status, actual.command.exit_code, actual.command.duration >= 0) == ("running", None, True)
    assert actual.stdout == (value if value == "x" * 10_000 else "\\ud800" if isinstance(value, str) else "")
    assert [command.command_id for command in forging.background_commands()] == [command_id]
    forge(forging, {"status": "error", "evalue": value})
    with pytest.raises(InvalidRequest, match="did not start") as refused:
        forging.start_background("true")
    assert len(str(refused.value)) < 400
