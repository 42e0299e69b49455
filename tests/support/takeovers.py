"""Kernels that outlive their owner: a process that owns one and is killed, and what a new owner gets of it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from kernelexec import AsyncSession, InputRequest
from kernelexec.config import Config, load
from kernelexec.executor.resources import SessionResources, SessionStart
from kernelexec.kernel import Kernel
from kernelexec.outputs import Collector
from kernelexec.provisioning import Handover, LocalBackend, RuntimeDirectory, load_identity, new_root
from kernelexec.provisioning.runtime.discovery import list_orphaned_sessions
from kernelexec.provisioning.runtime.owned_directory import OwnedDirectory
from kernelexec.records.journal import running_cell
from kernelexec.session.cells.takeover import OrphanedSession

BOUND = 60
PATIENCE = 60.0
OWNER = """
import asyncio, sys
from pathlib import Path
from tests.support.takeovers import owned
asyncio.run(owned(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])))
"""


SESSION_OWNER = """
import asyncio, sys
from pathlib import Path
from tests.support.takeovers import session_owned
asyncio.run(session_owned(Path(sys.argv[1]), sys.argv[2:]))
"""


def settings(budget: float = BOUND) -> Config:
    return load("local", config={"output": {"stream_bytes": 64 * 1024}, "budgets": {"start": budget}})


def kernel_at(location: Path, patience: float = PATIENCE, budget: float = BOUND) -> Kernel:
    config = settings(budget)
    runtime = RuntimeDirectory(location / "1")
    local = LocalBackend(config, str(location), patience)
    return Kernel(config, runtime, cwd=str(location), identity=load_identity(location), backend=local)


async def owned(location: Path, code: str, patience: float) -> None:
    """Start a kernel, run a cell in it, say all that it prints, and then do nothing any more."""
    async with anyio.create_task_group() as tasks:
        kernel = kernel_at(location, patience)
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
def owner_of(location: Path, code: str, patience: float = PATIENCE) -> Iterator[subprocess.Popen[str]]:
    """A process that owns a kernel in which a cell runs."""
    command = [sys.executable, "-c", OWNER, str(location), code, str(patience)]
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
async def taken_over(location: Path) -> AsyncIterator[Kernel]:
    """The kernel whose owner died, under this process."""
    handover = Handover.read(location)
    assert handover is not None
    with anyio.fail_after(BOUND):
        async with anyio.create_task_group() as tasks:
            kernel = kernel_at(location)
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


def kernel_pid(location: Path) -> int:
    handover = Handover.read(location)
    assert handover is not None
    pid = handover.provisioner["pid"]
    assert isinstance(pid, int)
    return pid


def session_settings(workspace: Path) -> Config:
    return load("local", workspace=workspace, config={"output": {"stream_bytes": 64 * 1024}, "budgets": {"timeout": BOUND}})


async def open_no_branch(*_: object) -> None:
    raise AssertionError("only an executor opens branches")


@asynccontextmanager
async def living(
    name: str, config: Config, actual: SessionResources, left: OrphanedSession | None, hooks: Any = ()
) -> AsyncIterator[AsyncSession]:
    """A session as an executor has it, but for its kernels, which outlive this process."""
    location = LocalBackend(config, str(actual.workspace.path), PATIENCE)
    async with anyio.create_task_group() as tasks:
        session = AsyncSession(
            name,
            actual.workspace,
            actual.runtime,
            config,
            hooks,
            record=actual.recorder,
            journal=actual.journal,
            backend=location,
            on_close=lambda _: None,
            open_branch=open_no_branch,
        )
        tasks.start_soon(session.scope.run)
        await session.open(orphan=left)
        try:
            yield session
        finally:
            await session.close()


async def session_owned(workspace: Path, codes: list[str]) -> None:
    """Have a session, run cells in it, the last one under a name, and say where its private directory is, and all it prints."""
    root = OwnedDirectory.claim(new_root())
    config = session_settings(workspace)
    actual = SessionResources.create(SessionStart("a"), root.path, config)
    async with living("a", config, actual, None) as session:
        print(root.path, flush=True)
        for code in codes[:-1]:
            await session.execute(code, request_id=code)
        say = partial(print, flush=True)
        await session.execute(
            codes[-1], request_id="last", on_output=lambda output: say(repr(output)[:100]), on_input=unanswered
        )
        print("ended", flush=True)
        await anyio.sleep_forever()


async def unanswered(request: InputRequest) -> None:
    """Say what a cell asks, and nothing else any more."""
    print("asked", request.prompt, flush=True)
    await anyio.sleep_forever()


@contextmanager
def session_owner(workspace: Path, *codes: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that has a session of cells, and its private directory."""
    command = [sys.executable, "-c", SESSION_OWNER, str(workspace), *codes]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as owner:
        try:
            assert owner.stdout is not None
            yield owner, Path(owner.stdout.readline().strip())
        finally:
            owner.kill()


@asynccontextmanager
async def inherited(workspace: Path, path: Path, hooks: Any = (), *, aged: float = 0) -> AsyncIterator[AsyncSession]:
    """The session of an owner that died, under this process, as an executor would take it over."""
    root = await anyio.to_thread.run_sync(OwnedDirectory.take_over, path)
    assert root is not None
    try:
        config = session_settings(workspace)
        [left] = list_orphaned_sessions(root.path)
        actual = await anyio.to_thread.run_sync(SessionResources.adopt, left, root.path, config)
        assert actual.journal is not None
        flight = await anyio.to_thread.run_sync(running_cell, actual.journal.path)
        flight = flight and replace(flight, began=flight.began - aged)
        async with living(left.name, config, actual, OrphanedSession(left.handover, flight), hooks) as session:
            yield session
    finally:
        await anyio.to_thread.run_sync(root.remove)
