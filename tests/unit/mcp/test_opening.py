"""The opening of a server's executor: after the list of tools, and before the first call."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import anyio
import pytest

from kernelexec.errors import KernelStartFailed
from kernelexec.executor.executor import AsyncExecutor
from kernelexec.mcp.run import Opening, ServerRun

pytestmark = pytest.mark.anyio


class FullDisk(AsyncExecutor):
    """An executor without room for its private directory."""

    async def __aenter__(self) -> Self:
        raise KernelStartFailed("no room for the private directory")


@pytest.mark.parametrize("opening", [None, Opening])
async def test_an_executor_that_cannot_be_opened_ends_the_server_with_the_reason(opening: Any, tmp_path: Path) -> None:
    pending = opening and opening()

    async def serve() -> None:
        pending.begin_serving()
        await pending.wait_until_open()

    run = ServerRun(FullDisk("local", workspace=tmp_path), grace=60.0, opening=pending)
    with anyio.fail_after(30), pytest.raises(KernelStartFailed, match="no room"):
        await run.run(serve)


async def test_a_server_that_is_stopped_before_a_request_opens_nothing(tmp_path: Path) -> None:
    opening = Opening()
    run = ServerRun(FullDisk("local", workspace=tmp_path), opening=opening)

    async def serve() -> None:
        opening.begin_serving()
        run.stop.set()

    with anyio.fail_after(30):
        assert await run.run(serve) is None


@pytest.mark.parametrize("request_first", [True, False])
async def test_a_call_waits_until_the_executor_is_open(*, request_first: bool) -> None:
    opening, stop, order = Opening(), anyio.Event(), list[str]()

    async def call() -> None:
        await opening.wait_until_open()
        order.append("call")

    async with anyio.create_task_group() as tasks:
        opening.begin_serving()
        if request_first:
            tasks.start_soon(call)
        await opening.wait_until_wanted(stop)
        order.append("open")
        opening.finish()
        if not request_first:
            tasks.start_soon(call)
    assert order == ["open", "call"]
