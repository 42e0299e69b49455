"""A container that another program ends or removes: the result says so, and the next cell runs in a new one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kernelexec import AsyncExecutor, AsyncSession
from kernelexec.docker.client import Engine
from kernelexec.docker.labels import ROOT
from tests.support.engine import IMAGE, needs_engine
from tests.support.night import at_night

pytestmark = needs_engine

OPTIONS = {"container": {"image": IMAGE}}


def containers_of(executor: AsyncExecutor) -> list[str]:
    with Engine() as engine:
        return [actual.id for actual in engine.list_containers(f"{ROOT}={executor._directories.root}")]


async def remove(executor: AsyncExecutor) -> None:
    (container,) = await asyncio.to_thread(containers_of, executor)
    with Engine() as engine:
        await asyncio.to_thread(engine.remove, container)


async def kill(executor: AsyncExecutor) -> None:
    (container,) = await asyncio.to_thread(containers_of, executor)
    with Engine() as engine:
        await asyncio.to_thread(engine.signal, container, 9)


async def goes_on(session: AsyncSession, *, reported: bool) -> None:
    following = await session.execute("'x' in globals()")
    assert (following.text, following.state) == ("False", "kept" if reported else "lost")
    assert "x" in following.notes[0]


@pytest.mark.parametrize("end", [remove, *at_night(kill)])
def test_mid_cell(tmp_path: Path, end: Callable[[AsyncExecutor], Awaitable[None]]) -> None:
    async def run() -> None:
        async with AsyncExecutor("container", workspace=tmp_path, config=OPTIONS) as executor:
            session = await executor.session("a")
            await session.execute("x = 1")
            begun = asyncio.Event()
            code = "import time\nprint('before\\n', end='', flush=True)\ntime.sleep(600)"  # one write: heard whole
            cell = asyncio.ensure_future(session.execute(code, on_output=lambda _: begun.set()))
            await begun.wait()
            await end(executor)
            result = await cell
            assert (result.status, result.exit_code, result.state, result.cause) == ("error", 137, "lost", "killed")
            assert (result.stdout, result.lost_names) == ("before\n", ("x",))
            await goes_on(session, reported=True)

    asyncio.run(run())


@pytest.mark.parametrize("end", [*at_night(remove), kill])
def test_between_cells(tmp_path: Path, end: Callable[[AsyncExecutor], Awaitable[None]]) -> None:
    async def run() -> None:
        async with AsyncExecutor("container", workspace=tmp_path, config=OPTIONS) as executor:
            session = await executor.session("a")
            await session.execute("x = 1")
            await end(executor)
            await goes_on(session, reported=False)

    asyncio.run(run())
