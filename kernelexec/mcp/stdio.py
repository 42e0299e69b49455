"""Serving one client over stdin and stdout, and ending with all that was started when it leaves or a signal comes."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import anyio

from kernelexec.config import Config
from kernelexec.executor import AsyncExecutor
from kernelexec.mcp.wire import Wire

if TYPE_CHECKING:
    from fastmcp import FastMCP

#: Seconds between two tellings of progress of a call that blocks.
INTERVAL = 5.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Broken(RuntimeError):
    """The server ended by itself; the cause is what it ended by."""


async def serve(config: Config, *, interval: float = INTERVAL) -> signal.Signals | None:
    """Serve until stdin ends or a signal comes, and return that signal, with everything closed.

    Nothing but the protocol is written to stdout: from here on the process's own stdout is stderr, and its stdin is empty.

    Raises:
        IsolationUnavailable: containers cannot be had; nothing was served.
        Broken: the server failed; that is a mistake of ours.
    """
    over = anyio.Event()
    told: list[signal.Signals] = []
    failures: list[Exception] = []

    def on_signal(signum: signal.Signals) -> None:
        told.append(signum)
        over.set()

    async def speak(executor: AsyncExecutor) -> None:
        try:
            await _speak(executor, wire, interval)
        except Exception as exc:  # noqa: BLE001 - said by whoever waits
            failures.append(exc)
        over.set()

    opening = AsyncExecutor(config=config)
    loop = asyncio.get_running_loop()
    for signum in _SIGNALS:
        if signal.getsignal(signum) is not signal.SIG_IGN:  # one that this process was started without stays ignored
            loop.add_signal_handler(signum, on_signal, signum)
    wire = Wire(on_end=over.set)
    async with anyio.create_task_group() as tasks:
        async with opening as executor:
            tasks.start_soon(speak, executor)
            await over.wait()
        tasks.cancel_scope.cancel()
    if failures:
        message = f"The server ended by itself: {failures[0]!r:.500}"
        raise Broken(message) from failures[0]
    return told[0] if told else None


async def _speak(executor: AsyncExecutor, wire: Wire, interval: float) -> None:
    """Answer until there is nothing more to read."""
    from kernelexec.mcp.server import make_server, quiet  # noqa: PLC0415 - a second of imports, while signals are minded

    quiet()
    await _converse(make_server(executor, interval=interval), wire)


async def _converse(server: FastMCP, wire: Wire) -> None:
    # fastmcp 4.1 can serve stdio only by threads that nothing wakes, so a signal could not end it; its own protocol server
    # takes any pair of streams, and has no other name than this one.
    protocol = server._mcp_server  # noqa: SLF001
    async with server._lifespan_manager(), anyio.create_task_group() as tasks:  # noqa: SLF001 - as its run_stdio_async
        received, sent = wire.open(tasks)
        await protocol.run(received, sent, protocol.create_initialization_options())
        tasks.cancel_scope.cancel()
