"""Serving until it is over, by whatever transport: a signal, or the end of what is served, closes all that was started."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable

import anyio

from kernelexec.executor import AsyncExecutor
from kernelexec.mcp.admin_socket import Control

#: Seconds between two tellings of progress of a call that blocks.
INTERVAL = 5.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Broken(RuntimeError):
    """The server ended by itself; the cause is what it ended by."""


async def until_over(
    opening: AsyncExecutor,
    over: anyio.Event,
    speak: Callable[[AsyncExecutor], Awaitable[None]],
    *,
    closed: anyio.Event | None = None,
    grace: float = 0.0,
) -> signal.Signals | None:
    """Have an executor spoken for until that is ``over``, a signal comes or ``speak`` ends; return the signal, all closed.

    Once the sessions have ended, ``closed`` is set, and ``speak`` has ``grace`` seconds to say so before it is cancelled.

    Raises:
        Broken: what speaks failed; that is a mistake of ours.
    """
    told: list[signal.Signals] = []
    failures: list[Exception] = []
    spoken = anyio.Event()

    def on_signal(signum: signal.Signals) -> None:
        told.append(signum)
        over.set()

    async def speaking(executor: AsyncExecutor) -> None:
        try:
            await speak(executor)
        except Exception as exc:  # noqa: BLE001 - said by whoever waits
            failures.append(exc)
        spoken.set()
        over.set()

    loop = asyncio.get_running_loop()
    for signum in _SIGNALS:
        if signal.getsignal(signum) is not signal.SIG_IGN:  # one that this process was started without stays ignored
            loop.add_signal_handler(signum, on_signal, signum)
    async with anyio.create_task_group() as tasks:
        async with opening as executor:
            tasks.start_soon(speaking, executor)
            tasks.start_soon(Control(executor, over).serve)
            await over.wait()
        if closed is not None:
            closed.set()
        with anyio.move_on_after(grace):
            await spoken.wait()
        tasks.cancel_scope.cancel()
    if failures:
        message = f"The server ended by itself: {failures[0]!r:.500}"
        raise Broken(message) from failures[0]
    return told[0] if told else None
