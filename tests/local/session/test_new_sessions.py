"""A new session is told from an earlier one: its first result says so, with what was there before."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelexec import ExecutionResult, Executor, Session
from kernelexec.results.model_answers import model_notes


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[Executor]:
    with Executor("local", workspace=tmp_path) as executor:
        executor.session("analysis").execute("prices = 1\ntotal = 2")
        yield executor


def is_new(result: ExecutionResult, note: str, names: tuple[str, ...] = ()) -> bool:
    assert result.notes[0] == f"A new kernel: {note}"
    assert "state new. Import and define again what you need." in model_notes(result)
    return (result.state, result.lost_names) == ("new", names)


def test_a_plain_first_result_is_as_ever(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path) as executor:
        first = executor.session("analysis").execute("1")
        assert (first.state, first.cause, first.notes) == ("kept", None, ())
        for name in ("model", "agent-1", "agent-2"):
            result = executor.session(name).execute("1")
            assert (result.state, result.notes) == ("kept", ())


@pytest.mark.parametrize("is_command", [False, True])
def test_a_session_that_was_closed_names_what_is_gone(executor: Executor, *, is_command: bool) -> None:
    executor.session("analysis").close()
    session = executor.session("analysis")
    result = session.execute_command("true") if is_command else session.execute("prices")
    assert is_new(result, "the session of this name before was closed. Gone: prices, total.", ("prices", "total"))
    assert result.cause == "closed"
    later = session.execute("prices")
    assert later.state == "kept"
    assert later.diagnosis is not None
    assert "lost" in later.diagnosis.hints[0]
    assert session.notebook is not None


def test_a_session_of_an_executor_that_ended_names_what_is_gone(tmp_path: Path) -> None:
    note = "the session of this name before, of an earlier executor, was closed."
    for number in range(3):
        with Executor("local", workspace=tmp_path) as executor:
            result = executor.session("s").execute("x = 1")
            assert (result.state == "kept") if not number else is_new(result, f"{note} Gone: x.", ("x",))
    with Executor("local", workspace=tmp_path) as executor:
        executor.session("s").execute("del x")
        executor.session("s").execute("1")


def test_a_name_with_a_mistake_is_a_new_session(executor: Executor) -> None:
    note = "no session of this name was open before, but one of a similar name is, or was."
    result = executor.session("anlysis").execute("prices")
    assert result.error is not None
    assert is_new(result, note)
    executor.close_session("anlysis")
    assert executor.session("model").execute("1").state == "kept"


def test_another_session_in_the_same_workspace_is_new(executor: Executor) -> None:
    workspace = executor.session("analysis").workspace
    note = "another session works, or has worked, in this workspace, and its variables are its own."
    assert is_new(executor.session("other", work_dir=workspace).execute("1"), note)
    executor.close_session("analysis")
    assert is_new(executor.session("third", work_dir=workspace).execute("1"), note)


def test_a_session_that_never_ran_a_cell_is_no_earlier_one(executor: Executor) -> None:
    for _ in range(2):
        executor.session("empty").files.write("a", "x")
        executor.session("empty").close()
    assert executor.session("empty").execute("1").state == "kept"


def test_a_culled_session_that_is_closed_says_that_it_was_culled(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path, config={"capacity": {"idle_seconds": 3.0}}) as executor:
        session = executor.session("s")
        session.execute("x = 1")
        while session.connection_file is not None:
            time.sleep(0.05)
        session.close()
        result = executor.session("s").execute("1")
        assert is_new(result, "the session of this name before has ended (culled). Gone: x.", ("x",))
        assert result.cause == "culled"


def test_a_replayed_session_has_its_state_again(executor: Executor) -> None:
    session = executor.session("analysis")
    session.save_notebook()
    notebook = session.notebook
    session.close()
    again = executor.session("analysis", notebook=notebook)
    result = again.execute("prices + total")
    assert (result.text, result.state, result.notes) == ("3", "kept", ())


def test_a_loss_says_more_than_a_new_state(executor: Executor) -> None:
    executor.session("analysis").close()
    crashed = executor.session("analysis").execute("import os; os._exit(3)")
    assert (crashed.state, crashed.cause) == ("lost", "exited")


def test_a_stored_result_of_a_new_session_says_it_too(tmp_path: Path) -> None:
    config = {"cache": str(tmp_path / "cache")}

    def run(executor: Executor) -> ExecutionResult:
        session: Session = executor.session("s")
        result = session.execute("sum(range(10))", cache=True)
        session.close()
        return result

    with Executor("local", workspace=tmp_path / "w", config=config) as executor:
        assert run(executor).state == "kept"
        again = run(executor)
        assert again.cached
        assert is_new(again, "the session of this name before was closed.")
        assert run(executor).cached


def test_the_outcome_of_a_request_in_a_new_session_is_lost_with_its_kernel(executor: Executor) -> None:
    executor.session("analysis").close()
    session = executor.session("analysis")
    first = session.execute("x = 1", request_id="r")
    assert first.state == "new"
    session.restart()
    again = session.execute("x = 1", request_id="r")
    assert (again.execution_id, again.state) == (first.execution_id, "lost")
