"""What a call over MCP adds to a cell, over stdio and over HTTP, and how many cells a second many agents get."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from fastmcp import Client
from fastmcp.client.transports import StdioTransport, StreamableHttpTransport

from tests.benchmarks.sessions import Found, opened, timed

_COMMAND = ("-m", "kernelexec", "mcp")
_LOCAL = ("--isolation", "local")
_WARM = 20
_SAID = "serving MCP at "


@asynccontextmanager
async def served(directory: str, *options: str, kernels: tuple[str, ...] = _LOCAL) -> AsyncIterator[str]:
    """A server over HTTP, by its address."""
    words = (*_COMMAND, "--workspace", directory, "--http", "--port", "0", *kernels, *options)
    process = await asyncio.create_subprocess_exec(sys.executable, *words, stderr=PIPE)
    assert process.stderr is not None
    try:
        async for line in process.stderr:
            if _SAID in (answer := line.decode()):
                yield answer.partition(_SAID)[2].strip()
                break
    finally:
        process.terminate()
        await process.communicate()


def over_http(url: str, agent: str) -> Client[Any]:
    return Client(StreamableHttpTransport(url, headers={"x-kernelexec-agent": agent}))


async def calls(count: int) -> Found:
    """A cell, from this process and by a tool call over each transport, one after the other in turn, in milliseconds."""
    names = "cell", "cell by MCP, stdio", "cell by MCP, HTTP"
    actual: Found = {name: [] for name in names}
    async with AsyncExitStack() as stack:
        by_stdio, by_http = (stack.enter_context(tempfile.TemporaryDirectory()) for _ in range(2))
        session = await (await stack.enter_async_context(opened())).session()
        transport = StdioTransport(sys.executable, [*_COMMAND, *_LOCAL, "--workspace", by_stdio], keep_alive=False)
        stdio = await stack.enter_async_context(Client(transport))
        http = await stack.enter_async_context(over_http(await stack.enter_async_context(served(by_http)), "one"))
        for number in range(count + _WARM):
            taken = [await timed(lambda: session.execute("1+1"))]
            taken += [await timed(lambda item=item: item.call_tool("execute_code", {"code": "1+1"})) for item in (stdio, http)]  # type: ignore[misc]
            for name, seconds in zip(names, taken, strict=True):
                actual[name] += [seconds] if number >= _WARM else []
    return actual


async def throughput(agents: int, cells: int) -> dict[str, float]:
    """So many agents over HTTP, each with calls one after the other; all at once."""
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(served(stack.enter_context(tempfile.TemporaryDirectory())))
        clients = [await stack.enter_async_context(over_http(url, f"agent {number}")) for number in range(agents)]
        await asyncio.gather(*(client.call_tool("execute_code", {"code": "1+1"}) for client in clients))

        async def work(client: Client[Any]) -> list[float]:
            return [await timed(lambda: client.call_tool("execute_code", {"code": "1+1"})) for _ in range(cells)]

        began = time.perf_counter()
        taken = sorted(item for actual in await asyncio.gather(*map(work, clients)) for item in actual)
        seconds = time.perf_counter() - began
    return {
        "cells a second": len(taken) / seconds,
        "a cell, p50, ms": taken[len(taken) // 2],
        "p95": taken[len(taken) * 95 // 100],
    }
