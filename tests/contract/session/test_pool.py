"""Idle kernels: a session takes one that serves already, and it looks like a kernel of the session's own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from kernelexec import AsyncExecutor, AsyncSession, Executor
from kernelexec.config import load
from kernelexec.docker.client import Engine
from kernelexec.docker.labels import WORKSPACE
from kernelexec.errors import CapacityReached, Closed, InvalidConfig
from kernelexec.executor.pool import KernelPool, WarmSlot
from tests.support.engine import MINIMAL, containers, needs_engine
from tests.support.pace import slow, until
from tests.support.remains import marked_processes, runtime_directories

BOUND = 60
PID = "import os; os.getpid()"
CLASSIC = {"image": MINIMAL, "layout": "classic"}
KINDS = [
    pytest.param("local", {}, id="local"),
    pytest.param("local", {"fork_server": False}, id="local without fork server", marks=pytest.mark.nightly),
    pytest.param("container", {"container": CLASSIC}, id="container", marks=needs_engine),
]


def pool_of(executor: AsyncExecutor) -> KernelPool:
    pool = executor._registry._pool
    assert pool is not None
    return pool


async def filled(executor: AsyncExecutor, size: int, *, without: Iterable[WarmSlot] = ()) -> list[WarmSlot]:
    """The idle kernels, once there are so many, and none of those."""
    async with asyncio.timeout(BOUND):
        while len(actual := list(pool_of(executor)._ready)) != size or set(actual) & set(without):  # noqa: ASYNC110 - no event says it
            await asyncio.sleep(0.01)
    return actual


def run(tmp_path: Path, main: Callable[[AsyncExecutor], Awaitable[None]], isolation: str = "local", **config: Any) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(2 * BOUND), AsyncExecutor(isolation, workspace=tmp_path / "w", config=config) as executor:
            await main(executor)

    asyncio.run(bounded())


async def value(session: AsyncSession, code: str) -> str:
    return (await session.execute(code)).text.strip()


@pytest.mark.parametrize(("isolation", "config"), KINDS)
def test_a_session_takes_an_idle_kernel_and_is_at_home_in_it(tmp_path: Path, isolation: str, config: dict[str, Any]) -> None:
    before, names = runtime_directories(), "ab" if isolation == "local" else "a"

    async def main(executor: AsyncExecutor) -> None:
        slots = await filled(executor, len(names))
        for name, slot in zip(names, slots, strict=True):
            session = await executor.session(name)
            assert session._supervisor.kernel is slot.kernel
            assert await value(session, "Out, [name for name in globals() if name in ('x', 'os')]") == "({}, [])"
            directory = str(session.workspace) if isolation == "local" else "/workspace"
            second = await session.execute("open('made', 'w').close(); import os; os.getcwd()")
            assert (second.execution_count, second.text, second.files) == (2, repr(directory), ("made",))
            assert (second.notes, second.kernel_epoch) == ((), 1)
            assert (await session.execute_command("pwd")).stdout == f"{directory}\n"
            assert session.workspace == tmp_path / "w" / name
            assert (session.workspace / "made").exists()
            await session.execute("x = 1")
            await session.restart()
            again = await session.execute("'x' in globals()")
            assert (again.text, again.state, again.kernel_epoch) == ("False", "lost", 2)
        await filled(executor, len(names), without=slots)

    run(tmp_path, main, isolation, pool={"size": len(names)}, **config)
    until(lambda: marked_processes() == {} and runtime_directories() == before)
    assert sorted(path.name for path in (tmp_path / "w").iterdir()) == [".journals", *names]


def test_the_environment_is_that_of_the_moment_in_which_the_session_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EARLIER", "1")

    async def main(executor: AsyncExecutor) -> None:
        [slot] = await filled(executor, 1)
        monkeypatch.delenv("EARLIER")
        monkeypatch.setenv("LATER", "2")
        session = await executor.session()
        assert session._supervisor.kernel is slot.kernel
        assert await value(session, "import os; os.getenv('EARLIER'), os.getenv('LATER')") == "(None, '2')"
        assert (await session.execute_command("echo $EARLIER-$LATER")).stdout == "-2\n"

    run(tmp_path, main, pool={"size": 1})


def test_one_that_dies_is_replaced_and_reaches_no_session(tmp_path: Path) -> None:
    async def main(executor: AsyncExecutor) -> None:
        slots = await filled(executor, 2)
        pid = slots[0].kernel.provisioner.pid  # type: ignore[union-attr]
        assert pid
        os.kill(pid, signal.SIGKILL)
        assert await value(await executor.session(), PID) != str(pid)
        await filled(executor, 2, without=slots[:1])

    run(tmp_path, main, pool={"size": 2})


def test_one_that_does_not_answer_is_ended_and_another_started(tmp_path: Path) -> None:
    async def main(executor: AsyncExecutor) -> None:
        [slot] = await filled(executor, 1)
        pid = slot.kernel.provisioner.pid  # type: ignore[union-attr]
        assert pid
        os.kill(pid, signal.SIGSTOP)
        result = await (await executor.session()).execute(PID)
        assert (result.text.strip() != str(pid), result.kernel_epoch, result.state) == (True, 1, "kept")

    run(tmp_path, main, pool={"size": 1})
    until(lambda: marked_processes() == {})


def test_none_gets_older_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelexec.executor.pool._MAX_AGE", slow(2))

    async def main(executor: AsyncExecutor) -> None:
        slots = await filled(executor, 2)
        await filled(executor, 2, without=slots)
        assert all(slot.kernel.death is not None for slot in slots)

    run(tmp_path, main, pool={"size": 2})


def test_no_more_are_started_than_their_memory_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelexec.executor.pool._SHARE", 2**40)

    async def main(executor: AsyncExecutor) -> None:
        await filled(executor, 1)
        await asyncio.sleep(1)  # so that more could come, if they did
        [slot] = await filled(executor, 1)
        assert slot.memory_bytes > 2**20

    run(tmp_path, main, pool={"size": 3})


def test_without_an_idle_one_the_policy_decides(tmp_path: Path) -> None:
    async def at_once(executor: AsyncExecutor, count: int) -> list[AsyncSession | BaseException]:
        await filled(executor, 1)
        return await asyncio.gather(*(executor.session(f"s{n}") for n in range(count)), return_exceptions=True)

    async def temporary(executor: AsyncExecutor) -> None:
        [slot] = await filled(executor, 1)
        sessions = await at_once(executor, 3)
        kernels = [session._supervisor.kernel for session in sessions if isinstance(session, AsyncSession)]
        assert len(kernels) == 3
        assert slot.kernel in kernels

    async def fail_fast(executor: AsyncExecutor) -> None:
        *_, refused = sorted(await at_once(executor, 3), key=lambda actual: isinstance(actual, BaseException))
        assert isinstance(refused, CapacityReached)
        assert "fail_fast" in str(refused)
        await filled(executor, 1)
        assert (await executor.session("later")).kernel_epoch == 1

    async def wait(executor: AsyncExecutor) -> None:
        sessions = await at_once(executor, 3)
        assert [type(session) for session in sessions] == [AsyncSession] * 3

    for main in (temporary, fail_fast, wait):
        run(tmp_path / main.__name__, main, pool={"size": 1, "policy": main.__name__})


def test_a_caller_that_waits_in_vain_gets_an_error(tmp_path: Path) -> None:
    async def main(executor: AsyncExecutor) -> None:
        with pytest.raises(CapacityReached, match="No idle kernel came within 1"):
            await executor.session()

    run(tmp_path, main, pool={"size": 1, "policy": "wait"}, python="/bin/false", budgets={"start": 1.0})


def test_a_waiting_caller_does_not_hold_up_the_end_of_the_executor(tmp_path: Path) -> None:
    async def main(executor: AsyncExecutor) -> None:
        waiting = asyncio.create_task(executor.session())
        while not pool_of(executor)._waiting:  # noqa: ASYNC110 - no event says it
            await asyncio.sleep(0.01)
        await executor.close()
        with pytest.raises(Closed):  # not CapacityReached, after the time of budgets.start
            await waiting

    run(tmp_path, main, pool={"size": 1, "policy": "wait"}, python="/bin/false", budgets={"start": BOUND})


def test_idle_ones_end_with_a_program_that_is_done_at_once(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path, config={"pool": {"size": 5}}):
        pass
    until(lambda: marked_processes() == {})


def test_an_executor_that_is_entered_again_fills_its_pool_again(tmp_path: Path) -> None:
    executor = AsyncExecutor("local", workspace=tmp_path, config={"pool": {"size": 1, "policy": "wait"}})

    async def main(turn: int) -> None:
        async with executor:
            [slot] = await filled(executor, 1)
            assert (await executor.session(f"a{turn}"))._supervisor.kernel is slot.kernel
            assert (await executor.session(f"b{turn}")).kernel_epoch == 1

    for in_another_loop in range(2):
        asyncio.run(main(in_another_loop))
    until(lambda: marked_processes() == {})


@needs_engine
def test_an_idle_container_has_imported_what_is_preloaded_and_no_name_says_so(tmp_path: Path) -> None:
    async def main(executor: AsyncExecutor) -> None:
        await filled(executor, 1)
        session = await executor.session()
        reported = await value(session, "import sys; 'statistics' in sys.modules, 'nothing' in sys.modules, len(In)")
        assert reported == "(True, False, 2)"
        assert [variable.name for variable in await session.variables()] == ["sys"]

    run(tmp_path, main, "container", pool={"size": 1}, container=CLASSIC, preload=["statistics", "nothing.of.that.name"])


@needs_engine
def test_a_container_has_the_name_of_its_session_and_a_workspace_that_was_there_is_kept(tmp_path: Path) -> None:
    (tmp_path / "w" / "old").mkdir(parents=True)
    (tmp_path / "w" / "old" / "data").write_text("1")
    (tmp_path / "other").mkdir()

    async def main(executor: AsyncExecutor) -> None:
        slots = await filled(executor, 1)
        session = await executor.session("new")
        assert session._supervisor.kernel is slots[0].kernel
        container = slots[0].kernel.container
        assert container is not None
        assert container.name.startswith("kernelexec-new-")
        assert (str(session.workspace), "/workspace", False) in container.mounts
        cold = "Its kernel started cold: an idle one has a workspace already"
        for name, work_dir in (("old", None), ("chosen", tmp_path / "other")):
            [note] = (await (await executor.session(name, work_dir=work_dir)).execute("1")).notes
            assert note.startswith(cold)
        assert (await executor.session("old")).workspace.joinpath("data").read_text() == "1"

    run(tmp_path, main, "container", pool={"size": 1}, container=CLASSIC)


SERVER = """
import asyncio, os, signal, sys
from kernelexec import AsyncExecutor

