"""The escalation: what runs over its timeout is ended by the gentlest step that can, and the state is kept where it can be."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelexec import AsyncExecutor, ExecutionResult, Executor
from kernelexec.session.kernels import escalation
from tests.support.night import named_cases
from tests.support.overrunning_cells import KEEPING, OVERRUNS, Overrun
from tests.support.pace import BOUND, RunningCell, slow

#: The first is for cells that write before they overrun, the second for those that do not.
TIMEOUT, TIMEOUT_OF_SILENT, GRACE = slow(2), 0.2, slow(2)


@pytest.fixture(scope="module", autouse=True)
def time_to_notice() -> Iterator[None]:
    """Give the kernel's control thread as long as a busy machine may need: a step that is not noticed is not waited for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(escalation, "NOTICE_SECONDS", slow(1))
        yield


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    config = {"budgets": {"grace": GRACE}, "checkpoints": "named"}
    with Executor(isolation="local", workspace=tmp_path_factory.mktemp("escalation"), config=config) as opened:
        yield opened


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    """For cells that obey no step but the last: none is missed however short the others wait."""
    config = {"budgets": {"grace": 0.3}, "checkpoints": "named"}
    with Executor(isolation="local", workspace=tmp_path_factory.mktemp("impatient"), config=config) as opened:
        yield opened


#: Cells that are ended as one of the others is.
LIKE_OTHERS = {"sleep", "subprocess", "execute_command", "await that shields", "regex that holds the GIL"}


@pytest.mark.parametrize("overrun", named_cases(OVERRUNS, OVERRUNS.keys() - LIKE_OTHERS))
def test_an_overrun_is_ended_by_its_step(patient: Executor, impatient: Executor, overrun: Overrun) -> None:
    session = (impatient if overrun.steps == ("kill",) else patient).session()
    magic = overrun.code.startswith(("%%", "!"))
    assert session.execute(f"{overrun.prepared}\nx = 1").ok

    code, timeout = (overrun.code, TIMEOUT_OF_SILENT) if magic else (f"print('before')\n{overrun.code}", TIMEOUT)
    result = session.execute(code, timeout=timeout)

    assert (result.status, result.exit_code, result.interrupted) == ("error", 124, "timeout")
    assert result.ended_by in overrun.steps
    assert result.state == ("kept" if result.ended_by in KEEPING else "lost")
    assert result.stdout == ("" if magic else "before\n")
    assert session.execute("'x' in globals()").text == str(result.state == "kept")
    living = "c.status() != 'zombie'"  # one that was killed by force may wait for its parent
    children = f"import psutil\n[c.cmdline() for c in psutil.Process().children(recursive=True) if {living}]"
    assert session.execute(children).text == "[]"
    session.close()


def test_an_interrupt_on_request_takes_the_same_steps(patient: Executor) -> None:
    session = patient.session("interrupted-on-request")
    running = RunningCell(session, "import time\nprint('before', flush=True)\ntime.sleep(600)")
    result = session.interrupt()
    assert result is not None
    assert (result.execution_id, result.stdout) == (running.result().execution_id, "before\n")
    assert (result.status, result.interrupted, result.ended_by, result.state) == ("error", "request", "interrupt", "kept")
    assert session.interrupt() is None
    session.close()


@pytest.mark.parametrize("code", ["x = 1", "await asyncio.sleep(0)", "await asyncio.sleep(0.001)\nprint(x)"])
def test_interrupts_that_come_at_any_time_cost_no_state(patient: Executor, code: str) -> None:
    session = patient.session()
    pid = int(session.execute("import asyncio, os\nx = 1\nos.getpid()").text)
    chosen, over = random.Random(1), threading.Event()  # noqa: S311 - for any time, not for secrets

    def interrupt() -> None:
        while not over.wait(chosen.uniform(0, 0.002)):
            os.kill(pid, signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    try:
        results: list[ExecutionResult] = []
        while len(results) < 75 or not any(result.error for result in results):  # a busy machine may need more for a hit
            results.append(session.execute(code))
    finally:
        over.set()
        interrupting.join()
    assert [result for result in results if result.state != "kept"] == []
    assert int(session.execute("os.getpid()").text) == pid
    session.close()


def test_an_interrupt_of_a_waiting_cell_lets_it_never_run(patient: Executor) -> None:
    session = patient.session()
    session.execute("x = 1")
    running = session.execute("import time; time.sleep(600)", wait=0.1)
    waiting = session.execute("x = 2", wait=0.1)
    assert session.wait_for(waiting.execution_id, wait=0.1).queue_position == 1
    aborted = session.interrupt(waiting.execution_id)
    assert aborted is not None
    assert (aborted.status, aborted.exit_code, aborted.notes) == ("aborted", -1, ("Cancelled while it waited in the queue.",))
    assert session.wait_for(running.execution_id, wait=0.1).status == "running"
    session.interrupt(running.execution_id)
    assert session.execute("x").text == "1"
    session.close()


def test_closing_aborts_what_waits_and_ends_what_runs(patient: Executor) -> None:
    session = patient.session()
    running = session.execute("import time; time.sleep(600)", wait=0.1)
    waiting = session.execute("x = 2", wait=0.1)
    assert (running.status, waiting.status) == ("running", "running")
    session.close()
    assert patient.sessions() == ()


def test_steps_that_name_another_cell_leave_the_running_one_alone(tmp_path: Path) -> None:
    code = "import asyncio, os\nopen('begun', 'w').close()\nwhile not os.path.exists('go'): await asyncio.sleep(0.01)\n6 * 7"

    async def main() -> None:
        async with asyncio.timeout(BOUND), AsyncExecutor("local", workspace=tmp_path) as executor:
            session = await executor.session()
            running = asyncio.create_task(session.execute(code))
            while not (session.workspace / "begun").exists():  # noqa: ASYNC110 - another process makes it
                await asyncio.sleep(0.01)
            assert session._supervisor.kernel is not None
            interrupter = session._supervisor.kernel.interrupter
            assert await interrupter.request_interrupt("another", BOUND)
            await interrupter.request_cancel("another", BOUND)
            (session.workspace / "go").touch()
            result = await running
            assert (result.text, result.interrupted) == ("42", None)

    asyncio.run(main())


def test_the_stacks_of_a_kernel_that_goes_on_are_not_read(tmp_path: Path) -> None:
    """To read those of threads that run on can crash it."""

    async def main() -> None:
        async with AsyncExecutor(isolation="local", workspace=tmp_path, config={"quiet": True}) as executor:
            session = await executor.session()
            result = await session.execute("import os; os.system('trap \"\" INT; sleep 600')", timeout=TIMEOUT_OF_SILENT)
            assert (result.ended_by, result.state) == ("command", "kept")
            assert session._supervisor.kernel is not None
            assert await session._supervisor.kernel.interrupter.read_stacks() == ""

    asyncio.run(main())
