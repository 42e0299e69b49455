"""The container engine stops, crashes and comes back: a result, a clear error, and then a new kernel; nothing is left."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelexec import AsyncExecutor, ExecutionResult, IsolationUnavailable
from kernelexec.docker.client import Engine
from kernelexec.docker.labels import OWNER
from kernelexec.errors import KernelStartFailed
from tests.support.engine import MINIMAL, needs_engine
from tests.support.private_engine import OwnEngine, own_engine

pytestmark = [needs_engine, pytest.mark.timeout(600)]  # an engine of its own, which first loads an image

OPTIONS = {"container": {"image": MINIMAL}}


@pytest.fixture(scope="module")
def engine() -> Iterator[OwnEngine]:
    with own_engine() as own:
        own.take(MINIMAL)
        yield own


@pytest.fixture
def chosen(engine: OwnEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[OwnEngine]:
    monkeypatch.setenv("DOCKER_HOST", engine.host)
    yield engine
    if not engine.answers():
        engine.start()
    with Engine() as client:
        assert client.list_containers(OWNER) == []


@pytest.mark.nightly
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_the_engine_goes_away_and_comes_back(chosen: OwnEngine, tmp_path: Path, signum: int) -> None:
    async def run() -> None:
        async with AsyncExecutor("container", workspace=tmp_path, config=OPTIONS) as executor:
            session = await executor.session("a")
            await session.execute("x = 1")
            begun = asyncio.Event()
            code = "import time\nprint('before\\n', end='', flush=True)\ntime.sleep(600)"  # one write: heard whole
            cell = asyncio.ensure_future(session.execute(code, on_output=lambda _: begun.set(), timeout=600))
            await begun.wait()
            await asyncio.to_thread(chosen.stop, signum)
            if signum == signal.SIGKILL:  # the kernels of an engine that crashed live until it is back
                assert not cell.done()
                await asyncio.to_thread(chosen.start)
            result = await cell
            assert (result.status, result.state, result.cause) == ("error", "lost", "killed")
            assert (result.stdout, result.lost_names) == ("before\n", ("x",))
            if signum == signal.SIGTERM:
                with pytest.raises(KernelStartFailed, match="Is Docker"):
                    await session.execute("1")
                await asyncio.to_thread(chosen.start)
            following: ExecutionResult = await session.execute("'x' in globals()")
            assert following.text == "False"
            assert "x" in following.notes[0]

    asyncio.run(run())


@pytest.mark.nightly
def test_an_executor_ends_while_the_engine_is_away(chosen: OwnEngine, tmp_path: Path) -> None:
    async def run() -> None:
        async with AsyncExecutor("container", workspace=tmp_path, config=OPTIONS) as executor:
            session = await executor.session("a")
            await session.execute("x = 1")
            await asyncio.to_thread(chosen.stop, signal.SIGKILL)
        await asyncio.to_thread(chosen.start)
        async with AsyncExecutor("container", workspace=tmp_path, config=OPTIONS) as executor:
            await executor.session("b")  # what was left is removed when the engine is back

    asyncio.run(run())


def test_no_executor_is_made_where_no_engine_answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nope")
    with pytest.raises(IsolationUnavailable, match=r"no socket at .*nope.*isolation=\"local\".*KERNELEXEC_USE_DOCKER=0"):
        AsyncExecutor("container")
