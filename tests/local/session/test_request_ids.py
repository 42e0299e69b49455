"""A request with an id runs once, whichever client repeats it, and whenever: counted by its effect on a file."""

from __future__ import annotations

import asyncio
import errno
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernelexec import AsyncExecutor, AsyncSession, ExecutionResult, Executor, InvalidRequest, QueueFull, Refused
from kernelexec.events import CellAborted, CellRefused, CellStarted, Event
from kernelexec.records.journal import Journal, read, rows
from tests.support.pace import BOUND, until

#: Lines that run until there is a file ``go``.
WAITS = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
COUNT = "with open('count', 'a') as file: _ = file.write('x')"
#: Makes a mark, so that the caller can be killed while the cell surely runs, and then takes for ever.
FOR_EVER = f"{COUNT}\nprint('begun', flush=True)\nopen('begun', 'w').close()\nimport time; time.sleep(600)"
OWNER = """
import sys
from kernelexec import Executor
with Executor("local", workspace=sys.argv[1], config={'preload': ()}) as executor:
    session = executor.session("a")
    session.execute("x = 1", request_id="before")
    print(session.execute(sys.argv[2], request_id="r", timeout=600).status, flush=True)
    sys.stdin.read()
"""


def run(workspace: Path, main: Callable[[AsyncSession], Awaitable[None]], *, hooks: Any = (), **config: Any) -> None:
    async def bounded() -> None:
        async with (
            asyncio.timeout(BOUND),
            AsyncExecutor("local", workspace=workspace, config={"notebook": False, **config}, hooks=hooks) as executor,
        ):
            await main(await executor.session("a"))

    asyncio.run(bounded())


def count(workspace: Path) -> int:
    path = workspace / "a" / "count"
    return len(path.read_text()) if path.exists() else 0


def start_owner(workspace: Path, code: str) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", OWNER, str(workspace), code]
    return subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def kill(owner: subprocess.Popen[str]) -> None:
    with owner:
        owner.send_signal(signal.SIGKILL)


def wait_for(path: Path) -> None:
    until(path.exists)


def test_twenty_retries_at_once_run_it_once(tmp_path: Path) -> None:
    async def main(session: AsyncSession) -> None:
        code = f"{COUNT}\nprint('done')\n6 * 7"
        results = await asyncio.gather(*(session.execute(code, request_id="r") for _ in range(20)))
        assert {result.execution_id for result in results} == {results[0].execution_id}
        assert all(result == results[0] and result.text == "done\n42" for result in results)
        assert (await session.execute(code, request_id="r")) == results[0]
        assert count(tmp_path) == 1
        assert (await session.execute(code, request_id="other")).ok
        assert count(tmp_path) == 2

    run(tmp_path, main)


def test_a_retry_joins_the_running_cell_and_its_wait_is_its_own(tmp_path: Path) -> None:
    async def main(session: AsyncSession) -> None:
        code = f"{COUNT}\n{WAITS}print('end')"
        first = asyncio.create_task(session.execute(code, request_id="r"))
        await asyncio.sleep(0)
        second = await session.execute(code, request_id="r", wait=0.1)
        assert second.status == "running"
        first.cancel()
        joining = asyncio.create_task(session.execute(code, request_id="r"))
        await asyncio.sleep(0)
        (session.workspace / "go").touch()
        third = await joining
        assert (third.text, third.execution_id) == ("end\n", second.execution_id)
        assert count(tmp_path) == 1

    run(tmp_path, main)


def test_commands_have_requests_too(tmp_path: Path) -> None:
    async def main(session: AsyncSession) -> None:
        command = "printf x >> count; cat; exit 7"
        first, second = [await session.execute_command(command, stdin="in", request_id="r") for _ in range(2)]
        assert first == second
        assert (first.exit_code, first.stdout) == (7, "in")
        with pytest.raises(InvalidRequest, match="sent with another cell"):
            await session.execute_command(command, stdin="else", request_id="r")
        assert count(tmp_path) == 1

    run(tmp_path, main)


def test_another_cell_under_the_same_id_is_refused_and_the_refusal_recorded(tmp_path: Path) -> None:
    async def main(session: AsyncSession) -> None:
        await session.execute("1", request_id="r")
        with pytest.raises(InvalidRequest, match="request_id='r' was sent with another cell before"):
            await session.execute(COUNT, request_id="r")
        assert count(tmp_path) == 0
        assert session.journal is not None
        last = list(read(session.journal))[-1]
        assert (last["event"], last["decision"], last["request_id"]) == ("refused", "refused", "r")

    run(tmp_path, main)


def test_an_id_that_names_nothing_is_refused_before_anything_runs(tmp_path: Path) -> None:
    async def main(session: AsyncSession) -> None:
        names: list[Any] = ["", "x" * 201, "a\nb", "\x00", "\ud800", 5, b"r"]
        for request_id in names:
            with pytest.raises(InvalidRequest, match=r"request_id=.*1 to 200 printable characters"):
                await session.execute(COUNT, request_id=request_id)
            assert count(tmp_path) == 0, request_id

    run(tmp_path, main)


