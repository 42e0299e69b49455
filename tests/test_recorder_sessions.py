"""The notebook is written in a thread: never behind a result that was given, and never in the way of another session."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kernelexec import AsyncExecutor, AsyncSession, recorder
from kernelexec.hooks import DisplayUpdated
from kernelexec.session import scribe
from tests.slow_disk import BOUND, Disk
from tests.test_recorder import cells_of

SHOW = "from IPython.display import display\nhandle = display('old', display_id='d')"
LATER = (
    "import threading, time\ndef later():\n    time.sleep(0.1)\n    handle.update({!r})\nthreading.Thread(target=later).start()"
)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def run(tmp_path: Path, main: Callable[[AsyncSession, AsyncSession], Awaitable[None]]) -> None:
    """Run it with two sessions."""

    async def bounded() -> None:
        async with asyncio.timeout(BOUND), AsyncExecutor("local", workspace=tmp_path) as executor:
            await main(await executor.session("one"), await executor.session("two"))

    asyncio.run(bounded())


def notebook_of(session: AsyncSession) -> Path:
    assert session.notebook is not None
    return session.notebook


async def until(true: Callable[[], bool]) -> float:
    """Wait until it is; how many seconds it took."""
    begun = time.monotonic()
    while not true():  # noqa: ASYNC110 - a file, or a word of another thread: no event says it
        await asyncio.sleep(0.01)
    return time.monotonic() - begun


def test_a_result_is_given_when_its_cell_can_be_read(tmp_path: Path) -> None:
    async def main(one: AsyncSession, _: AsyncSession) -> None:
        async def cell(number: int) -> None:
            await one.execute(f"# {number}")
            sources = [cell.source for cell in cells_of(notebook_of(one))]
            assert sources[: number + 1] == [f"# {n}" for n in range(number + 1)]

        await asyncio.gather(*(cell(n) for n in range(30)))
        ids = one.executions()
        assert len(cells_of(notebook_of(one))) == len(ids) == 30

    run(tmp_path, main)


def test_a_slow_disk_delays_the_results_of_its_own_session_only(tmp_path: Path, disk: Disk) -> None:
    async def main(one: AsyncSession, two: AsyncSession) -> None:
        disk.hang()
        first = asyncio.create_task(one.execute("x = 1"))
        await asyncio.to_thread(disk.begun.wait, BOUND)
        [execution_id] = one.executions()
        progress = await one.wait_for(execution_id, wait=0.05)
        assert (progress.status, progress.result, one.busy, first.done()) == ("running", None, False, False)
        second = asyncio.create_task(one.execute("print('begun', flush=True); import time; time.sleep(600)"))
        third = asyncio.create_task(two.execute("2"))  # runs, though its notebook waits for the same disk
        await until(lambda: one.busy and not two.busy)
        await asyncio.sleep(0.2)
        interrupted = asyncio.create_task(one.interrupt())  # the cell that runs, not the one that is written
        await until(lambda: not one.busy)
        assert not first.done() and not second.done() and not third.done()  # noqa: PT018
        disk.free.set()
        assert (await first).ok
        assert (await interrupted) == await second
        assert (await second).interrupted == "request"
        assert (await third).text == "2\n"
        assert cells_of(notebook_of(one))[0].source == "x = 1"

    run(tmp_path, main)


def test_a_restart_during_a_write_is_told_to_the_next_cell_only(tmp_path: Path, disk: Disk) -> None:
    async def main(one: AsyncSession, _: AsyncSession) -> None:
        disk.hang()
        first = asyncio.create_task(one.execute("x = 1"))
        await asyncio.to_thread(disk.begun.wait, BOUND)
        await one.restart()
        assert one.kernel_epoch == 2
        disk.free.set()
        assert (await first).state == "kept"
        following = await one.execute("'x' in globals()")
        assert (following.text, following.state, following.cause) == ("False\n", "lost", "request")

    run(tmp_path, main)


def test_a_disk_that_hangs_holds_no_result_back_for_ever_and_no_close(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(one: AsyncSession, _: AsyncSession) -> None:
        disk.hang()
        for _number in range(2):
            assert (await one.execute("1 + 1")).text == "2\n"
        await one.close()
        assert cells_of(notebook_of(one)) == []
        assert [thread.name for thread in threading.enumerate()].count("AnyIO worker thread") < 8
        disk.free.set()
        await until(lambda: bool(cells_of(notebook_of(one))))

    monkeypatch.setattr(scribe, "PATIENCE", 0.2)
    monkeypatch.setattr(recorder, "_PATIENCE", 0.1)
    run(tmp_path, main)
    assert "kernelexec.notebook_late" in [record.message for record in caplog.records]


def test_a_write_that_fails_is_logged_and_tried_again_with_the_next_and_at_the_close(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(one: AsyncSession, two: AsyncSession) -> None:
        disk.failure = OSError(28, "No space left on device")
        for session in (one, two):
            assert (await session.execute("1")).ok
            assert cells_of(notebook_of(session)) == []
        disk.failure = None
        assert (await one.execute("2")).ok
        assert [cell.source for cell in cells_of(notebook_of(one))] == ["1", "2"]
        await two.close()
        assert [cell.source for cell in cells_of(notebook_of(two))] == ["1"]

    with caplog.at_level(logging.ERROR, logger="kernelexec"):
        run(tmp_path, main)
    assert [record.message for record in caplog.records] == ["kernelexec.notebook_not_written"] * 2


def text_of(session: AsyncSession) -> str:
    return str(cells_of(notebook_of(session))[0].outputs[0].data["text/plain"])


def test_a_display_that_changes_after_the_last_cell_reaches_the_notebook_soon(tmp_path: Path) -> None:
    async def main(one: AsyncSession, _: AsyncSession) -> None:
        await one.execute(SHOW)
        await one.execute(LATER.format("new"))
        assert await until(lambda: text_of(one) == "'new'") < 10

    run(tmp_path, main)


def test_a_display_that_changes_often_costs_few_writes(tmp_path: Path, disk: Disk) -> None:
    async def main(one: AsyncSession, _: AsyncSession) -> None:
        await one.execute(SHOW)
        before, begun = disk.writes, time.monotonic()
        await one.execute("import time\nfor n in range(200):\n    handle.update(n)\n    time.sleep(0.002)\n")
        assert text_of(one) == "199"
        assert disk.writes - before <= 2 + (time.monotonic() - begun) / scribe.SOONEST

    run(tmp_path, main)


def test_a_close_writes_what_changed_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(one: AsyncSession, two: AsyncSession) -> None:
        heard = asyncio.Event()
        whole = one._scribe.__class__.__call__

        def hear(self: Any, event: Any, /) -> None:
            whole(self, event)
            if isinstance(event, DisplayUpdated):
                heard.set()

        monkeypatch.setattr(scribe.Scribe, "__call__", hear)
        for session in (one, two):
            await session.execute(SHOW)
            heard.clear()
            await session.execute(LATER.format("new"))
            await heard.wait()
            assert text_of(session) == "'old'"
        await one.close()
        assert text_of(one) == "'new'"

    monkeypatch.setattr(scribe, "SOONEST", 600.0)
    monkeypatch.setattr(scribe, "LATEST", 600.0)
    run(tmp_path, main)
    assert cells_of(tmp_path / "two" / "two.ipynb")[0].outputs[0].data["text/plain"] == "'new'"
