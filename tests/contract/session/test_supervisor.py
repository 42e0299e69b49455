"""What a kernel's end is called: by the cell that brought it about, and in the same words by the next one."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kernelexec import AsyncExecutor, AsyncSession, Closed, ExecutionResult, Session
from tests.local.executor.test_lifecycle import run
from tests.support.night import named_cases
from tests.support.pace import slow

#: Nothing runs in containers in the gate: how a kernel is had makes no difference here.
ALSO_CONFINED = ()

HANGS = {
    "a thread": "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\nexit()",
    "a slow exit handler": "import atexit, time\natexit.register(time.sleep, 60)\nexit()",
}


def in_session(tmp_path: Path, main: Callable[[AsyncSession], Awaitable[None]]) -> None:
    async def opened() -> None:
        async with AsyncExecutor("local", workspace=tmp_path) as executor:
            await main(await executor.session("one"))

    run(opened)


async def until(true: Callable[[], object]) -> None:
    while not true():  # noqa: ASYNC110 - no event says it
        await asyncio.sleep(0.001)


async def starting(session: AsyncSession, code: str) -> asyncio.Task[ExecutionResult]:
    """A cell that waits for the kernel that has to be started for it."""
    assert (await session.execute("import os; os._exit(3)")).cause == "exited"
    waiting = asyncio.create_task(session.execute(code))
    await until(lambda: session._supervisor._starting_kernel)
    return waiting


def test_a_kernel_that_starts_is_new_enough_for_a_restart(tmp_path: Path) -> None:
    async def main(session: AsyncSession) -> None:
        waiting = await starting(session, "x = 41")
        await session.restart()
        assert (await waiting).ok
        following = await session.execute("x + 1")
        assert (following.text, following.state, following.kernel_epoch) == ("42", "kept", 2)
        await session.restart()
        following = await session.execute("'x' in globals()")
        assert (following.text, following.state, following.cause) == ("False", "lost", "request")

    in_session(tmp_path, main)


def test_a_restart_under_a_running_cell_is_reported_as_such(tmp_path: Path) -> None:
    async def main(session: AsyncSession) -> None:
        assert (await session.execute("x = 1")).ok
        running = asyncio.create_task(session.execute("import time; time.sleep(60)"))
        await until(lambda: session._queue.first is not None and session._queue.first.execution is not None)
        await session.restart()
        assert (await running).cause == "request"
        following = await session.execute("1")
        assert "the one before ended (request)" in following.notes[0]

    in_session(tmp_path, main)


@pytest.mark.parametrize("code", named_cases(HANGS, {"a thread"}))
def test_an_exit_that_takes_too_long_is_an_exit(session: Session, code: str) -> None:
    session.execute("x = 1")
    result = session.execute(code)
    assert (result.status, result.exit_code, result.state, result.cause) == ("error", 1, "lost", "exited")
    assert (result.interrupted, "x" in result.lost_names) == (None, True)
    assert result.diagnosis is not None
    assert result.diagnosis.kind == "exited"
    following = session.execute("1")
    assert (following.state, following.kernel_epoch) == ("kept", 2)
    assert "the one before ended (exited)" in following.notes[0]


@pytest.mark.nightly
def test_the_next_cell_reports_the_same_cause_after_a_timeout(session: Session) -> None:
    code = "import time\nwhile True:\n    try: time.sleep(600)\n    except BaseException: pass"
    assert session.execute(code, timeout=slow(2)).cause == "timeout"
    assert "the one before ended (timeout)" in session.execute("1").notes[0]


def test_a_cell_whose_session_is_closed_was_ended_on_request(tmp_path: Path) -> None:
    async def main(session: AsyncSession) -> None:
        assert (await session.execute("x = 1")).ok
        begun = asyncio.Event()
        code = "print('begun\\n', end='', flush=True); import time; time.sleep(60)"  # one write: heard whole
        running = asyncio.create_task(session.execute(code, on_output=lambda _: begun.set()))
        await begun.wait()
        await session.close()
        result = await running
        assert (result.status, result.exit_code, result.state, result.cause) == ("error", 130, "lost", "request")
        assert (result.interrupted, result.lost_names, result.stdout) == ("request", ("x",), "begun\n")
        assert result.notes == ("The session was closed while the cell ran.",)
        assert result.diagnosis is not None
        assert (result.diagnosis.kind, result.diagnosis.retryable) == ("request", True)

    in_session(tmp_path, main)


def test_a_kernel_that_died_before_the_close_is_not_the_closings(tmp_path: Path) -> None:
    async def main(session: AsyncSession) -> None:
        pid = int((await session.execute("import os; os.getpid()")).text)
        running = asyncio.create_task(session.execute("import time; time.sleep(60)"))
        await until(lambda: session._queue.first is not None and session._queue.first.execution is not None)
        kernel = session._supervisor.kernel
        assert kernel is not None
        os.kill(pid, signal.SIGKILL)
        await kernel.died.wait()
        await session.close()
        result = await running
        assert (result.exit_code, result.cause, result.interrupted) == (137, "killed", None)

    in_session(tmp_path, main)


def test_a_cell_that_waits_for_a_kernel_when_its_session_closes_says_so(tmp_path: Path) -> None:
    async def main(session: AsyncSession) -> None:
        waiting = await starting(session, "x = 41")
        await session.close()
        with pytest.raises(Closed, match="Session 'one' is closed"):
            await waiting

    in_session(tmp_path, main)


def test_a_kernel_lives_only_while_a_cell_can_be_sent_to_it(tmp_path: Path) -> None:
    async def main(session: AsyncSession) -> None:
        pid = int((await session.execute("import os; os.getpid()")).text)
        kernel = session._supervisor.kernel
        assert kernel is not None
        os.kill(pid, signal.SIGKILL)
        while kernel.alive:
            kernel.client._channels["shell"].send([b"", b"nothing"])
            await asyncio.sleep(0)
        assert (await session.execute("1")).cause == "killed"

    in_session(tmp_path, main)


def test_a_kernel_that_is_used_again_before_its_end_is_kept(tmp_path: Path) -> None:
    async def main(session: AsyncSession) -> None:
        assert (await session.execute("x = 1")).ok
        assert not await session._supervisor.cull(lambda: False)
        following = await session.execute("x")
        assert (following.text, following.state, following.kernel_epoch) == ("1", "kept", 1)
        assert await session._supervisor.cull(lambda: True)
        assert (await session.execute("1")).cause == "culled"

    in_session(tmp_path, main)
