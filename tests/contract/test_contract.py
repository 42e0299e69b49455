"""What every kernel must do, however it is had: one suite, no branch on the kind."""

from __future__ import annotations

import os
from typing import Any

import pytest

from kernelexec import Executor, InvalidCode, InvalidRequest, InvalidTimeout, Session
from tests.conftest import EVERY_WAY
from tests.support.pace import BOUND, slow


@pytest.fixture(scope="module", params=EVERY_WAY)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def nothing_to_tell(_event: object) -> None:
    """A hook is no coroutine function."""


BAD_HOOKS: tuple[Any, ...] = (5, None, [5], "abc", [nothing_to_tell])


@pytest.mark.parametrize("hooks", BAD_HOOKS, ids=["number", "None", "numbers", "text", "coroutine function"])
def test_invalid_hooks_are_refused(hooks: Any) -> None:
    with pytest.raises(InvalidRequest, match="hooks="):
        Executor(isolation="local", hooks=hooks)


BAD_COUNTS: tuple[Any, ...] = (True, -1, "1", 1.5, None)


@pytest.mark.parametrize("value", BAD_COUNTS, ids=repr)
@pytest.mark.shared_session
def test_invalid_counts_of_bytes_are_refused(session: Session, value: Any) -> None:
    done = session.execute("print('x')")
    for call in (
        lambda: session.read_output(done.execution_id, offset=value),
        lambda: session.read_output(done.execution_id, limit=value),
        lambda: session.wait_for(done.execution_id, cursor=value),
    ):
        with pytest.raises(InvalidRequest, match="whole number of bytes"):
            call()


BAD_STDIN: tuple[Any, ...] = (0, False, [])


@pytest.mark.parametrize("stdin", BAD_STDIN, ids=repr)
@pytest.mark.shared_session
def test_invalid_stdin_is_refused(session: Session, stdin: Any) -> None:
    with pytest.raises(InvalidCode, match="stdin is"):
        session.execute_command("cat", stdin=stdin)


@pytest.mark.shared_session
def test_state_lasts_from_cell_to_cell(session: Session) -> None:
    session.execute("x = 40")
    result = session.execute("x + 2")
    assert result.text == "42"
    assert result.status == "ok"
    assert result.exit_code == 0
    assert result.state == "kept"


@pytest.mark.shared_session
def test_the_kernel_is_another_process(session: Session) -> None:
    assert int(session.execute("import os; os.getpid()").text) != os.getpid()


@pytest.mark.shared_session
def test_a_cell_that_raises_is_a_result_with_its_output(session: Session) -> None:
    result = session.execute("print('before')\n1/0")
    assert (result.status, result.exit_code, result.state) == ("error", 1, "kept")
    assert result.stdout == "before\n"
    assert result.error is not None
    assert result.error.ename == "ZeroDivisionError"
    assert result.diagnosis is not None
    assert (result.diagnosis.line, result.diagnosis.line_text) == (2, "1/0")


@pytest.mark.shared_session
def test_a_timeout_keeps_state_and_output_and_step(session: Session) -> None:
    session.execute("x = 1")
    result = session.execute("import time\nprint('before')\ntime.sleep(600)", timeout=slow(2))
    assert (result.status, result.interrupted, result.exit_code, result.state) == ("error", "timeout", 124, "kept")
    assert result.stdout == "before\n"
    assert session.execute("print(x)").stdout == "1\n"


@pytest.mark.shared_session
def test_a_chatty_loop_is_ended_by_the_wall_clock(session: Session) -> None:
    result = session.execute("import time\nwhile True:\n    print('.', end='', flush=True)\n    time.sleep(0.05)", timeout=0.5)
    assert (result.interrupted, result.state) == ("timeout", "kept")


def test_bad_input_is_refused_before_anything_runs(session: Session) -> None:
    for code in ("", "  \n", "a\x00b", "'\ud800'"):
        with pytest.raises(InvalidCode):
            session.execute(code)
    for timeout in (0, -1, 0.0001, float("nan"), "1"):
        with pytest.raises(InvalidTimeout):
            session.execute("1", timeout=timeout)  # type: ignore[arg-type]
    assert session.execute("1 + 1").execution_count == 1


def test_two_kernels_do_not_see_each_other(executor: Executor, session: Session) -> None:
    other = executor.session("other")
    session.execute("x = 1")
    assert other.execute("'x' in globals()").text == "False"
    other.close()


@pytest.mark.shared_session
def test_wait_returns_early_and_the_cell_goes_on(session: Session) -> None:
    code = "import os, time\nprint('a', flush=True)\nwhile not os.path.exists('go on'): time.sleep(0.01)\nprint('b')"
    result = session.execute(code, wait=0.5)
    assert result.status == "running"
    (session.workspace / "go on").touch()
    progress = session.wait_for(result.execution_id, wait=BOUND)
    assert progress.result is not None
    assert progress.result.stdout == "a\nb\n"


@pytest.mark.shared_session
def test_unicode_survives_both_ways(session: Session) -> None:
    text = "日本語 🎉 e\u0301 עברית"
    assert session.execute(f"print({text!r})").stdout == text + "\n"
