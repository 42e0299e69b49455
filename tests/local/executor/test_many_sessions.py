"""Twenty sessions at once: no cross-talk, whatever happens in them, and nothing is left of any of them."""

from __future__ import annotations

import asyncio
import gc
import os
import random
from collections import Counter
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
from tests.support.pace import BOUND, slow, until_equal
from tests.support.remains import descriptors, marked_processes, processes_of, runtime_directories

SESSIONS, CELLS = 20, 3
TROUBLE = {
    "timeout": "import time; print({mark!r}); time.sleep(600)",
    "kill": "import os, signal; print({mark!r}, flush=True); os.kill(os.getpid(), signal.SIGKILL)",
    "exit": "print({mark!r}, flush=True); exit()",
    "raise": "print({mark!r}); 1/0",
    "command": "!echo '{mark}'; sleep 600",
    "orphan": "import subprocess; print({mark!r}); _ = subprocess.Popen(['setsid', 'sleep', '600'])",
    "thread": "import threading; print({mark!r}); threading.Thread(target=lambda: print({mark!r}), daemon=True).start()",
}


#: How a cell of these kinds is interrupted: the first when its time is over, the second on request, once it has begun.
INTERRUPTED = {"timeout": ("timeout", 124), "command": ("request", 130)}


def remains() -> Counter[object]:
    """What there is of executors; what is less afterwards is of earlier tests, and ended meanwhile."""
    processes = (*marked_processes(), *processes_of(os.getpid()))
    return Counter[object]([*Counter(descriptors()).elements(), *processes, *runtime_directories()])


@pytest.fixture(autouse=True)
def without_garbage() -> None:
    """What earlier tests have left to the collector is not closed in the middle of a test that counts descriptors."""
    gc.collect()


async def execute(session: AsyncSession, kind: str, code: str) -> ExecutionResult:
    """Run a cell of a kind and interrupt it if it does not end by itself."""
    if kind != "command":
        return await session.execute(code, timeout=slow(4) if kind == "timeout" else BOUND)
    begun = asyncio.Event()
    running = asyncio.create_task(session.execute(code, timeout=BOUND, on_output=lambda _: begun.set()))
    await begun.wait()
    await session.interrupt()
    return await running


async def agent(session: AsyncSession, number: int) -> list[tuple[str, ExecutionResult]]:
    choose = random.Random(number)  # noqa: S311 - a reproducible choice of troubles
    actual: list[tuple[str, ExecutionResult]] = []
    for cell in range(CELLS):
        mark = f"<{number}:{cell}>"
        kind = choose.choice(["plain", "plain", "plain", *TROUBLE])
        code = TROUBLE[kind].format(mark=mark) if kind != "plain" else f"me = {number}\nprint({mark!r})\nme"
        result = await execute(session, kind, code)
        actual.append((kind, result))
        assert mark in result.text, (kind, result)
        assert result.text.count("<") == result.text.count(f"<{number}:"), result.text
        match kind:
            case "plain":
                assert (result.status, result.text) == ("ok", f"{mark}\n{number}")
            case "timeout" | "command":
                assert (result.interrupted, result.exit_code, result.state) == (*INTERRUPTED[kind], "kept")
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
    before = remains()

    async def run() -> list[list[tuple[str, ExecutionResult]]]:
        async with AsyncExecutor("local", workspace=tmp_path, config={"budgets": {"grace": slow(4)}}) as executor:
            sessions = await asyncio.gather(*(executor.session(f"s{number}") for number in range(SESSIONS)))
            return await asyncio.gather(*(agent(session, number) for number, session in enumerate(sessions)))

    results = asyncio.run(run())

    kinds = {kind for actual in results for kind, _ in actual}
    assert kinds == {"plain", *TROUBLE}
    ids = {result.execution_id for actual in results for _, result in actual}
    assert len(ids) == SESSIONS * CELLS
    until_equal(lambda: remains() - before, Counter())
    assert {path.name for path in tmp_path.iterdir()} == {".journals", *(f"s{number}" for number in range(SESSIONS))}


def test_cells_of_one_session_keep_their_order_and_know_their_place(tmp_path: Path) -> None:
    async def run() -> None:
        async with AsyncExecutor("local", workspace=tmp_path, config={"capacity": {"queue": 3}}) as executor:
            session = await executor.session()
            await session.execute("import os, time; seen = []")
            waits = "while not os.path.exists('go'): time.sleep(0.01)"
            calls = [asyncio.create_task(session.execute(f"{waits}\nseen.append({n}); seen")) for n in range(4)]
            await asyncio.sleep(0)
            with pytest.raises(QueueFull, match="3 cells wait in session 'default', its limit"):
                await session.execute("seen.append('never')")
            ids = session.executions()[-4:]
            places = [(await session.wait_for(each, wait=0.001)).queue_position for each in ids]
            assert places == [0, 1, 2, 3]
            (session.workspace / "go").touch()
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
    before = remains()

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
    until_equal(lambda: remains() - before, Counter())


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
    before = remains()

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
    until_equal(lambda: remains() - before, Counter())


def test_forgotten_cells_are_freed_without_a_garbage_collection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's search for what holds itself stops the whole process: the cells of hundreds of sessions must not need it."""
    monkeypatch.setattr("kernelexec.session.cells.queue._REMEMBERED_MAX", 1)
    codes = ("1 + 1", "print(1)", "1 / 0", "!echo 1", "from IPython.display import HTML; HTML('a')", "x =")

    async def run() -> int:
        async with AsyncExecutor("local", workspace=tmp_path) as executor:
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
