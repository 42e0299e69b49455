"""Twenty sessions at once: no cross-talk, whatever happens in them, and nothing is left of any of them."""

from __future__ import annotations

import asyncio
import gc
import os
import random
from pathlib import Path

import pytest

from kernelexec import (
    AsyncExecutor,
    AsyncSession,
    CapacityReached,
    Closed,
    ExecutionResult,
    InvalidWorkDir,
    KernelStartFailed,
    Output,
    QueueFull,
)
from kernelexec.session.cells.cell_run import CellRun
from tests.support.remains import descriptors, marked_processes, processes_of, runtime_directories

SESSIONS, CELLS = 20, 10
TROUBLE = {
    "timeout": "import time; print({mark!r}); time.sleep(600)",
    "kill": "import os, signal; print({mark!r}, flush=True); os.kill(os.getpid(), signal.SIGKILL)",
    "exit": "print({mark!r}, flush=True); exit()",
    "raise": "print({mark!r}); 1/0",
    "command": "!echo '{mark}'; sleep 600",
    "orphan": "import subprocess; print({mark!r}); _ = subprocess.Popen(['setsid', 'sleep', '600'])",
    "thread": "import threading; print({mark!r}); threading.Thread(target=lambda: print({mark!r}), daemon=True).start()",
}


@pytest.fixture(autouse=True)
def without_garbage() -> None:
    """What earlier tests have left to the collector is not closed in the middle of a test that counts descriptors."""
    gc.collect()


async def agent(session: AsyncSession, number: int) -> list[tuple[str, ExecutionResult]]:
    choose = random.Random(number)  # noqa: S311 - a reproducible choice of troubles
    actual: list[tuple[str, ExecutionResult]] = []
    for cell in range(CELLS):
        mark = f"<{number}:{cell}>"
        kind = choose.choice(["plain", "plain", "plain", *TROUBLE])
        code = TROUBLE[kind].format(mark=mark) if kind != "plain" else f"me = {number}\nprint({mark!r})\nme"
        result = await session.execute(code, timeout=0.5 if kind in ("timeout", "command") else 60)
        actual.append((kind, result))
        assert mark in result.text, (kind, result)
        assert result.text.count("<") == result.text.count(f"<{number}:"), result.text
        match kind:
            case "plain":
                assert (result.status, result.text) == ("ok", f"{mark}\n{number}")
            case "timeout" | "command":
                assert (result.interrupted, result.state, result.exit_code) == ("timeout", "kept", 124)
            case "exit":
                assert (result.status, result.state) == ("error", "lost")
            case "kill":  # cells in quick succession may have no checkpoint between them
                assert (result.status, result.state in ("restored", "lost")) == ("error", True)
            case "raise":
                assert (result.status, result.state) == ("error", "kept")
            case _:
                assert result.status == "ok"
    return actual


def test_twenty_sessions_with_trouble_leave_nothing_behind(tmp_path: Path) -> None:
    before = (descriptors(), marked_processes(), runtime_directories(), [p.pid for p in processes_of(os.getpid())])

    async def run() -> list[list[tuple[str, ExecutionResult]]]:
        async with AsyncExecutor("local", workspace=tmp_path) as executor:
            sessions = await asyncio.gather(*(executor.session(f"s{number}") for number in range(SESSIONS)))
            return await asyncio.gather(*(agent(session, number) for number, session in enumerate(sessions)))

    results = asyncio.run(run())

    kinds = {kind for actual in results for kind, _ in actual}
    assert kinds == {"plain", *TROUBLE}
    ids = {result.execution_id for actual in results for _, result in actual}
    assert len(ids) == SESSIONS * CELLS
    after = (descriptors(), marked_processes(), runtime_directories(), [p.pid for p in processes_of(os.getpid())])
    assert after == before
    assert {path.name for path in tmp_path.iterdir()} == {".journals", *(f"s{number}" for number in range(SESSIONS))}


def test_cells_of_one_session_keep_their_order_and_know_their_place(tmp_path: Path) -> None:
    async def run() -> None:
        async with AsyncExecutor("local", workspace=tmp_path, config={"capacity": {"queue": 3}}) as executor:
            session = await executor.session()
            await session.execute("import time; seen = []")
            calls = [asyncio.create_task(session.execute(f"time.sleep(0.2); seen.append({n}); seen")) for n in range(4)]
            await asyncio.sleep(0)
            with pytest.raises(QueueFull, match="3 cells wait in session 'default', its limit"):
                await session.execute("seen.append('never')")
            ids = session.executions()[-4:]
            places = [(await session.wait_for(each, wait=0.001)).queue_position for each in ids]
            assert places == [0, 1, 2, 3]
            results = await asyncio.gather(*calls)
            assert [result.text for result in results] == ["[0]", "[0, 1]", "[0, 1, 2]", "[0, 1, 2, 3]"]
            assert [result.execution_id for result in results] == list(ids)

    asyncio.run(run())


