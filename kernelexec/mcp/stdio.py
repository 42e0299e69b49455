"""Serving one client over stdin and stdout, and ending with all that was started when it leaves or a signal comes."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import anyio

from kernelexec.config import Config
from kernelexec.executor import AsyncExecutor
from kernelexec.mcp.instrumentation import observers
from kernelexec.mcp.run import INTERVAL, until_over
from kernelexec.mcp.stdio_transport import Wire
from kernelexec.mcp.toolsets import EVERYTHING, Offer

if TYPE_CHECKING:
    from fastmcp import FastMCP


async def serve(config: Config, *, interval: float = INTERVAL, offer: Offer = EVERYTHING) -> signal.Signals | None:
    """Serve until stdin ends or a signal comes, and return that signal, with everything closed.

    Nothing but the protocol is written to stdout: from here on the process's own stdout is stderr, and its stdin is empty.

    Raises:
        IsolationUnavailable: containers cannot be had; nothing was served.
        Broken: see ``until_over``.
    """
    over, opening = anyio.Event(), AsyncExecutor(config=config, hooks=observers())
    wire = Wire(on_end=over.set)

    async def speak(executor: AsyncExecutor) -> None:
        from kernelexec.mcp.server import make_server, quiet  # noqa: PLC0415 - a second of imports, while signals are minded

        quiet()
        await _converse(make_server(executor, interval=interval, offer=offer), wire)

    return await until_over(opening, over, speak)


async def _converse(server: FastMCP, wire: Wire) -> None:
    # fastmcp 4.1 can serve stdio only by threads that nothing wakes, so a signal could not end it; its own protocol server
    # takes any pair of streams, and has no other name than this one.
    protocol = server._mcp_server  # noqa: SLF001
    async with server._lifespan_manager(), anyio.create_task_group() as tasks:  # noqa: SLF001 - as its run_stdio_async
        received, sent = wire.open(tasks)
        await protocol.run(received, sent, protocol.create_initialization_options())
        tasks.cancel_scope.cancel()
