"""Life of a server with any transport: a signal, the end of the connection or an operator ends it.

The end closes everything that the server started. A server that keeps its kernels ends as by a crash instead, after it has
answered its calls and written its records: the containers wait for the next server in the workspace.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio

from kernelexec.config import Config
from kernelexec.errors import InvalidConfig
from kernelexec.executor import AsyncExecutor
from kernelexec.mcp.admin_socket import AdminSocket

#: The most seconds between two progress reports of a blocking call.
INTERVAL = 5.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class ServerFailed(RuntimeError):
    """Error of a server that ended by itself; its cause is the original error."""


@dataclass(eq=False, slots=True)
class ServerLife:
    """What the life of a server needs from its protocol: whether and how it ends without its kernels, and its clients.

    Args:
        is_possible: whether kernels can outlive the server: see ``can_keep_kernels``.
        is_wanted: whether every end keeps them, but for SIGINT.
        release_calls: lets running calls return.
        clean_up: called last, before the process exits.
        clients: the client of each session, by the executor's name of the session.
    """

    is_possible: bool
    is_wanted: bool = False
    release_calls: Callable[[], None] = lambda: None
    clean_up: Callable[[], None] = lambda: None
    clients: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, config: Config, *, is_wanted: bool) -> ServerLife:
        """Return the choice for these settings.

        Raises:
            InvalidConfig: kernels are to be kept and cannot outlive the server.
        """
        if is_wanted and not can_keep_kernels(config):
            raise InvalidConfig(
                "--keep-kernels: kernels end with their server unless they are in containers that the next server adopts: "
                "isolation must be container, container.mode persistent, and container.adopt true."
            )
        return cls(can_keep_kernels(config), is_wanted)


def can_keep_kernels(config: Config) -> bool:
    """Return whether kernels can outlive their executor, for the next one in the workspace to adopt."""
    options = config.container
    return config.isolation == "container" and options.adopt and options.mode == "persistent"


async def run_until_signal(
    executor: AsyncExecutor,
    stop: anyio.Event,
    serve: Callable[[AsyncExecutor], Awaitable[None]],
    life: ServerLife,
    *,
    closed: anyio.Event | None = None,
    grace: float = 0.0,
) -> signal.Signals | None:
    """Open an executor and serve until ``stop`` is set, a signal arrives or ``serve`` ends; return the signal, if any.

    Everything is closed on return. After the sessions have ended, ``closed`` is set, and ``serve`` has ``grace`` seconds
    to send its last responses before it is cancelled. If kernels are kept, the process exits instead with status 0.

    Raises:
        ServerFailed: ``serve`` failed, which is a bug.
    """
    signals: list[signal.Signals] = []
    failures: list[Exception] = []
    ended = anyio.Event()

    def on_signal(signum: signal.Signals) -> None:
        signals.append(signum)
        stop.set()

    def on_restart() -> None:
        life.is_wanted = True
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
            tasks.start_soon(AdminSocket(executor, stop, life.clients, on_restart if life.is_possible else None).serve)
            await stop.wait()
            if life.is_wanted and executor.sessions() and not failures and signal.SIGINT not in signals:
                await _exit_without_kernels(executor, life, closed, ended, grace)
        if closed is not None:
            closed.set()
        with anyio.move_on_after(grace):
            await ended.wait()
        tasks.cancel_scope.cancel()
    if failures:
        raise ServerFailed(f"The server ended by itself: {failures[0]!r:.500}") from failures[0]
    return signals[0] if signals else None


async def _exit_without_kernels(
    executor: AsyncExecutor, life: ServerLife, closed: anyio.Event | None, ended: anyio.Event, grace: float
) -> None:
    """Answer the running calls, write the records, and exit at once, so that the kernels wait for their next owner."""
    life.release_calls()
    if closed is not None:
        closed.set()
    with anyio.move_on_after(grace):
        await ended.wait()
    async with anyio.create_task_group() as tasks:
        for name in executor.sessions():
            if (session := executor.open_session(name)) is not None:
                tasks.start_soon(session.write_handover)
    life.clean_up()
    sys.stderr.flush()
    os._exit(0)  # leaving the executor would end the kernels
