"""A session whose owner was killed during a cell goes on under another process: its state, cell, journal and notebook."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from kernelexec import AsyncSession, ExecutionResult
from kernelexec.cells import CodeCell
from kernelexec.events import CellExecuted, CellStarted, Event, Hook, KernelChanged, SessionAdopted, SessionOpened
from kernelexec.provisioning import Handover
from kernelexec.provisioning.runtime.discovery import list_orphaned_sessions
from kernelexec.records.journal import RunningCell, journal_path, read, read_history, running_cell
from kernelexec.records.log import ContainerLog
from kernelexec.results import Stream
from kernelexec.session.cells.takeover import OrphanedSession
from tests.contract.records.test_recorder import cells_of
from tests.support.pace import until_equal
from tests.support.remains import marked_processes, runtime_directories
from tests.support.takeovers import BOUND, gone, inherited, kernel_pid, kill_after, session_owner, wait_until

WAIT = "import os, time\nwhile not os.path.exists('gate'): time.sleep(0.01)\n"
LAST = f"x = 1; print('before')\n{WAIT}print('after')"


def go_on(
    workspace: Path, path: Path, main: Callable[[AsyncSession], Awaitable[None]], *hooks: Hook, aged: float = 0
) -> list[Event]:
    """Take the session over, its cell ``aged`` by so many seconds, and let ``main`` use it; the events of that."""
    events: list[Event] = []

    async def take() -> None:
        async with asyncio.timeout(BOUND), inherited(workspace, path, [events.append, *hooks], aged=aged) as session:
            await main(session)

    asyncio.run(take())
    return events


def test_a_running_cell_has_its_result_under_the_next_owner_and_the_session_goes_on(tmp_path: Path) -> None:
    results: list[ExecutionResult] = []

    async def main(session: AsyncSession) -> None:
        assert session.busy
        [running] = session.executions()
        waiting = asyncio.create_task(session.execute(LAST, request_id="last"))
        await asyncio.sleep(0)
        (tmp_path / "a" / "gate").touch()
        results.append(await waiting)
        assert results[0].execution_id == running
        assert (await session.wait_for(running)).result == results[0]
        following = await session.execute("x, y")
        assert (following.text, following.state, following.notes) == ("(1, 2)", "kept", ())
        assert session.kernel_epoch == 1
        retried = await session.execute("y = 2", request_id="y = 2")
        assert (retried.state, retried.notes) == ("kept", ())

    before = marked_processes()
    with session_owner(tmp_path, "y = 2", LAST) as (owner, path):
        kill_after(owner, "before")
        events = go_on(tmp_path, path, main)
    [result] = results
    assert (result.status, result.outputs, result.state) == ("ok", (Stream("stdout", "before\nafter\n"),), "kept")
    assert result.timing.run > 0
    assert [type(event) for event in events[:2]] == [SessionAdopted, CellExecuted]
    assert isinstance(events[0], SessionAdopted)
    assert events[0].execution_id == result.execution_id
    assert not [event for event in events if isinstance(event, SessionOpened | KernelChanged)]
    assert [event.cell.source for event in events if isinstance(event, CellStarted)] == ["x, y"]
    logged = [item["event"] for item in read(journal_path(tmp_path, "a"))]
    opening = ["opened", "kernel", "started", "finished", "started"]
    assert logged == [*opening, "adopted", "finished", "started", "finished", "closing", "closed"]
    assert [cell["source"] for cell in cells_of(tmp_path / "a" / "a.ipynb")] == ["y = 2", LAST, "x, y"]
    assert not (tmp_path / "a" / "a-2.ipynb").exists()
    assert [cell.source for cell in read_history(journal_path(tmp_path, "a")).cells] == ["y = 2", LAST, "x, y"]
    until_equal(lambda: marked_processes().keys() - before.keys(), set())
    until_equal(runtime_directories, set())


def test_the_log_has_the_output_of_a_cell_that_was_taken_over(tmp_path: Path) -> None:
    code = f"x = 1; print('before')\n{WAIT}for n in range(2000): print('line', n)"
    log = ContainerLog(tmp_path / "logs", "a", tmp_path / "a")
    results: list[ExecutionResult] = []

    async def main(session: AsyncSession) -> None:
        (tmp_path / "a" / "gate").touch()
        results.append(await session.execute(code, request_id="last"))

    with session_owner(tmp_path, code) as (owner, path):
        kill_after(owner, "before")
        go_on(tmp_path, path, main, log)
    reported = [line.partition(f"cell {results[0].execution_id[:8]} ")[2] for line in log.path.read_text().splitlines()]
    reported = [line for line in reported if line]
    assert reported[0].startswith("goes on")
    assert reported[1] == "out | before"
    assert reported[2].startswith("out | line")  # a piece of output may end within a line
    assert reported[-2] == "out | line 1999"
    assert reported[-1].startswith("ended: ok")
    assert not [line for line in reported if line.startswith("late")]


def test_a_cell_that_ended_without_an_owner_has_its_result(tmp_path: Path) -> None:
    async def main(session: AsyncSession) -> None:
        result = await session.execute(code, request_id="last")
        assert (result.status, result.stdout) == ("error", "before\nafter\n")
        assert result.error is not None
        assert result.error.ename == "ZeroDivisionError"
        assert (await session.execute("x")).text == "1"

    code = f"{LAST}; open('over', 'w').close(); 1/0"
    with session_owner(tmp_path, code) as (owner, path):
        kill_after(owner, "before")
        (tmp_path / "a" / "gate").touch()
        wait_until((tmp_path / "a" / "over").exists)
        go_on(tmp_path, path, main)


def test_the_timeout_goes_on_counting(tmp_path: Path) -> None:
    async def main(session: AsyncSession) -> None:
        flight = running_cell(journal_path(tmp_path, "a"))
        assert flight is not None
        assert flight.timeout == BOUND
        result = await session.execute(LAST, request_id="last")
        assert (result.interrupted, result.ended_by, result.exit_code, result.state) == ("timeout", "interrupt", 124, "kept")
        assert result.stdout == "before\n"

    with session_owner(tmp_path, LAST) as (owner, path):
        kill_after(owner, "before")
        go_on(tmp_path, path, main, aged=BOUND)


def test_the_cell_can_be_interrupted_by_the_next_owner_at_once(tmp_path: Path) -> None:
    async def main(session: AsyncSession) -> None:
        result = await session.interrupt()
        assert result is not None
        assert (result.interrupted, result.exit_code, result.state) == ("request", 130, "kept")
        assert result.stdout == "before\n"

    with session_owner(tmp_path, LAST) as (owner, path):
        kill_after(owner, "before")
        go_on(tmp_path, path, main)


def test_a_session_that_did_nothing_goes_on_with_its_state(tmp_path: Path) -> None:
    async def main(session: AsyncSession) -> None:
        assert not session.busy
        assert (await session.execute("print('done')", request_id="last")).stdout == "done\n"
        result = await session.execute("z")
        assert (result.text, result.kernel_epoch) == ("3", 1)
        pid = int((await session.execute("__import__('os').getpid()")).text)
        await session.checkpoint()
        os.kill(pid, signal.SIGKILL)
        assert (await session.execute("1")).state == "restored"
        assert (await session.execute("z")).text == "3"

    with session_owner(tmp_path, "z = 3", "print('done')") as (owner, path):
        kill_after(owner, "ended")
        go_on(tmp_path, path, main)


def test_where_the_kernel_is_gone_a_new_one_starts_and_the_loss_is_reported(tmp_path: Path) -> None:
    async def main(session: AsyncSession) -> None:
        assert not session.busy
        result = await session.execute("1 + 1")
        assert (result.text, result.state, result.kernel_epoch) == ("2", "lost", 2)
        unknown = await session.execute(LAST, request_id="last")
        assert unknown.status == "unknown"

    with session_owner(tmp_path, LAST) as (owner, path):
        kill_after(owner, "before")
        [left] = list_orphaned_sessions(path)
        pid = kernel_pid(left.directory)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: gone(pid))
        events = go_on(tmp_path, path, main)
    assert isinstance(events[0], SessionOpened)


def test_an_owner_that_is_killed_again_and_again_costs_nothing(tmp_path: Path) -> None:
    """The next owner's owner: this process takes over, is as good as dead, and another one goes on."""
    taker = """
import asyncio, os, sys
from pathlib import Path
from tests.support.takeovers import inherited
async def main():
    async with inherited(Path(sys.argv[1]), Path(sys.argv[2])) as session:
        turn = session._queue.first
        while not (turn.collector and turn.collector.total_bytes):
            await asyncio.sleep(0.01)
        os.kill(os.getpid(), 9)
asyncio.run(main())
"""

    async def main(session: AsyncSession) -> None:
        (tmp_path / "a" / "gate").touch()
        result = await session.execute(LAST, request_id="last")
        assert (result.status, result.stdout) == ("ok", "before\nafter\n")

    with session_owner(tmp_path, LAST) as (owner, path):
        kill_after(owner, "before")
        for _ in range(2):
            done = subprocess.run([sys.executable, "-c", taker, str(tmp_path), str(path)], timeout=BOUND, check=False)
            assert done.returncode == -signal.SIGKILL
        go_on(tmp_path, path, main)


def test_a_cell_of_an_earlier_kernel_is_not_waited_for_in_the_next_one() -> None:
    running = RunningCell("e", CodeCell("x"), kernel_epoch=1, request_id=None, timeout=BOUND, began=0.0)

    async def main() -> None:
        for epoch, is_resumed in ((1, True), (2, False)):
            left = OrphanedSession(Handover(epoch, "token", {}, {}), running)
            assert (left.make_run("local") is not None) == is_resumed

    asyncio.run(main())