def test_without_a_journal_a_request_cannot_be_named(tmp_path: Path) -> None:
    async def main(session: AsyncSession) -> None:
        assert session.journal is None
        with pytest.raises(InvalidRequest, match="keeps no journal"):
            await session.execute(COUNT, request_id="r")
        assert (await session.execute(COUNT)).ok

    run(tmp_path, main, journal=False)


def test_forgotten_requests_are_answered_from_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelexec.session.cells.queue._REMEMBERED_MAX", 2)

    async def main(session: AsyncSession) -> None:
        first = await session.execute(
            f"{COUNT}\nfrom IPython.display import Image, display; display({{'a/b': 1}}, raw=True)", request_id="r"
        )
        for _ in range(3):
            await session.execute("1")
        assert first.execution_id not in session.executions()
        again = await session.execute(
            f"{COUNT}\nfrom IPython.display import Image, display; display({{'a/b': 1}}, raw=True)", request_id="r"
        )
        assert again == first
        assert count(tmp_path) == 1

    run(tmp_path, main)


def test_the_next_owner_gives_the_first_outcome(tmp_path: Path) -> None:
    code = f"{COUNT}\nprint('a'); raise ValueError('b')"
    actual: list[ExecutionResult] = []

    async def main(session: AsyncSession) -> None:
        actual.append(await session.execute(code, request_id="r"))

    run(tmp_path, main)
    run(tmp_path, main)
    first, again = actual
    assert again == replace(first, state="lost", notes=again.notes)
    assert (again.status, again.stdout, count(tmp_path)) == ("error", "a\n", 1)


def test_an_outcome_says_when_the_state_that_it_left_is_gone(tmp_path: Path) -> None:
    async def main(session: AsyncSession) -> None:
        first = await session.execute("x = 1", request_id="r")
        assert (await session.execute("x = 1", request_id="r")) == first
        await session.restart()
        again = await session.execute("x = 1", request_id="r")
        assert (again.status, again.state, again.execution_id) == ("ok", "lost", first.execution_id)
        assert "a kernel that has ended since" in again.notes[-1]
        assert (await session.execute("'x' in globals()")).text == "False"

    run(tmp_path, main)


def test_a_caller_killed_after_the_cell_had_ended_gets_its_outcome(tmp_path: Path) -> None:
    owner = start_owner(tmp_path, COUNT)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "ok\n"
    kill(owner)

    async def main(session: AsyncSession) -> None:
        results = await asyncio.gather(*(session.execute(COUNT, request_id="r") for _ in range(20)))
        assert {result.status for result in results} == {"ok"}
        assert count(tmp_path) == 1

    run(tmp_path, main)


def test_a_caller_killed_during_the_cell_learns_that_the_outcome_is_unknown(tmp_path: Path) -> None:
    owner = start_owner(tmp_path, FOR_EVER)
    wait_for(tmp_path / "a" / "begun")
    kill(owner)
    path = tmp_path / ".journals" / "a.jsonl"
    answer = list(read(path))
    assert [item["event"] for item in answer] == ["opened", "kernel", "started", "finished", "started"]
    assert (answer[-1]["code"], answer[-1]["request_id"]) == (FOR_EVER, "r")
    assert path.read_bytes().endswith(b"\n")

    async def main(session: AsyncSession) -> None:
        results = await asyncio.gather(*(session.execute(FOR_EVER, request_id="r") for _ in range(20)))
        assert {(result.status, result.state, result.exit_code) for result in results} == {("unknown", "unknown", None)}
        assert results[0].execution_id == answer[-1]["execution_id"]
        assert "not run again" in results[0].notes[0]
        assert count(tmp_path) == 1
        assert (await session.execute("x = 1", request_id="before")).ok
        assert (await session.execute("'x' in globals()")).text == "False"

    run(tmp_path, main)


def test_a_cell_that_never_ran_runs_when_it_is_sent_again(tmp_path: Path) -> None:
    async def main(session: AsyncSession) -> None:
        begun = asyncio.Event()
        code = "import time; print('begun', flush=True); time.sleep(600)"
        running = asyncio.create_task(session.execute(code, on_output=lambda _: begun.set()))
        await begun.wait()
        waiting = await session.execute(COUNT, request_id="r", wait=0.01)
        aborted = await session.interrupt(waiting.execution_id)
        assert aborted is not None
        assert aborted.status == "aborted"
        await session.interrupt()
        await running
        assert (await session.execute(COUNT, request_id="r")).ok
        assert (await session.execute(COUNT, request_id="r")).ok
        assert count(tmp_path) == 1

    events: list[Event] = []
    run(tmp_path, main, hooks=[events.append])
    assert [type(event).__name__ for event in events].count("CellAborted") == 1
    aborted = next(event for event in events if isinstance(event, CellAborted))
    assert (aborted.request_id, aborted.result.status) == ("r", "aborted")


