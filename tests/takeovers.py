"""Kernels that outlive their owner: a process that owns one and is killed, and what a new owner gets of it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio

from kernelexec.collector import Collector
from kernelexec.config import Config, load
from kernelexec.kernel import Kernel
from kernelexec.provisioning import Handover, LocalPlace, RuntimeDirectory, stored_identity

BOUND = 60
PATIENCE = 30.0
OWNER = """
import asyncio, sys
from pathlib import Path
from tests.takeovers import owned
asyncio.run(owned(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])))
"""


def settings(budget: float = BOUND) -> Config:
    return load("local", config={"output": {"stream_bytes": 64 * 1024}, "budgets": {"start": budget}})


def kernel_at(place: Path, patience: float = PATIENCE, budget: float = BOUND) -> Kernel:
    config = settings(budget)
    runtime = RuntimeDirectory(place / "1")
    local = LocalPlace(config, str(place), patience)
    return Kernel(config, runtime, cwd=str(place), identity=stored_identity(place), place=local)


async def owned(place: Path, code: str, patience: float) -> None:
    """Start a kernel, run a cell in it, say all that it prints, and then do nothing any more."""
    async with anyio.create_task_group() as tasks:
        kernel = kernel_at(place, patience)
        await kernel.start(tasks)
        first = kernel.submit("x = 1", Collector(settings().output), Collector(settings().output))
        await first.ended.wait()
        heard = Collector(settings().output, on_output=lambda output: print(repr(output)[:100], flush=True))
        print("owned", flush=True)
        execution = kernel.submit(code, heard, Collector(settings().output), msg_id="cell")
        await execution.ended.wait()
        print("ended", flush=True)
        await anyio.sleep_forever()


@contextmanager
def owner_of(place: Path, code: str, patience: float = PATIENCE) -> Iterator[subprocess.Popen[str]]:
    """A process that owns a kernel in which a cell runs."""
    command = [sys.executable, "-c", OWNER, str(place), code, str(patience)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as owner:
        try:
            assert owner.stdout is not None
            assert owner.stdout.readline() == "owned\n"
            yield owner
        finally:
            owner.kill()


def kill_after(owner: subprocess.Popen[str], text: str) -> None:
    """Kill an owner once it has heard something of its cell."""
    assert owner.stdout is not None
    for line in owner.stdout:
        if text in line:
            break
    owner.kill()
    owner.wait()


@asynccontextmanager
async def taken_over(place: Path) -> AsyncIterator[Kernel]:
    """The kernel whose owner died, under this process."""
    handover = Handover.read(place)
    assert handover is not None
    with anyio.fail_after(BOUND):
        async with anyio.create_task_group() as tasks:
            kernel = kernel_at(place)
            await kernel.take_over(tasks, handover)
            try:
                yield kernel
            finally:
                await kernel.stop(0)


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + BOUND
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def gone(pid: int) -> bool:
    """Whether a process has ended, waited for or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def kernel_pid(place: Path) -> int:
    handover = Handover.read(place)
    assert handover is not None
    pid = handover.provisioner["pid"]
    assert isinstance(pid, int)
    return pid
