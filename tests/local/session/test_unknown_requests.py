"""A request is never run a second time because its lines are gone, and is run where it was never sent."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelexec import AsyncExecutor
from kernelexec.cells import CodeCell
from kernelexec.events import CellAborted, CellExecuted, CellStarted, Event
from kernelexec.records.journal import Journal, read_history
from kernelexec.results import ExecutionResult
from tests.support.pace import BOUND

CELL = CodeCell("x = 1")


def started(number: int, request_id: str | None) -> CellStarted:
    return CellStarted("s", f"e{number}", CELL, 1, request_id)


def finished(number: int, request_id: str | None) -> CellExecuted:
    return CellExecuted("s", CELL, ExecutionResult(f"e{number}", "s", "ok", exit_code=0, state="kept"), request_id)


def rotate(journal: Journal) -> None:
    for number in range(2, 400):
        journal(started(number, None))


def rewrite(change: Callable[[dict[str, Any]], Any]) -> Callable[[Journal], None]:
    def act(journal: Journal) -> None:
        lines = journal.path.read_text().splitlines()
        journal.path.write_text("".join(json.dumps(change(json.loads(line))) + "\n" for line in lines))

    return act


@pytest.mark.parametrize(
    "lose",
    [
        rotate,
        lambda journal: journal.path.unlink(),
        lambda journal: os.truncate(journal.path, 0),
        rewrite(lambda message: {**message, "result": {"status": 5}} if "result" in message else message),
    ],
    ids=["rotated", "removed", "emptied", "changed"],
)
def test_a_request_whose_lines_are_gone_is_known_to_have_been_sent(tmp_path: Path, lose: Callable[[Journal], None]) -> None:
    journal = Journal(tmp_path / "s.jsonl", limit_bytes=20_000)
    assert journal.find_request("r") is None
    journal(started(1, "r"))
    journal(finished(1, "r"))
    lose(journal)
    known = journal.find_request("r")
    assert known is not None
    assert (known.execution_id, known.result) == ("e1", None)
    assert journal.find_request("other") is None
    journal.close()


def test_a_journal_that_another_program_rewrote_still_knows_its_requests(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "s.jsonl", limit_bytes=20_000)
    journal(started(1, "é"))
    journal(finished(1, "é"))
    journal.close()
    rewrite(lambda message: message)(journal)
    known = Journal(tmp_path / "s.jsonl", limit_bytes=20_000).find_request("é")
    assert known is not None
    assert known.result is not None


def test_a_moved_journal_is_begun_again_in_its_place(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "s.jsonl", limit_bytes=20_000)
    journal(started(1, None))
    journal.path.rename(tmp_path / "old")
    journal(started(2, None))
    assert '"e2"' in (tmp_path / "s.jsonl").read_text()
    assert '"e2"' not in (tmp_path / "old").read_text()
    journal.close()


@pytest.mark.parametrize("request_id", [None, "r"])  # without one the death is not noticed before the cell is sent
def test_a_cell_whose_kernel_died_before_it_was_sent_runs_in_the_next_one(request_id: str | None, tmp_path: Path) -> None:
    kernel: list[int] = []
    aborted: list[Event] = []

    def hook(event: Event) -> None:
        if isinstance(event, CellStarted) and kernel:
            pid = kernel.pop()
            ended = os.pidfd_open(pid)
            os.kill(pid, signal.SIGKILL)
            assert select.select([ended], [], [], BOUND)[0]
            os.close(ended)
        if isinstance(event, CellAborted):
            aborted.append(event)

    async def main() -> None:
        config = {"notebook": False, "checkpoints": "off"}
        async with asyncio.timeout(60), AsyncExecutor("local", workspace=tmp_path, config=config, hooks=[hook]) as executor:
            session = await executor.session("a")
            kernel.append(int((await session.execute("import os; os.getpid()")).text))
            result = await session.execute("print(1)", request_id=request_id)
            assert (result.text, result.kernel_epoch, result.state) == ("1\n", 2, "lost")
            assert not aborted
            assert session.journal is not None
            assert [cell.source for cell in read_history(session.journal).cells] == [
                "import os; os.getpid()",
                "print(1)",
            ]

    asyncio.run(main())


def test_a_second_caller_of_a_cell_waits_for_its_end_though_the_first_failed(tmp_path: Path) -> None:
    code = "import time; print(1, flush=True); time.sleep(1)"

    def fail(output: object) -> None:
        raise ValueError("the first caller's own")

    async def main() -> None:
        async with (
            asyncio.timeout(60),
            AsyncExecutor("local", workspace=tmp_path, config={"notebook": False}) as executor,
        ):
            session = await executor.session("a")
            first = asyncio.create_task(session.execute(code, request_id="r", on_output=fail))
            await asyncio.sleep(0)
            joined = asyncio.create_task(session.execute(code, request_id="r"))
            with pytest.raises(ValueError, match="own"):
                await first
            late = await session.execute(code, request_id="r")
            assert [(await joined).status, late.status] == ["ok", "ok"]

    asyncio.run(main())
