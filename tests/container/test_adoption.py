"""A server that was killed: the next one in the same workspace goes on with its containers, or leaves nothing of them."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kernelexec import AsyncExecutor, CheckpointRefused, InvalidRequest
from kernelexec.docker.client import Engine, ListedContainer
from kernelexec.docker.labels import RUNTIME, SESSION, WORKSPACE
from kernelexec.events import Event, SessionAdopted
from kernelexec.provisioning.runtime.discovery import HANDOVER_FILE
from tests.support.engine import IMAGE, needs_engine
from tests.support.killed_server import killed_server
from tests.support.language_image import language_image
from tests.support.pace import until
from tests.support.remains import runtime_directories

pytestmark = needs_engine

#: Counts while it has no owner too, and runs until it is told to end, so that the next owner finds it running at any time.
COUNTING = """
import os, time
for n in range(40):
    print(n, flush=True)
    time.sleep(0.05)
while not os.path.exists('go'):
    time.sleep(0.01)
x += 1
x
"""
#: Starts programs one after the other, and shows by a file that it knows of its owner's end.
STARTING = """
import subprocess, sys, threading, time
owner = next(module for name, module in sys.modules.items() if name.endswith(".owner"))
def tell():
    while owner.has_owner.is_set():
        time.sleep(0.01)
    open('alone', 'w').close()
threading.Thread(target=tell, daemon=True).start()
for n in range(20):
    print(n, flush=True)
    assert subprocess.call(["true"]) == 0
    !true
    time.sleep(0.1)
"""

BILINGUAL = """
import os, signal, sys
from kernelexec import Executor

