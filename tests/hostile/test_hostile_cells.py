"""Hostile, broken and merely loud cells: each ends with the right verdict, by itself or by its timeout, and harms no other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kernelexec import AsyncExecutor, DisplayData, Executor
from kernelexec.kernel.wire import channels
from tests.hostile.cells import CELLS, KEPT, LOST, MEANS, Hostile, Verdict
from tests.support.night import named_cases
from tests.support.pace import BOUND, slow
from tests.support.peak_memory import forget_peak, peak_bytes

#: Long where a step must be obeyed or a death be seen in that time; short where every step fails.
GRACES: dict[Verdict, float] = {KEPT: slow(2), LOST: 0.4}
MIB = 1024 * 1024
#: For each of them another one of its kind is tried in the gate.
AT_NIGHT = {
    "twenty thousand display updates",
    "endless large prints",
    "endless output of a command",
    "a value of 200 MB",
    "interrupts are ignored",
    "nothing is sent any more",
    "a thread that holds the lock for long",
    "its stacks are a link",
    "questions of which it reads no answer",
}


@pytest.fixture(scope="module")
def own_executors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Verdict, Executor]]:
    """An executor for the cells that are ended gently or die, and one for those that are killed, each with a bystander."""
    with ExitStack() as closing:
        actual = dict[Verdict, Executor]()
        for verdict, grace in GRACES.items():
            config = {"budgets": {"grace": grace, "compiled": 1.0}, "checkpoints": "named"}
            opened = Executor(isolation="local", workspace=tmp_path_factory.mktemp(verdict), config=config)
            actual[verdict] = closing.enter_context(opened)
            opened.session("bystander").execute("count = 0")
        yield actual


def test_there_are_enough_hostile_cells() -> None:
    assert len(CELLS) >= 40


@pytest.mark.parametrize(("name", "cell"), named_cases({name: (name, CELLS[name]) for name in CELLS}, CELLS.keys() - AT_NIGHT))
def test_a_hostile_cell_gets_its_verdict(own_executors: dict[Verdict, Executor], name: str, cell: Hostile) -> None:
    is_killed = cell.state == LOST and cell.cause in (None, "timeout")
    own_executor = own_executors[LOST if is_killed else KEPT]
    session = own_executor.session(f"h{list(CELLS).index(name)}")
    assert session.execute(MEANS + "\nkeepsake = 1").ok
    before = forget_peak()

    result = session.execute(cell.code, timeout=cell.timeout)

    assert peak_bytes() - before < 50 * MIB
    actual = (result.status, result.state, result.interrupted)
    assert actual == (cell.status, cell.state, cell.interrupted), result.text[-2000:]
    if cell.cause is not None:
        assert result.cause == cell.cause
    if cell.exit_code is not None:
        assert result.exit_code == cell.exit_code
    assert cell.says in result.text
    if cell.state == "lost":
        assert "keepsake" in result.lost_names

    following = session.execute("'keepsake' in globals()", timeout=slow(10) if cell.then else BOUND)
    if cell.then:
        assert following.state == cell.then
    else:
        assert f"{cell.state == 'kept'}" in following.text.splitlines()  # a thread of the cell may print before and after
    session.close()
    seen = own_executor.session("bystander").execute("count += 1; count")
    assert (seen.status, seen.state, seen.kernel_epoch) == ("ok", "kept", 1)


def test_a_cell_that_stops_its_kernels_loop_loses_the_state_in_its_own_result_or_in_the_next(
    own_executors: dict[Verdict, Executor],
) -> None:
    session = own_executors[KEPT].session("stopped")
    assert session.execute(MEANS + "\nkeepsake = 1").ok
    result = session.execute("kernel.io_loop.stop()")
    following = session.execute("'keepsake' in globals()")
    died_meanwhile = result.state == "lost"  # its process ends at once, before the result was built or after
    assert (result.status, following.state) == (("error", "kept") if died_meanwhile else ("ok", "lost"))
    assert "keepsake" in (result if died_meanwhile else following).lost_names
    session.close()


def test_a_kernel_that_leaves_too_many_answers_unread_is_killed(
    own_executors: dict[Verdict, Executor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "_WAITING_MAX_BYTES", 16 * 1024)
    session = own_executors[LOST].session("unread")
    assert session.execute(MEANS).ok
    code = (
        "kernel.control_thread.io_loop.add_callback(time.sleep, 100); time.sleep(0.2)\n"
        "while True: publish('kernelexec_program', {'token': kernel.options.token, 'name': 'n', 'words': []})"
    )
    result = session.execute(code, timeout=BOUND)
    assert (result.status, result.state, result.cause) == ("error", "lost", "killed")
    assert any("did not read its messages" in note for note in result.notes), result.notes
    assert session.execute("1 + 1").text == "2"
    session.close()


def test_every_display_arrives_though_the_driver_was_held_up(tmp_path: Path) -> None:
    count = 15_000

    async def run() -> None:
        async with AsyncExecutor("local", workspace=tmp_path) as executor:
            session = await executor.session()
            begun = asyncio.Event()
            code = f"print('begun', flush=True)\nfor n in range({count}): display({{'text/plain': str(n)}}, raw=True)"
            async with asyncio.TaskGroup() as tasks:
                running = tasks.create_task(session.execute(code, on_output=lambda _: begun.set(), timeout=BOUND))
                await begun.wait()
                time.sleep(2)  # noqa: ASYNC251 - the loop itself is held up: nothing is read meanwhile
            result = running.result()
            assert (result.status, result.truncated) == ("ok", False)
            shown = [output.data["text/plain"] for output in result.outputs if isinstance(output, DisplayData)]
            assert shown == [str(n) for n in range(count)]

    asyncio.run(run())
