"""The blocking executor among threads, callbacks and forks: deadlocks are refused at once, and no caller waits for ever."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kernelexec import Closed, Executor, InvalidRequest, Output, Session
from kernelexec.executor.directories import ExecutorDirectories
from kernelexec.executor.executor import AsyncExecutor
from tests.support.pace import BOUND, until
from tests.support.remains import descriptors, marked_processes, runtime_directories

#: Nothing runs in containers in the gate: how a kernel is had makes no difference here.
ALSO_CONFINED = ()
SLEEPS = "import time\nprint('begun', flush=True)\ntime.sleep(600)"


@pytest.fixture
def closed(tmp_path: Path) -> Executor:
    return Executor("local", workspace=tmp_path, config={"notebook": False})


CALLS: dict[str, Callable[[Session], object]] = {
    "execute": lambda session: session.execute("1"),
    "execute_command": lambda session: session.execute_command("true"),
    "wait_for": lambda session: session.wait_for("x"),
    "read_output": lambda session: session.read_output("x"),
    "interrupt": lambda session: session.interrupt(),
    "restart": lambda session: session.restart(),
    "close": lambda session: session.close(),
}


def test_a_session_of_an_executor_that_is_closed_says_so(closed: Executor) -> None:
    with closed:
        session = closed.session()
    for call in CALLS.values():
        with pytest.raises(Closed, match="The executor is closed: open it again"):
            call(session)
    assert (session.busy, session.executions(), session.kernel_epoch) == (False, (), 1)
    with pytest.raises(Closed, match="with Executor"):
        closed.session()
    with closed:
        assert closed.session().execute("1 + 1").text == "2"
        with pytest.raises(Closed):
            session.execute("1")


def test_an_executor_is_entered_once_at_a_time(closed: Executor) -> None:
    with closed:
        with pytest.raises(InvalidRequest, match="already open"):
            closed.__enter__()
        assert closed.session().execute("1 + 1").text == "2"
    closed.__exit__(None, None, None)


def test_errors_of_the_block_are_raised_unchanged(closed: Executor) -> None:
    def block() -> None:
        with closed:
            raise error

    error = KeyError("mine")
    with pytest.raises(KeyError) as caught:
        block()
    assert caught.value is error


def test_an_executor_that_cannot_open_says_why_and_can_be_tried_again(
    closed: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: AsyncExecutor) -> None:
        message = "no"
        raise OSError(message)

    before = descriptors()
    with monkeypatch.context() as patch:
        patch.setattr(AsyncExecutor, "__aenter__", fail)
        with pytest.raises(OSError, match="no"):
            closed.__enter__()
    until(lambda: descriptors() == before)
    assert "kernelexec" not in [thread.name for thread in threading.enumerate()]
    with closed:
        assert closed.session().execute("1 + 1").text == "2"


def test_a_failure_while_it_closes_is_raised_unless_the_block_raises(closed: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_: AsyncExecutor) -> None:
        message = "inside"
        raise ZeroDivisionError(message)

    def block(error: Exception) -> None:
        with closed:
            raise error

    monkeypatch.setattr(ExecutorDirectories, "sweep", fail)
    closed.__enter__()
    with pytest.raises(ZeroDivisionError, match="inside"):
        closed.__exit__(None, None, None)
    with pytest.raises(KeyError):
        block(KeyError())


def test_threads_share_an_executor_and_its_sessions(closed: Executor) -> None:
    def work(number: int) -> tuple[str, int]:
        session = closed.session(f"s{number % 3}")
        return session.execute(f"print({number})\nimport os; os.getpid()").text.splitlines()[0], session.kernel_epoch

    with closed, ThreadPoolExecutor(12) as threads:
        results = list(threads.map(work, range(24)))
        assert results == [(f"{number}", 1) for number in range(24)]
        assert sorted(closed.sessions()) == ["s0", "s1", "s2"]


def test_one_of_many_threads_opens_an_executor_and_many_may_leave_it(closed: Executor) -> None:
    before = descriptors(), marked_processes(), runtime_directories()

    def enter(_: int) -> bool:
        try:
            closed.__enter__()
        except InvalidRequest:
            return False
        return True

    def leave(_: int) -> bool:
        closed.__exit__(None, None, None)
        until(lambda: runtime_directories() == before[2] and marked_processes() == before[1])
        return True

    with ThreadPoolExecutor(8) as threads:
        assert sorted(threads.map(enter, range(8))) == [False] * 7 + [True]
        closed.session()
        assert list(threads.map(leave, range(8))) == [True] * 8
    until(lambda: (descriptors(), marked_processes(), runtime_directories()) == before)


def test_calls_that_are_under_way_end_with_the_executor(closed: Executor) -> None:
    begun = threading.Event()
    outcomes: list[object] = []

    def execute(session: Session) -> None:
        try:
            outcomes.append(session.execute(SLEEPS, on_output=lambda _: begun.set()).status)
            while True:
                outcomes.append(session.execute("1").status)
        except Closed as exc:
            outcomes.append(str(exc).partition(":")[0])

    closed.__enter__()
    thread = threading.Thread(target=execute, args=(closed.session(),))
    thread.start()
    assert begun.wait(BOUND)
    closed.__exit__(None, None, None)
    thread.join(BOUND)
    assert not thread.is_alive()
    assert outcomes[0] == "error"
    assert outcomes[-1] in ("The executor is closed", "Session 'default' is closed.")


@pytest.mark.parametrize("delay", [0.0, 0.001, 0.005, 0.02])
def test_calls_at_the_moment_of_the_end_are_answered(closed: Executor, delay: float) -> None:
    """Whichever comes first: a result, or a clear refusal."""
    answered: list[str] = []
    stop = threading.Event()

    def execute(session: Session) -> None:
        while not stop.is_set():
            try:
                answered.append(session.execute("1").status)
            except Closed:
                return

    closed.__enter__()
    session = closed.session()
    threads = [threading.Thread(target=execute, args=(session,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(delay)
    closed.__exit__(None, None, None)
    for thread in threads:
        thread.join(BOUND)
    stop.set()
    assert not any(thread.is_alive() for thread in threads)
    assert set(answered) <= {"ok", "error", "aborted"}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.shared_session
def test_a_callback_that_would_wait_for_itself_is_refused(session: Session, call: Callable[[Session], object]) -> None:
    actual: list[BaseException] = []

    def on_output(_: Output) -> None:
        try:
            call(session)
        except InvalidRequest as exc:
            actual.append(exc)

    assert session.execute("print(1)", on_output=on_output).text == "1\n"
    assert "run in the executor's thread" in str(actual[0])


def test_a_callback_cannot_leave_the_executor(closed: Executor) -> None:
    actual: list[BaseException] = []

    def on_output(_: Output) -> None:
        try:
            closed.__exit__(None, None, None)
        except InvalidRequest as exc:
            actual.append(exc)

    with closed:
        assert closed.session().execute("print(1)", on_output=on_output).text == "1\n"
    assert len(actual) == 1


FORKS = """
import os, sys
from kernelexec import Closed, Executor
executor = Executor("local", workspace=sys.argv[1], config={'preload': ()})
with executor:
    session = executor.session()
    session.execute("x = 5")
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        calls = executor.session, executor.__enter__, session.close, session.restart, session.interrupt
        for call in (*calls, lambda: session.execute("1"), lambda: executor.close_session("default")):
            try:
                call()
            except Closed as exc:
                print("forked from" in str(exc), end=" ")
        with Executor("local", workspace=sys.argv[1], config={'preload': ()}) as own:
            print(own.session("child").execute("1 + 1").text.strip(), end=" ")
        sys.exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), session.execute("x").text.strip())
"""


def test_a_forked_child_is_refused_ends_without_a_wait_and_may_have_an_executor_of_its_own(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORKS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND, check=False, env=os.environ)
    assert (done.returncode, done.stdout.split()) == (0, ["True"] * 7 + ["2", "7", "5"]), done.stderr
