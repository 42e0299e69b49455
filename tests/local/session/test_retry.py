"""Cells that are tried again: how often, with what, and what the session is in between."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from kernelexec import AsyncExecutor, Attempts, Executor, Session
from kernelexec.errors import InvalidRequest
from kernelexec.events import KernelChanged
from tests.support.night import named_cases
from tests.support.pace import BOUND, slow


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with Executor("local", workspace=tmp_path_factory.mktemp("workspaces")) as executor:
        yield executor.session()


def test_success_is_the_status_not_the_text(session: Session) -> None:
    actual = session.execute_with_retry("print('no error, no exception')")
    assert (actual.success, len(actual.attempts)) == (True, 1)
    [answer] = actual.history
    assert {name: answer[name] for name in ("attempt", "success", "result", "diagnosis", "kernel_restarted")} == {
        "attempt": 1,
        "success": True,
        "result": "no error, no exception\n",
        "diagnosis": None,
        "kernel_restarted": False,
    }
    assert answer["duration"] > 0


def test_failing_code_is_tried_up_to_the_limit(session: Session) -> None:
    actual = session.execute_with_retry("tries = globals().get('tries', 0) + 1\n1 / 0", max_retries=3)
    assert [attempt["attempt"] for attempt in actual.history] == [1, 2, 3]
    assert [attempt["error"] for attempt in actual.history] == ["ZeroDivisionError: division by zero"] * 3
    assert (actual.success, actual.result.diagnosis and actual.result.diagnosis.line) == (False, 2)
    assert session.execute("tries").text == "3"
    assert json.loads(json.dumps(actual.history)) == actual.history


def test_the_callback_fixes_the_code(session: Session) -> None:
    seen: list[Attempts] = []

    def fix(attempts: Attempts) -> str:
        seen.append(attempts)
        return "print(0.5)"

    actual = session.execute_with_retry("1 / 0", fix)
    assert [(attempt.code, attempt.success) for attempt in actual.attempts] == [("1 / 0", False), ("print(0.5)", True)]
    assert [len(attempts.attempts) for attempts in seen] == [1]
    assert actual.result.text == "0.5\n"


def test_the_callback_gives_up(session: Session) -> None:
    actual = session.execute_with_retry("1 / 0", lambda _: None, max_retries=10)
    assert (len(actual.attempts), actual.success) == (1, False)


def test_the_fix_is_not_asked_after_the_last_try(session: Session) -> None:
    asked: list[Attempts] = []

    def fix(attempts: Attempts) -> str:
        asked.append(attempts)
        return "2 / 0"

    session.execute_with_retry("1 / 0", fix, max_retries=2)
    assert len(asked) == 1


@pytest.mark.parametrize(("between", "value"), [("keep", "[1, 2, 2]"), ("restore", "[1, 2]"), ("restart", "[2]")])
def test_sessions_are_kept_restored_or_restarted_between_tries(tmp_path: Path, between: Any, value: str) -> None:
    with Executor("local", workspace=tmp_path) as executor:
        session = executor.session()
        session.execute("x = [1]")
        actual = session.execute_with_retry(
            "x = globals().get('x', [])\nx.append(2)\n1 / 0", lambda attempts: attempts.attempts[0].code[:-6], between=between
        )
        assert actual.success
        assert [attempt.kernel_restarted for attempt in actual.attempts] == [False, between == "restart"]
        assert session.execute("x").text == str(value)


def test_a_try_after_a_restart_is_reported_by_its_own_failure(session: Session) -> None:
    actual = session.execute_with_retry("v = 1\n1 / 0", max_retries=2, between="restart")
    assert [attempt.kernel_restarted for attempt in actual.attempts] == [False, True]
    assert [attempt["error"] for attempt in actual.history] == ["ZeroDivisionError: division by zero"] * 2
    first, second = (attempt.result for attempt in actual.attempts)
    assert (second.state, second.cause, "v" in second.lost_names) == ("lost", "request", True)
    assert first.diagnosis is not None
    assert second.diagnosis is not None
    assert replace(second.diagnosis, calls=()) == replace(first.diagnosis, calls=())
    assert (second.diagnosis.line, second.diagnosis.retryable) == (2, False)
    assert second.diagnosis.hints == ("Guard against a divisor of zero.",)


#: Cells, what is done to their kernel before, and what their failure is: theirs, or that of their own kernel.
ENDS: dict[str, tuple[str, float | None, str, str]] = {
    "an exception": ("x = 1\n1 / 0", None, "ZeroDivisionError", "division by zero"),
    "no magic": ("%nosuch", None, "UsageError", "Line magic function `%nosuch` not found."),
    "an end of its own": ("import os\nos._exit(3)", None, "exited", "The cell ended the kernel's process."),
    "a timeout": ("import time\ntime.sleep(60)", 0.5, "timeout", "The cell ran over its timeout."),
    "a timeout that it does not heed": (
        "import time\nwhile True:\n    try:\n        time.sleep(60)\n    except BaseException: pass",
        slow(2),
        "timeout",
        "The cell ran over its timeout and obeyed no interrupt.",
    ),
}
AFTER_ENDS = {
    f"{name}-{end}": (*case, end) for name, case in ENDS.items() for end in ("restarted", "killed", "killed with a checkpoint")
}
#: Each failure, and each end before it.
IN_THE_GATE = {
    "an exception-killed",
    "an exception-killed with a checkpoint",
    "no magic-restarted",
    "an end of its own-restarted",
    "an end of its own-killed",
    "a timeout-restarted",
}


@pytest.mark.parametrize(
    ("code", "timeout", "kind", "message", "end"),
    named_cases(AFTER_ENDS, IN_THE_GATE),
)
def test_the_end_of_the_kernel_before_is_not_what_a_cell_failed_of(
    tmp_path: Path,
    code: str,
    timeout: float | None,
    kind: str,
    message: str,
    end: str,
) -> None:
    died = Event()

    def hear(event: object) -> None:
        if isinstance(event, KernelChanged) and event.change == "died":
            died.set()

    config = {"budgets": {"grace": 0.5 if "obeyed no" in message else slow(2)}, "checkpoints": "named"}
    with Executor("local", workspace=tmp_path, config=config, hooks=[hear]) as executor:
        session = executor.session()
        pid = int(session.execute("import os; os.getpid()").text)
        if end == "killed with a checkpoint":
            session.checkpoint()
        if end == "restarted":
            session.restart()
        else:
            os.kill(pid, signal.SIGKILL)
            assert died.wait(BOUND)
        result = session.execute(code, timeout=timeout)
        assert result.diagnosis is not None
        assert (result.diagnosis.kind, result.diagnosis.message) == (kind, message)
        if end == "killed with a checkpoint":
            assert result.state == "restored"
        else:
            assert (result.state, "the one before ended" in result.notes[0]) == ("lost", True)


def test_a_try_that_ends_the_kernel_says_so(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path) as executor:
        actual = executor.session().execute_with_retry("import os; os._exit(3)", lambda _: "print(1)")
        assert [attempt.kernel_restarted for attempt in actual.attempts] == [True, True]
        assert actual.result.text == "1\n"


def test_a_coroutine_function_mends_too(tmp_path: Path) -> None:
    async def fix(attempts: Attempts) -> str | None:
        await asyncio.sleep(0)
        return f"print({len(attempts.attempts)})"

    async def run() -> Attempts:
        async with AsyncExecutor("local", workspace=tmp_path) as executor:
            session = await executor.session()
            return await session.execute_with_retry("1 / 0", fix)

    assert asyncio.run(run()).result.text == "1\n"


@pytest.mark.parametrize(
    "options", [{"max_retries": 0}, {"max_retries": True}, {"max_retries": 1.5}, {"between": "kept"}, {"fix": "1"}]
)
def test_bad_input_is_refused_before_anything_runs(session: Session, options: Any) -> None:
    with pytest.raises(InvalidRequest):
        session.execute_with_retry("ran = True", **options)
    assert not session.execute("ran").ok


def test_fixes_other_than_code_are_refused(session: Session) -> None:
    with pytest.raises(InvalidRequest, match="next try"):
        session.execute_with_retry("1 / 0", lambda _: 1)  # type: ignore[arg-type, return-value]
