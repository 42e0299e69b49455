"""Life of a server with any transport: a signal, the end of the connection or an operator closes everything that it started."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable

import anyio

from kernelexec.executor import AsyncExecutor
from kernelexec.mcp.admin_socket import AdminSocket

#: The most seconds between two progress reports of a blocking call.
INTERVAL = 5.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class ServerFailed(RuntimeError):
    """Error of a server that ended by itself; its cause is the original error."""


async def run_until_signal(
    executor: AsyncExecutor,
    stop: anyio.Event,
    serve: Callable[[AsyncExecutor], Awaitable[None]],
    *,
    closed: anyio.Event | None = None,
    grace: float = 0.0,
) -> signal.Signals | None:
    """Open an executor and serve until ``stop`` is set, a signal arrives or ``serve`` ends; return the signal, if any.

    Everything is closed on return. After the sessions have ended, ``closed`` is set, and ``serve`` has ``grace`` seconds
    to send its last responses before it is cancelled.

    Raises:
        ServerFailed: ``serve`` failed, which is a bug.
    """
    signals: list[signal.Signals] = []
    failures: list[Exception] = []
    ended = anyio.Event()

    def on_signal(signum: signal.Signals) -> None:
        signals.append(signum)
        stop.set()

    async def run_serve() -> None:
        try:
            await serve(executor)
        except Exception as exc:  # noqa: BLE001 - raised below as ServerFailed
            failures.append(exc)
        ended.set()
        stop.set()

    loop = asyncio.get_running_loop()
    for signum in _SIGNALS:
        if signal.getsignal(signum) is not signal.SIG_IGN:  # a signal that was ignored from the start stays ignored
            loop.add_signal_handler(signum, on_signal, signum)
    async with anyio.create_task_group() as tasks:
        async with executor:
            tasks.start_soon(run_serve)
            tasks.start_soon(AdminSocket(executor, stop).serve)
            await stop.wait()
        if closed is not None:
            closed.set()
        with anyio.move_on_after(grace):
            await ended.wait()
        tasks.cancel_scope.cancel()
    if failures:
        raise ServerFailed(f"The server ended by itself: {failures[0]!r:.500}") from failures[0]
    return signals[0] if signals else None