async def serve():
    config = {"pool": {"size": 1}, "container": {"image": sys.argv[2], "layout": "classic"}}
    async with AsyncExecutor("container", workspace=sys.argv[1], config=config) as executor:
        while len(executor._registry._pool._ready) < 1:
            await asyncio.sleep(0.01)
        session = await executor.session("a")
        await session.execute("x = 41")
        while len(executor._registry._pool._ready) < 1:
            await asyncio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(serve())
"""


@needs_engine
def test_after_its_owners_death_a_session_is_taken_over_and_idle_containers_are_removed(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", SERVER, str(tmp_path / "w"), MINIMAL], check=False)

    async def main(executor: AsyncExecutor) -> None:
        result = await (await executor.session("a")).execute("x + 1")
        assert (result.text, result.state) == ("42", "kept")
        async with asyncio.timeout(BOUND):
            while containers_of(tmp_path) != ["a"] or (tmp_path / "w" / ".pool").exists():  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.1)

    run(tmp_path, main, "container", container=CLASSIC)
    assert containers_of(tmp_path) == []


def containers_of(tmp_path: Path) -> list[str]:
    """The sessions, by their containers' names, of those of this workspace that there are."""
    with Engine() as engine:
        actual = containers(engine, f"{WORKSPACE}={tmp_path / 'w'}")
    return sorted(container["Names"][0].removeprefix("/kernelexec-").split("-")[0] for container in actual)


REFUSED = {
    "at its own path": ({"container": {"layout": "host"}}, "Set container.layout='classic'"),
    "named": ({"container": {"layout": "classic", "name": "mine"}}, "set only one of them"),
    "negative": ({"pool": {"size": -1}}, "pool.size"),
    "policy": ({"pool": {"policy": "fail"}}, "pool.policy"),
}


@pytest.mark.parametrize(("config", "message"), REFUSED.values(), ids=REFUSED)
def test_invalid_pools_are_refused_before_anything_starts(config: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        load("container", config={"pool": {"size": 1}, **config})
    assert message in str(refused.value)