def test_the_bound_of_sessions_is_a_typed_refusal(tmp_path: Path) -> None:
    async def run() -> None:
        async with AsyncExecutor("local", workspace=tmp_path, config={"capacity": {"sessions": 2}}) as executor:
            opened = await asyncio.gather(*(executor.session(name) for name in "abc"), return_exceptions=True)
            refused = [each for each in opened if isinstance(each, BaseException)]
            assert len(refused) == 1
            assert isinstance(refused[0], CapacityReached)
            assert "2 sessions are open, the limit is 2" in str(refused[0])
            await executor.close_session(executor.sessions()[0])
            assert (await executor.session("d")).name == "d"

    asyncio.run(run())


def test_calls_at_once_for_one_name_make_one_session(tmp_path: Path) -> None:
    async def run() -> None:
        async with AsyncExecutor("local", workspace=tmp_path) as executor:
            sessions = await asyncio.gather(*(executor.session("one") for _ in range(10)))
            assert len({id(session) for session in sessions}) == 1
            assert sessions[0].kernel_epoch == 1

    asyncio.run(run())


def test_an_executor_that_closes_while_a_session_starts_leaves_nothing(tmp_path: Path) -> None:
    before = (descriptors(), marked_processes(), runtime_directories())

    async def run(delay: float) -> None:
        async with AsyncExecutor("local", workspace=tmp_path) as executor:
            opening = asyncio.create_task(executor.session("s"))
            await asyncio.sleep(delay)
        (outcome,) = await asyncio.gather(opening, return_exceptions=True)
        assert isinstance(outcome, AsyncSession | Closed | KernelStartFailed), outcome
        if isinstance(outcome, AsyncSession):
            with pytest.raises(Closed):
                await outcome.execute("1")

    for delay in (0, 0.001, 0.01, 0.05, 0.15, 0.25, 0.35):
        asyncio.run(run(delay))
    assert (descriptors(), marked_processes(), runtime_directories()) == before


def test_one_name_is_one_directory(tmp_path: Path) -> None:
    async def run() -> None:
        (tmp_path / "elsewhere").mkdir()
        async with AsyncExecutor("local", workspace=tmp_path) as executor:
            session = await executor.session("s")
            assert await executor.session("s", work_dir=session.workspace) is session
            with pytest.raises(InvalidWorkDir, match="close it, or take another name"):
                await executor.session("s", work_dir=tmp_path / "elsewhere")

    asyncio.run(run())


def test_a_caller_that_is_cancelled_while_a_session_starts_leaves_nothing(tmp_path: Path) -> None:
    before = (descriptors(), marked_processes(), runtime_directories())

    async def run() -> None:
        async with AsyncExecutor("local", workspace=tmp_path) as executor:
            for delay in (0, 0.001, 0.01, 0.05, 0.15, 0.25):
                opening = asyncio.create_task(executor.session("s"))
                await asyncio.sleep(delay)
                opening.cancel()
                await asyncio.gather(opening, return_exceptions=True)
                if executor.sessions():
                    await executor.close_session("s")
            assert executor.sessions() == ()
            assert (await (await executor.session("s")).execute("1 + 1")).text == "2"

    asyncio.run(run())
    assert (descriptors(), marked_processes(), runtime_directories()) == before


def test_what_is_forgotten_of_cells_is_freed_at_once(tmp_path: Path) -> None:
    """Python's search for what holds itself stops the whole process: the cells of hundreds of sessions must not need it."""
    codes = ("1 + 1", "print(1)", "1 / 0", "!echo 1", "from IPython.display import HTML; HTML('a')", "x =")

    async def run() -> int:
        async with AsyncExecutor("local", workspace=tmp_path, config={"capacity": {"results": 1}}) as executor:
            session = await executor.session("s")
            heard: list[Output] = []
            for code in codes:
                await session.execute(code, on_output=heard.append)
            gc.disable()
            try:
                turns = sum(isinstance(actual, CellRun) for actual in gc.get_objects())
                for code in codes * 2:
                    await session.execute(code, on_output=heard.append)
                return sum(isinstance(actual, CellRun) for actual in gc.get_objects()) - turns
            finally:
                gc.enable()

    assert asyncio.run(run()) == 0
