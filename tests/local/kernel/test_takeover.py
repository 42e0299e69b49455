"""A kernel whose owner was killed during a cell is taken over by another process, and nothing of the cell is missing."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest
from jupyter_client.blocking.client import BlockingKernelClient

from kernelexec.errors import KernelStartFailed
from kernelexec.kernel import Execution, Kernel
from kernelexec.outputs import Collector
from kernelexec.provisioning import Handover, RuntimeDirectory
from kernelexec.results import DisplayData, Error, Output, Stream
from tests.support.night import at_night
from tests.support.pace import slow
from tests.support.takeovers import BOUND, gone, kernel_at, kernel_pid, kill_after, owner_of, settings, taken_over, wait_until

#: Waits for a file, so that a test says when the cell goes on.
GATE = "import os, time\nwhile not os.path.exists('gate'): time.sleep(0.01)\n"


def resumed(directory: Path, then: Callable[[Kernel, Execution], Awaitable[None]] | None = None) -> tuple[Execution, Collector]:
    """The cell of the owner that died, taken over, when it has ended."""
    collector = Collector(settings().output)

    async def take() -> Execution:
        async with taken_over(directory) as kernel:
            execution = await kernel.client.resume("cell", collector, Collector(settings().output), patience=BOUND)
            assert execution is not None
            if then is not None:
                await then(kernel, execution)
            await execution.ended.wait()
            answer = execution.reply_metadata.get("kernelexec")
            assert isinstance(answer, dict)
            assert answer["token"] == kernel.token
            return execution

    return asyncio.run(take()), collector


def refusal(directory: Path, *, budget: float = BOUND) -> str:
    """Why a kernel is not taken over."""

    async def take() -> str:
        handover = Handover.read(directory)
        assert handover is not None
        async with anyio.create_task_group() as tasks:
            with pytest.raises(KernelStartFailed) as refused:
                await kernel_at(directory, budget=budget).take_over(tasks, handover)
        return str(refused.value)

    return asyncio.run(take())


@contextmanager
def listener(directory: Path) -> Iterator[None]:
    """Another client of a kernel, which has subscribed to all that it publishes."""
    client = BlockingKernelClient(connection_file=str(directory / "1" / "connection.json"))
    client.load_connection_file()
    client.start_channels()
    try:
        while client.get_iopub_msg(timeout=BOUND)["msg_type"] != "iopub_welcome":  # what was sent meanwhile may come first
            pass
        yield
    finally:
        client.stop_channels()


def opener(directory: Path) -> Callable[[Kernel, Execution], Awaitable[None]]:
    async def open_gate(_kernel: Kernel, _execution: Execution) -> None:
        (directory / "gate").touch()

    return open_gate


def test_output_from_before_meanwhile_and_after_is_there_once_and_in_order(short_path: Path) -> None:
    code = "print('before')\ndisplay({'text/plain': 'shown'}, raw=True)\nimport sys; print('told', file=sys.stderr)\n"
    code += "def wait(name):\n  import os, time\n  while not os.path.exists(name): time.sleep(0.01)\n"
    code += "wait('meanwhile'); print('meanwhile'); open('done', 'w').close(); wait('gate'); print('after')\n6 * 7"
    with owner_of(short_path, code) as owner:
        kill_after(owner, "told")
        (short_path / "meanwhile").touch()
        wait_until((short_path / "done").exists)
        execution, collector = resumed(short_path, opener(short_path))
    assert execution.end == "complete"
    *actual, last = collector.outputs()
    expected: list[Output] = [Stream("stdout", "before\n"), DisplayData({"text/plain": "shown"}), Stream("stderr", "told\n")]
    assert actual == [*expected, Stream("stdout", "meanwhile\nafter\n")]
    assert getattr(last, "data", None) == {"text/plain": "42"}
    assert not collector.has_cuts
    assert not (short_path / "1").exists()
    assert Handover.read(short_path) is None


def test_a_cell_that_ended_meanwhile_has_its_end(short_path: Path) -> None:
    with owner_of(short_path, f"print('before')\n{GATE}print('after'); open('over', 'w').close(); 1/0") as owner:
        kill_after(owner, "before")
        (short_path / "gate").touch()
        wait_until((short_path / "over").exists)
        execution, collector = resumed(short_path)
    assert execution.end == "complete"
    assert (execution.reply or {}).get("ename") == "ZeroDivisionError"
    before, error = collector.outputs()
    assert before == Stream("stdout", "before\nafter\n")
    assert isinstance(error, Error)


def test_a_cell_that_ended_before_its_owner_can_be_had_too(short_path: Path) -> None:
    with owner_of(short_path, "print('all')") as owner:
        kill_after(owner, "ended")
        execution, collector = resumed(short_path)
    assert execution.end == "complete"
    assert collector.outputs() == (Stream("stdout", "all\n"),)


@pytest.mark.parametrize("delay", [0, 0.01, *at_night(0.005, 0.015, 0.02, 0.03, 0.05)])
def test_a_cell_that_ends_just_when_it_is_taken_over_loses_nothing(short_path: Path, delay: float) -> None:
    code = f"print('before')\n{GATE.replace('0.01', '0.0005')}for n in range(3000): print(n)\nz = 1; print('after')"

    async def know(kernel: Kernel, execution: Execution) -> None:
        await execution.ended.wait()
        assert {"x", "z"} <= kernel.variable_names.known

    with owner_of(short_path, code) as owner:
        kill_after(owner, "before")
        opening = threading.Timer(delay, (short_path / "gate").touch)
        opening.start()
        execution, collector = resumed(short_path, know)
        opening.join()
    assert execution.end == "complete"
    assert collector.outputs() == (Stream("stdout", "\n".join(["before", *map(str, range(3000)), "after", ""])),)


def test_the_new_owner_interrupts_and_knows_the_variables(short_path: Path) -> None:
    async def interrupt(kernel: Kernel, execution: Execution) -> None:
        assert kernel.variable_names.known == {"x", "y"}
        assert kernel.launcher_info["pid"] == kernel_pid(short_path)
        assert await kernel.interrupter.request_interrupt(execution.msg_id, BOUND)
        await execution.ended.wait()
        await kernel.interrupter.signal(signal.SIGINT)
        following = kernel.submit("print(x + y)", collector := Collector(settings().output), Collector(settings().output))
        await following.ended.wait()
        assert collector.outputs() == (Stream("stdout", "3\n"),)

    with owner_of(short_path, "y = 2; print('runs')\nimport time as _t; _t.sleep(600)") as owner:
        kill_after(owner, "runs")
        execution, collector = resumed(short_path, interrupt)
    assert (execution.reply or {}).get("ename") == "KeyboardInterrupt"
    assert collector.outputs()[0] == Stream("stdout", "runs\n")


def test_requests_to_end_another_cell_do_nothing(short_path: Path) -> None:
    async def interrupt(kernel: Kernel, execution: Execution) -> None:
        interrupter = kernel.interrupter
        await interrupter.kill_processes("another", BOUND)
        assert await interrupter.request_cancel("another", BOUND)
        assert await interrupter.request_interrupt("another", BOUND)
        assert await interrupter.request_interrupt(execution.msg_id, BOUND)

    code = "import asyncio, subprocess\nchild = subprocess.Popen(['sleep', '600'], start_new_session=True)\nprint('runs')\n"
    code += "try: await asyncio.sleep(600)\nexcept asyncio.CancelledError: pass\n"
    code += "print(get_ipython().interrupts, child.poll())"
    with owner_of(short_path, code) as owner:
        kill_after(owner, "runs")
        _, collector = resumed(short_path, interrupt)
    assert collector.outputs() == (Stream("stdout", "runs\n1 None\n"),)


def test_a_client_that_listens_beside_the_owner_does_not_stand_in_the_way(short_path: Path) -> None:
    with owner_of(short_path, f"print('runs')\n{GATE}") as owner, listener(short_path):
        kill_after(owner, "runs")
        execution, collector = resumed(short_path, opener(short_path))
    assert execution.end == "complete"
    assert collector.outputs() == (Stream("stdout", "runs\n"),)


def test_an_unread_flood_goes_on_and_is_bounded_and_reported(short_path: Path) -> None:
    code = f"print('head')\n{GATE}for n in range(100_000): print(str(n).rjust(99))\nopen('over', 'w').close(); print('tail')"
    with owner_of(short_path, code) as owner:
        kill_after(owner, "head")
        (short_path / "gate").touch()
        wait_until((short_path / "over").exists)
        execution, collector = resumed(short_path)
    assert execution.end == "complete"
    text = "".join(output.text for output in collector.outputs() if isinstance(output, Stream))
    assert text.startswith("head\n")
    assert text.endswith("tail\n")
    assert "bytes of output were not kept when the kernel changed its owner" in text
    assert collector.has_cuts
    reported = len("\n[... 9999999 bytes of output were not kept when the kernel changed its owner ...]\n")
    assert collector.total_bytes == pytest.approx(10_000_010 + reported, abs=2)


def test_an_owner_that_is_slow_to_read_when_it_dies_holds_the_cell_up_no_longer(short_path: Path) -> None:
    code = f"print('head')\n{GATE}for n in range(300_000): print(str(n).rjust(99))\nopen('over', 'w').close()"
    with owner_of(short_path, code) as owner:
        assert owner.stdout is not None
        assert "head" in owner.stdout.readline()
        owner.send_signal(signal.SIGSTOP)
        (short_path / "gate").touch()
        threading.Event().wait(0.5)  # what it does not read fills up all that there is between the two
        owner.kill()
        owner.wait()
        wait_until((short_path / "over").exists)
        execution, _ = resumed(short_path)
    assert execution.end == "complete"


def test_a_cell_that_the_kernel_never_got_is_not_known(short_path: Path) -> None:
    async def take() -> None:
        async with taken_over(short_path) as kernel:
            nothing = Collector(settings().output)
            assert await kernel.client.resume("other", nothing, nothing, patience=BOUND) is None
            execution = kernel.submit("print(x)", nothing, nothing)
            await execution.ended.wait()
            assert nothing.outputs() == (Stream("stdout", "1\n"),)

    with owner_of(short_path, "print('runs')") as owner:
        kill_after(owner, "ended")
        asyncio.run(take())


def test_a_death_after_the_takeover_loses_no_text_and_doubles_none(short_path: Path) -> None:
    collector = Collector(settings().output)

    async def take() -> None:
        async with taken_over(short_path) as kernel:
            execution = await kernel.client.resume("cell", collector, Collector(settings().output), patience=BOUND)
            assert execution is not None
            (short_path / "gate").touch()
            await execution.ended.wait()
            assert execution.end == "died"
            assert kernel.death is not None

    with owner_of(short_path, f"print('before')\n{GATE}print('last', flush=True)\nos.kill(os.getpid(), 9)") as owner:
        kill_after(owner, "before")
        asyncio.run(take())
    assert collector.outputs() == (Stream("stdout", "before\nlast\n"),)


def test_a_kernel_without_a_new_owner_ends_with_all_that_it_started(short_path: Path) -> None:
    code = (
        "import subprocess as s; p = s.Popen(['sleep', '600']); print(p.pid, file=open('child', 'w')); print('runs'); p.wait()"
    )
    with owner_of(short_path, code, patience=slow(2)) as owner:
        kill_after(owner, "runs")
        pid, child = kernel_pid(short_path), int((short_path / "child").read_text())
        assert not gone(pid)
        wait_until(lambda: gone(pid) and gone(child))
        assert "has ended" in refusal(short_path)


def test_a_kernel_that_hangs_is_given_up_and_ended(short_path: Path) -> None:
    with owner_of(short_path, "print('runs')") as owner:
        kill_after(owner, "ended")
        pid = kernel_pid(short_path)
        os.kill(pid, signal.SIGSTOP)
        assert "did not serve within 0.5 s" in refusal(short_path, budget=0.5)
        wait_until(lambda: gone(pid))
        assert not (short_path / "1").exists()


def test_a_directory_without_a_kernel_is_not_taken_over(short_path: Path) -> None:
    runtime = RuntimeDirectory(short_path / "1")
    assert runtime.take_over() is None
    runtime.path.mkdir()
    (runtime.path / "owner").symlink_to("/dev/null")
    assert runtime.take_over() is None
    (runtime.path / "owner").unlink()
    os.mkfifo(runtime.path / "owner")
    assert runtime.take_over() is None
    runtime.remove()
