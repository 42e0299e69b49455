"""Installations whose caller is cancelled: their containers are removed, even if they were just being created."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kernelexec import AsyncExecutor
from kernelexec.docker.client import Engine
from kernelexec.docker.labels import ROOT
from tests.support.engine import MINIMAL, containers, needs_engine
from tests.support.night import at_night

pytestmark = needs_engine


@pytest.mark.parametrize("cancellations", [*at_night(1), 2])
def test_a_cancelled_installation_leaves_no_container(tmp_path: Path, cancellations: int) -> None:
    async def steps() -> tuple[set[str], set[str]]:
        async with AsyncExecutor("container", workspace=tmp_path, config={"container": {"image": MINIMAL}}) as executor:
            session = await executor.session("a")
            assert (await session.execute("1")).ok
            with Engine.acquire() as engine:
                root = str(executor.directory)
                own = _names(engine, root)
                for delay in (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4):
                    installing = asyncio.create_task(session.install("no-such-thing", wheels=tmp_path))
                    await asyncio.sleep(delay)
                    was_done = installing.done()
                    for _ in range(cancellations):
                        installing.cancel()
                        await asyncio.sleep(0)
                    (result,) = await asyncio.gather(installing, return_exceptions=True)
                    assert was_done or isinstance(result, asyncio.CancelledError)
                await asyncio.sleep(1)  # an abandoned thread would have created its container by now, on a quick machine
                assert len(own) == 1
                return own, _names(engine, root)

    before, after = asyncio.run(steps())
    assert after == before


def _names(engine: Engine, root: str) -> set[str]:
    return {each["Names"][0] for each in containers(engine, f"{ROOT}={root}")}
