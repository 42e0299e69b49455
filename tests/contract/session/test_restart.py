"""Restarts, and what must not get lost in them: a loss is reported once, waiting cells run in the new kernel and stay."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from kernelexec import ExecutionFailed, Executor, InvalidRequest, Session, UnknownExecution
from tests.support.night import at_night
from tests.support.pace import BOUND, RunningCell, slow, until

#: Nothing runs in containers in the gate: how a kernel is had makes no difference here.
ALSO_CONFINED = ()


def test_losses_of_a_restart_are_reported_by_the_next_result(session: Session) -> None:
    session.execute("x = 1")
    session.restart()
    result = session.execute("'x' in globals()")
    assert (result.text, result.state, result.cause, result.lost_names) == ("False", "lost", "request", ("x",))
    assert result.kernel_epoch == 2
    assert session.execute("1").state == "kept"


def test_a_cell_that_misses_what_was_lost_says_so(session: Session) -> None:
    session.execute("x = y = 1")
    session.execute("exit()")
    assert session.execute("z = 1").ok
    result = session.execute("z + x")
    assert (result.state, result.lost_names) == ("kept", ("x",))
    assert str(result).endswith("\n[kernelexec: error · state kept · lost before: x]")
    assert result.diagnosis
    assert result.diagnosis.hints == ("x was lost with an earlier kernel (exited): run the cells again that define it.",)
    with pytest.raises(ExecutionFailed, match=r"lost before: x\).*x was lost with an earlier kernel \(exited\)"):
        result.raise_for_error()
    session.execute("x = 2")
    session.execute("del x")
    for code, names in {"x": (), "never": (), "y": ("y",)}.items():
        assert session.execute(code).lost_names == names


def test_a_death_between_cells_is_reported_though_a_restart_came_between(session: Session) -> None:
    code = "import os, threading, time\ndef die():\n    while not os.path.exists('die'): time.sleep(0.01)\n    os._exit(3)\n"
    session.execute(f"x = 1\n{code}threading.Thread(target=die).start()")
    (session.workspace / "die").touch()
    until(lambda: session.connection_file is None)
    session.restart()
    assert session.execute("1").lost_names == ("die", "os", "threading", "time", "x")


def test_waiting_cells_run_in_the_new_kernel_and_their_state_stays(session: Session) -> None:
    session.execute("x = 1")
    cell = RunningCell(session, "import time; print('begun', flush=True); time.sleep(600)", timeout=600)
    first = session.execute("y = 7", wait=0.01)
    second = session.execute("z = y + 1", wait=0.01)
    session.restart()
    ended = cell.result()
    assert (ended.status, ended.state, ended.cause) == ("error", "lost", "request")
    for waiting in (first, second):
        result = session.wait_for(waiting.execution_id, wait=BOUND).result
        assert result is not None
        assert (result.status, result.kernel_epoch) == ("ok", 2)
    assert session.execute("y, z").text == "(7, 8)"
    assert session.kernel_epoch == 2


def test_two_restarts_at_once_leave_a_session_that_works(session: Session) -> None:
    session.execute("x = 1")
    both = [threading.Thread(target=session.restart) for _ in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join(BOUND)
    assert session.execute("1 + 1").text == "2"


def test_a_notebook_that_is_there_is_never_written_over(executor: Executor, tmp_path: Path) -> None:
    (tmp_path / "mine.ipynb").write_text("precious")
    for number in (2, 3):
        session = executor.session("mine", work_dir=tmp_path)
        session.execute("1")
        assert session.notebook == tmp_path / f"mine-{number}.ipynb"
        session.close()
    assert (tmp_path / "mine.ipynb").read_text() == "precious"


def test_a_cell_whose_reply_is_too_large_is_what_its_outputs_say(session: Session) -> None:
    reply = "get_ipython().payload_manager.write_payload({'source': 'set_next_input', 'text': 'x' * 70_000_000})"
    fine = session.execute(f"{reply}; print('fine')")
    assert (fine.status, fine.state, fine.stdout) == ("ok", "kept", "fine\n")
    assert "too large to be read" in fine.notes[0]
    assert session.execute(f"{reply}; 1/0").status == "error"


async def unawaited(_: object) -> None: ...


@pytest.mark.parametrize("on_output", [3, "print", unawaited])
@pytest.mark.shared_session
def test_invalid_output_callbacks_are_refused_before_anything_runs(session: Session, on_output: Any) -> None:
    with pytest.raises(InvalidRequest, match="must be a plain function of one output"):
        session.execute("x = 1", on_output=on_output)
    assert session.execute("'x' in globals()").text == "False"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, asyncio.CancelledError, *at_night(SystemExit, BaseException)])
def test_errors_of_a_listener_are_raised_only_to_its_caller(session: Session, error: type[BaseException]) -> None:
    def listen(_: object) -> None:
        raise error

    session.execute("x = 1")
    with pytest.raises(RuntimeError if error is asyncio.CancelledError else error):
        session.execute("print('heard'); y = 2", on_output=listen)
    assert session.execute("x, y").text == "(1, 2)"


def test_an_endless_pattern_is_refused_and_delays_no_session(
    executor: Executor, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelexec.workspace.spill.GREP_SECONDS", slow(2))
    actual = session.execute("print('a' * 60 + '!')")
    other = executor.session("not-held-up")
    refused: list[Exception] = []

    def search() -> None:
        try:
            session.read_output(actual.execution_id, grep="(a|aa)+$")
        except InvalidRequest as exc:
            refused.append(exc)

    searching = threading.Thread(target=search)
    searching.start()
    assert other.execute("1 + 1").text == "2"
    assert refused == []
    searching.join(BOUND)
    assert "choose a simpler one" in str(refused[0])
    other.close()


@pytest.mark.shared_session
def test_arguments_of_the_wrong_type_are_clear_errors(executor: Executor, session: Session) -> None:
    done: Any = session.execute("1").execution_id
    wrong: list[Any] = [[], 5, None]
    for each in wrong:
        with pytest.raises(InvalidRequest):
            session.wait_for(each)
        with pytest.raises(InvalidRequest):
            executor.close_session(each)
    for call in (
        lambda: session.wait_for(done, cursor=wrong[0]),
        lambda: session.read_output(done, grep=wrong[1]),
        lambda: session.read_output(done, offset=wrong[2]),
        lambda: session.execute_command("true", work_dir=wrong[1]),
        lambda: executor.session("q", work_dir=wrong[1]),
    ):
        with pytest.raises(InvalidRequest):
            call()


@pytest.mark.shared_session
def test_an_empty_id_is_no_execution(session: Session) -> None:
    cell = RunningCell(session, "import os, time\nprint('begun', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)")
    with pytest.raises(UnknownExecution):
        session.interrupt("")
    (session.workspace / "go").touch()
    assert cell.result().status == "ok"