def test_a_full_queue_uses_no_request_up(tmp_path: Path) -> None:
    async def main(session: AsyncSession) -> None:
        await session.execute("import time; time.sleep(60)", wait=0.01)
        with pytest.raises(QueueFull):
            await session.execute(COUNT, request_id="r")
        await session.interrupt()
        assert (await session.execute(COUNT, request_id="r")).ok
        assert count(tmp_path) == 1

    events: list[Event] = []
    run(tmp_path, main, hooks=[events.append], capacity={"queue": 0})
    refused = [event for event in events if isinstance(event, CellRefused)]
    assert [(event.source, type(event.error), event.request_id) for event in refused] == [(COUNT, QueueFull, "r")]


def test_a_second_owner_of_the_session_refuses_requests_that_it_cannot_know(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path) as first, Executor("local", workspace=tmp_path) as second:
        item, two = first.session("a"), second.session("a")
        assert item.execute(COUNT, request_id="r").ok
        with pytest.raises(Refused, match="another process has this session open"):
            two.execute(COUNT, request_id="r")
        assert two.execute("1").ok
        assert count(tmp_path) == 1


def test_a_full_disk_costs_the_record_and_not_the_result(tmp_path: Path) -> None:
    async def main(session: AsyncSession) -> None:
        assert session.journal is not None
        before = session.journal.read_bytes()
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before), hard))
        try:
            result = await session.execute("print('a')")
            assert (result.status, result.stdout) == ("ok", "a\n")
            assert result.notes == ("Not recorded in the journal: File too large.",)
            with pytest.raises(Refused, match=r"request_id='r': the journal cannot be written \(File too large\).*Nothing ran"):
                await session.execute(COUNT, request_id="r")
            assert session.journal.read_bytes() == before
            assert count(tmp_path) == 0
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert (await session.execute(COUNT, request_id="r")).notes == ()
        assert count(tmp_path) == 1
        assert [row.event for row in rows(session.journal)] == ["opened", "kernel", "gap", "cell"]

    run(tmp_path, main)


def test_a_cell_refused_by_a_full_disk_leaves_a_loss_to_the_next_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Journal) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def main(session: AsyncSession) -> None:
        await session.execute("x = 1")
        await session.restart()
        with monkeypatch.context() as patch:
            patch.setattr(Journal, "flush_to_disk", fail)
            with pytest.raises(Refused, match="Nothing ran"):
                await session.execute(COUNT, request_id="r")
        result = await session.execute("1")
        assert (result.state, result.lost_names) == ("lost", ("x",))
        assert (await session.execute("1")).state == "kept"

    run(tmp_path, main)


def test_a_cell_is_written_down_before_it_is_sent(tmp_path: Path) -> None:
    async def main(session: AsyncSession) -> None:
        assert session.journal is not None
        path = str(session.journal)
        result = await session.execute(f"print(open({path!r}).read().splitlines()[-1])")
        assert '"event":"started"' in result.stdout
        assert result.execution_id in result.stdout

    events: list[Event] = []
    run(tmp_path, main, hooks=[events.append], confinement={"level": "off"})  # else it could not look
    assert sum(isinstance(event, CellStarted) for event in events) == 1


def test_a_cell_that_waits_for_the_disk_does_not_run_in_a_kernel_that_was_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, written, secure = threading.Event(), threading.Event(), Journal.flush_to_disk

    def slowly(journal: Journal) -> None:
        reached.set()
        assert written.wait(BOUND)
        secure(journal)

    monkeypatch.setattr(Journal, "flush_to_disk", slowly)

    async def main(session: AsyncSession) -> None:
        await session.execute("x = 1")
        cell = asyncio.create_task(session.execute(f"{COUNT}\nx", request_id="r"))
        assert await asyncio.to_thread(reached.wait, BOUND)
        restart = asyncio.create_task(session.restart())
        await asyncio.sleep(0)
        written.set()
        await restart
        result = await cell
        assert (result.status, result.notes) == ("aborted", ("The kernel was restarted before the cell was sent.",))
        assert count(tmp_path) == 0
        assert session.kernel_epoch == 2
        again = await session.execute(f"{COUNT}\n'x' in globals()", request_id="other")
        assert (again.text.splitlines()[-1], again.lost_names, count(tmp_path)) == ("False", ("x",), 1)
        assert (await session.execute(f"{COUNT}\nx", request_id="r")).status == "error"

    run(tmp_path, main)


def test_errors_of_a_callback_are_not_raised_to_repeated_requests(tmp_path: Path) -> None:
    def fails(_: object) -> None:
        raise ValueError("mine")

    async def main(session: AsyncSession) -> None:
        code = f"{COUNT}\n{WAITS}print('told')"
        first = await session.execute(code, request_id="r", wait=0.01, on_output=fails)
        assert first.status == "running"
        (session.workspace / "go").touch()
        for _ in range(2):
            assert (await session.execute(code, request_id="r")).text.endswith("told\n")
        assert count(tmp_path) == 1

    run(tmp_path, main)