executor = Executor("container", workspace=sys.argv[1], config={"container": {"image": sys.argv[2]}, "preload": []}).__enter__()
session = executor.session("a")
session.execute("x = 41")
session.execute("y=42", language="bash")
os.kill(os.getpid(), signal.SIGKILL)
"""


def labelled(workspace: Path) -> list[ListedContainer]:
    with Engine() as engine:
        return engine.list_containers(f"{WORKSPACE}={workspace}")


async def swept(workspace: Path) -> None:
    """Wait until nothing of a workspace is left."""
    await asyncio.to_thread(until, lambda: not labelled(workspace))


async def only(session: str, workspace: Path) -> None:
    """Wait until one session of a workspace is left."""
    await asyncio.to_thread(until, lambda: [actual.labels[SESSION] for actual in labelled(workspace)] == [session])


def options_of(**options: object) -> dict[str, object]:
    return {"container": {"image": IMAGE, **options}}


def test_the_next_server_goes_on_with_both_sessions_and_the_running_cell(tmp_path: Path) -> None:
    killed_server(tmp_path, COUNTING)
    before = {actual.id for actual in labelled(tmp_path)}

    async def run() -> None:
        async with AsyncExecutor("container", workspace=tmp_path, config=options_of()) as executor:
            assert executor.sessions() == ("a", "b")
            a, b = await executor.session("a"), await executor.session("b")
            assert (await b.execute("answer()")).text == "42"
            (running,) = a.executions()
            assert (await a.wait_for(running, wait=0.01)).result is None
            (a.workspace / "go").touch()
            result = (await a.wait_for(running)).result
            assert result is not None
            assert (result.status, result.state, result.isolation) == ("ok", "kept", "container")
            assert result.text == "".join(f"{n}\n" for n in range(40)) + "42"
            again = await a.execute("1", request_id="twice")
            assert (again.text, again.kernel_epoch) == ("1", 1)
            assert await a.checkpoints() == ()
            with pytest.raises(CheckpointRefused, match="was started by another process"):
                await a.checkpoint()
            with pytest.raises(InvalidRequest, match="was started by another process"):
                await a.undo()
            assert (await a.execute("x")).text == "42"
            assert {actual.id for actual in labelled(tmp_path)} == before

    asyncio.run(run())
    assert labelled(tmp_path) == []
    until(lambda: runtime_directories() == set())
    cells = json.loads((tmp_path / "a" / "a.ipynb").read_text())["cells"]
    assert [cell["execution_count"] for cell in cells] == [1, 2, 3, 4]


@pytest.mark.nightly
def test_processes_started_between_owners_wait_for_the_next_owner(tmp_path: Path) -> None:
    killed_server(tmp_path, STARTING)
    until((tmp_path / "a" / "alone").exists)

    async def run() -> None:
        async with AsyncExecutor("container", workspace=tmp_path, config=options_of()) as executor:
            session = await executor.session("a")
            (running,) = session.executions()
            result = (await session.wait_for(running)).result
            assert result is not None
            assert (result.status, result.text) == ("ok", "".join(f"{n}\n" for n in range(20)))

    asyncio.run(run())


@pytest.mark.nightly
def test_a_retry_of_the_killed_servers_request_joins_the_running_cell(tmp_path: Path) -> None:
    killed_server(tmp_path, COUNTING)

    async def run() -> None:
        async with AsyncExecutor("container", workspace=tmp_path, config=options_of()) as executor:
            a = await executor.session("a")
            (running,) = a.executions()
            calls = [asyncio.ensure_future(a.execute(COUNTING, request_id="once")) for _ in range(5)]
            assert (await a.wait_for(running, wait=0.01)).result is None
            (a.workspace / "go").touch()
            results = await asyncio.gather(*calls)
            assert {result.execution_id for result in results} == {running}
            assert (await a.execute("x")).text == "42"

    asyncio.run(run())


def test_without_adoption_nothing_labelled_is_left(tmp_path: Path) -> None:
    killed_server(tmp_path, orphan_seconds=0)

    async def run() -> None:
        async with AsyncExecutor("container", workspace=tmp_path, config=options_of(orphan_seconds=0)) as executor:
            assert executor.sessions() == ()
            await swept(tmp_path)
            assert (await (await executor.session("a")).execute("'x' in globals()")).text == "False"

    asyncio.run(run())
    assert labelled(tmp_path) == []


@pytest.mark.nightly
def test_an_owner_that_adopts_nothing_removes_what_waits(tmp_path: Path) -> None:
    killed_server(tmp_path)

    async def run() -> None:
        async with AsyncExecutor("container", workspace=tmp_path, config=options_of(orphan_seconds=0)) as executor:
            assert executor.sessions() == ()
            await swept(tmp_path)

    asyncio.run(run())


@pytest.mark.nightly
def test_a_kernel_that_waits_in_vain_ends_by_itself(tmp_path: Path) -> None:
    killed_server(tmp_path, orphan_seconds=1)
    until(lambda: not any(actual.running for actual in labelled(tmp_path)))

    async def run() -> None:
        async with AsyncExecutor("container", workspace=tmp_path, config=options_of()) as executor:
            assert executor.sessions() == ()
            await swept(tmp_path)

    asyncio.run(run())


@pytest.mark.nightly
def test_a_container_that_was_never_ready_is_removed_by_the_next_owner(tmp_path: Path) -> None:
    killed_server(tmp_path)
    [unready] = [actual for actual in labelled(tmp_path) if actual.labels[SESSION] == "b"]
    Path(unready.labels[RUNTIME]).parent.joinpath(HANDOVER_FILE).unlink()

    async def run() -> None:
        async with AsyncExecutor("container", workspace=tmp_path, config=options_of()) as executor:
            assert executor.sessions() == ("a",)
            await only("a", tmp_path)

    asyncio.run(run())
    assert labelled(tmp_path) == []


@pytest.mark.nightly
def test_a_container_whose_workspace_is_gone_is_removed_by_the_next_owner(tmp_path: Path) -> None:
    killed_server(tmp_path)
    shutil.rmtree(tmp_path / "b")

    async def run() -> None:
        async with AsyncExecutor("container", workspace=tmp_path, config=options_of()) as executor:
            assert executor.sessions() == ("a",)
            await only("a", tmp_path)

    asyncio.run(run())
    assert labelled(tmp_path) == []


@pytest.mark.nightly
def test_the_report_on_an_adopted_container_is_of_its_own_settings(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    killed_server(tmp_path, network="bridge", mounts=[{"source": str(tmp_path / "shared")}])
    names = {actual.labels[SESSION]: actual.id[:12] for actual in labelled(tmp_path)}
    events: list[Event] = []

    async def run() -> None:
        async with AsyncExecutor(
            "container", workspace=tmp_path, config=options_of(name="box"), hooks=[events.append]
        ) as executor:
            [adopted, *_] = [event.container for event in events if isinstance(event, SessionAdopted)]
            assert adopted is not None
            assert (adopted.id, adopted.network) == (names["a"], "bridge")
            assert [target for _, target, _ in adopted.mounts] == [str(tmp_path / "a"), str(tmp_path / "shared")]
            assert adopted.name == (await (await executor.session("a")).stats()).container_name

    asyncio.run(run())


@pytest.mark.nightly
def test_an_adopted_session_keeps_the_paths_that_its_container_has(tmp_path: Path) -> None:
    killed_server(tmp_path)

    async def run() -> None:
        async with AsyncExecutor("container", workspace=tmp_path, config=options_of(layout="classic")) as executor:
            b = await executor.session("b")
            assert (await b.execute_command("pwd", work_dir=".")).text == f"{tmp_path / 'b'}\n"
            await b.set_limits(cpus=0.5)
            await b.restart()
            assert (await b.execute_command("pwd")).text == f"{tmp_path / 'b'}\n"
            fresh = await executor.session("c")
            assert (await fresh.execute_command("pwd")).text == "/workspace\n"

    asyncio.run(run())


@pytest.mark.nightly
def test_a_kernel_of_another_language_that_ended_with_its_owner_is_called_lost(tmp_path: Path) -> None:
    image = language_image(IMAGE)
    killed = subprocess.run([sys.executable, "-c", BILINGUAL, str(tmp_path), image], check=False)
    assert killed.returncode == -signal.SIGKILL

    async def run() -> None:
        async with AsyncExecutor("container", workspace=tmp_path, config={"container": {"image": image}}) as executor:
            session = await executor.session("a")
            assert (await session.execute("x")).text == "41"
            reported = await session.execute("echo [$y]", language="bash")
            assert (reported.text, reported.state, reported.cause, reported.kernel_epoch) == ("[]\n", "lost", "killed", 2)
            assert reported.notes[0] == "Ran in a new kernel (epoch 2): the one before ended (killed)."
            after = await session.execute("echo [$y]", language="bash")
            assert (after.state, after.notes) == ("kept", ())

    asyncio.run(run())


@pytest.mark.nightly
def test_other_workspaces_and_what_is_not_ours_are_left_alone(tmp_path: Path) -> None:
    item, other = tmp_path / "one", tmp_path / "other"
    killed_server(item)
    with Engine() as engine:
        foreign = engine.create(None, {"image": IMAGE, "command": ["sleep", "600"]}, {"init": True})
        engine.start(foreign)
    try:
        waiting = {actual.id for actual in labelled(item)}

        async def run() -> None:
            async with AsyncExecutor("container", workspace=other, config=options_of(orphan_seconds=0)) as executor:
                await executor.session("b")
                assert {actual.id for actual in labelled(item) if actual.running} == waiting

        asyncio.run(run())
        with Engine() as engine:
            assert engine.inspect_container(foreign).running
    finally:
        with Engine() as engine:
            for container in (foreign, *(actual.id for actual in labelled(item))):
                engine.remove(container)


@pytest.mark.nightly
@pytest.mark.parametrize("takers", [2])
def test_of_two_servers_that_start_at_once_one_goes_on(tmp_path: Path, takers: int) -> None:
    killed_server(tmp_path)

    async def run() -> None:
        executors = [AsyncExecutor("container", workspace=tmp_path, config=options_of()) for _ in range(takers)]
        try:
            await asyncio.gather(*(executor.__aenter__() for executor in executors))
            assert sorted(executor.sessions() for executor in executors) == [(), ("a", "b")]
        finally:
            for executor in executors:
                await executor.__aexit__(None, None, None)

    asyncio.run(run())
    assert labelled(tmp_path) == []
