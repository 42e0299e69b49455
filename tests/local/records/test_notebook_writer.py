"""The notebook is written in a thread: soon after each cell, and never in the way of a result."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kernelexec import AsyncExecutor, AsyncSession, NotebookNotWritten
from kernelexec.events import DisplayUpdated
from kernelexec.records.notebook import recorder
from kernelexec.session import notebook_writer
from tests.contract.records.test_recorder import cells_of
from tests.support.pace import BOUND
from tests.support.slow_disk import Disk

SHOW = "from IPython.display import display\nhandle = display('old', display_id='d')"
#: Updates the display when there is a file ``go``.
LATER = (
    "import os, threading, time\ndef later():\n    while not os.path.exists('go'): time.sleep(0.01)\n    handle.update({!r})\n"
    "threading.Thread(target=later).start()"
)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def run(tmp_path: Path, main: Callable[..., Awaitable[None]], *, sessions: tuple[str, ...] = ("one",)) -> None:
    """Run it with sessions of these names."""

    async def bounded() -> None:
        async with asyncio.timeout(BOUND), AsyncExecutor("local", workspace=tmp_path) as executor:
            await main(*[await executor.session(name) for name in sessions])

    asyncio.run(bounded())


def notebook_of(session: AsyncSession) -> Path:
    assert session.notebook is not None
    return session.notebook


async def until(true: Callable[[], bool]) -> None:
    """Wait until it is."""
    while not true():  # noqa: ASYNC110 - a file, or a word of another thread: no event says it
        await asyncio.sleep(0.01)


def test_a_cell_is_in_the_notebook_soon_after_its_result_and_at_once_if_that_is_asked(tmp_path: Path) -> None:
    async def main(item: AsyncSession) -> None:
        async def cell(number: int) -> None:
            await item.execute(f"# {number}")
            await item.save_notebook()
            sources = [cell.source for cell in cells_of(notebook_of(item))]
            assert sources[: number + 1] == [f"# {n}" for n in range(number + 1)]

        await asyncio.gather(*(cell(n) for n in range(30)))
        await item.execute("'soon'")
        await until(lambda: len(cells_of(notebook_of(item))) == 31)

    run(tmp_path, main)


def test_many_cells_cost_few_writes(tmp_path: Path, disk: Disk) -> None:
    async def main(item: AsyncSession) -> None:
        disk.seconds = 0.05
        await item.execute("1")
        await item.save_notebook()
        before, begun = disk.writes, time.monotonic()
        while time.monotonic() < begun + 1.5:
            await item.execute("1")
        assert disk.writes - before <= 1 + (time.monotonic() - begun) / (0.05 * 20)

    run(tmp_path, main)


def test_a_slow_disk_delays_no_result(tmp_path: Path, disk: Disk) -> None:
    async def main(item: AsyncSession, two: AsyncSession) -> None:
        disk.hang()
        assert (await item.execute("x = 1")).ok
        await asyncio.to_thread(disk.begun.wait, BOUND)
        assert (await item.execute("x")).text == "1"
        assert (await two.execute("2")).text == "2"
        saved = asyncio.create_task(item.save_notebook())
        await asyncio.sleep(0.2)  # for an end that must not come
        assert not saved.done()
        assert cells_of(notebook_of(item)) == []
        disk.free.set()
        await saved
        assert [cell.source for cell in cells_of(notebook_of(item))] == ["x = 1", "x"]

    run(tmp_path, main, sessions=("one", "two"))


def test_a_disk_that_hangs_holds_no_result_back_for_ever_and_no_close(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(item: AsyncSession) -> None:
        disk.hang()
        for _number in range(2):
            assert (await item.execute("1 + 1")).text == "2"
        await item.close()
        assert cells_of(notebook_of(item)) == []
        assert [thread.name for thread in threading.enumerate()].count("AnyIO worker thread") < 8
        disk.free.set()
        await until(lambda: bool(cells_of(notebook_of(item))))

    monkeypatch.setattr(notebook_writer, "FLUSH_SECONDS", 0.2)
    monkeypatch.setattr(recorder, "_PATIENCE", 0.1)
    run(tmp_path, main)
    assert "kernelexec.notebook_write_timeout" in [record.message for record in caplog.records]


def test_a_write_that_fails_is_logged_and_tried_again_with_the_next_and_at_the_close(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(item: AsyncSession, two: AsyncSession) -> None:
        disk.failure = OSError(28, "No space left on device")
        for session in (item, two):
            assert (await session.execute("1")).notes[1:] == ()
            with pytest.raises(NotebookNotWritten, match=r"\.ipynb cannot be written \(No space left on device\)"):
                await session.save_notebook()
            assert cells_of(notebook_of(session)) == []
        assert (await item.execute("2")).notes == ("Not recorded in the notebook yet: No space left on device.",)
        disk.failure = None
        assert (await item.execute("3")).ok
        await item.save_notebook()
        assert [cell.source for cell in cells_of(notebook_of(item))] == ["1", "2", "3"]
        assert (await item.execute("4")).notes == ()
        await two.close()
        assert [cell.source for cell in cells_of(notebook_of(two))] == ["1"]

    with caplog.at_level(logging.ERROR, logger="kernelexec"):
        run(tmp_path, main, sessions=("one", "two"))
    assert [record.message for record in caplog.records] == ["kernelexec.notebook_write_failed"] * 2


def test_a_notebook_that_could_not_be_written_is_written_without_a_further_cell(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(item: AsyncSession) -> None:
        disk.failure = OSError(28, "No space left on device")
        assert (await item.execute("1")).ok
        with pytest.raises(NotebookNotWritten):
            await item.save_notebook()
        disk.failure = None
        await until(lambda: bool(cells_of(notebook_of(item))))

    monkeypatch.setattr(notebook_writer, "DELAY_MAX", 0.1)
    run(tmp_path, main)


def text_of(session: AsyncSession) -> str:
    return str(cells_of(notebook_of(session))[0].outputs[0].data["text/plain"])


def test_a_display_that_changes_after_the_last_cell_reaches_the_notebook_soon(tmp_path: Path) -> None:
    async def main(item: AsyncSession) -> None:
        await item.execute(SHOW)
        await item.execute(LATER.format("new"))
        await item.save_notebook()
        (item.workspace / "go").touch()
        await until(lambda: text_of(item) == "'new'")

    run(tmp_path, main)


def test_a_display_that_changes_often_costs_few_writes(tmp_path: Path, disk: Disk) -> None:
    async def main(item: AsyncSession) -> None:
        await item.execute(SHOW)
        await item.save_notebook()
        before, begun = disk.writes, time.monotonic()
        await item.execute("import time\nfor n in range(200):\n    handle.update(n)\n    time.sleep(0.002)\n")
        await item.save_notebook()
        assert text_of(item) == "199"
        assert disk.writes - before <= 2 + (time.monotonic() - begun) / notebook_writer.DISPLAY_DELAY

    run(tmp_path, main)


def test_a_close_writes_what_changed_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(item: AsyncSession, two: AsyncSession) -> None:
        heard = asyncio.Event()
        whole = item._notebook_writer.__class__.__call__

        def hear(self: Any, event: Any, /) -> None:
            whole(self, event)
            if isinstance(event, DisplayUpdated):
                heard.set()

        monkeypatch.setattr(notebook_writer.NotebookWriter, "__call__", hear)
        for session in (item, two):
            await session.execute(SHOW)
            heard.clear()
            await session.execute(LATER.format("new"))
            await session.save_notebook()
            (session.workspace / "go").touch()
            await heard.wait()
            assert text_of(session) == "'old'"
        await item.close()
        assert text_of(item) == "'new'"

    monkeypatch.setattr(notebook_writer, "DISPLAY_DELAY", 600.0)
    monkeypatch.setattr(notebook_writer, "DELAY_MAX", 600.0)
    run(tmp_path, main, sessions=("one", "two"))
    assert cells_of(tmp_path / "two" / "two.ipynb")[0].outputs[0].data["text/plain"] == "'new'"
