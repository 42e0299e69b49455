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
from anyio.abc import TaskGroup

from kernelexec.errors import InvalidConfig, KernelexecError
from kernelexec.executor.executor import AsyncExecutor

#: The most seconds between two progress reports of a blocking call.
INTERVAL = 5.0
#: The seconds between the list of tools and the opening, in which the list is written; and those without any request.
_PAUSE, _SILENCE = 0.05, 1.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class ServerFailed(RuntimeError):
    """Error of a server that ended by itself; its cause is the original error."""


class Opening:
    """The opening of a server's executor after the list of tools was sent, which needs none: it takes a tenth of a second.

    It begins at once with a request that needs the executor, and in any case a second after the server has started.
    """

    def __init__(self) -> None:
        self._is_serving, self._is_wanted, self._is_open = anyio.Event(), anyio.Event(), anyio.Event()

    def begin_serving(self) -> None:
        """Note that requests are read from now on."""
        self._is_serving.set()

    def request_soon(self) -> None:
        """Open the executor when the present answer is written."""
        if not self._is_wanted.is_set():
            asyncio.get_running_loop().call_later(_PAUSE, self._is_wanted.set)

    async def wait_until_wanted(self, stop: anyio.Event) -> None:
        """Return when the executor is to be opened, or ``stop`` is set."""
        async with anyio.create_task_group() as tasks:

            async def end_wait() -> None:
                await stop.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(end_wait)
            await self._is_serving.wait()
            with anyio.move_on_after(_SILENCE):
                await self._is_wanted.wait()
            tasks.cancel_scope.cancel()

    def finish(self) -> None:
        """Let the waiting requests pass."""
        self._is_open.set()

    async def wait_until_open(self) -> None:
        """Request the opening and return when the executor is open."""
        if not self._is_open.is_set():
            self._is_wanted.set()
            await self._is_open.wait()


@dataclass(eq=False)
class ServerRun:
    """One run of a server, which ends when ``stop`` is set, a signal arrives or its protocol ends.

    With an ``opening`` the protocol begins before the executor is open, and the opening when that says so. After the sessions
    have ended, ``closed`` is set, and the protocol has ``grace`` seconds to send its last responses before it is cancelled.

    Raises:
        InvalidConfig: kernels are to be kept and cannot outlive the server.
    """

    executor: AsyncExecutor
    keeps_kernels: bool = False
    """Whether each end but that by SIGINT leaves the kernels to the next server in the workspace."""
    grace: float = 0.0
    opening: Opening | None = None
    release_calls: Callable[[], None] = lambda: None
    """Lets running calls return, before a process exits that keeps its kernels."""
    clean_up: Callable[[], None] = lambda: None
    """Called last, before such a process exits."""
    clients: dict[str, str] = field(default_factory=dict)
    """The client of each session, by the executor's name of the session."""
    stop: anyio.Event = field(default_factory=anyio.Event)
    closed: anyio.Event = field(default_factory=anyio.Event)
    _signals: list[signal.Signals] = field(default_factory=list)
    _failures: list[Exception] = field(default_factory=list)
    _ended: anyio.Event = field(default_factory=anyio.Event)

    def __post_init__(self) -> None:
        """Refuse to keep kernels that cannot outlive their executor."""
        if self.keeps_kernels and not self._can_keep_kernels:
            raise InvalidConfig(
                "--keep-kernels: kernels end with their server unless they are in containers that the next server adopts: "
                "isolation must be container, container.mode persistent, and container.orphan_seconds above 0."
            )

    async def run(self, serve: Callable[[], Awaitable[None]]) -> signal.Signals | None:
        """Open the executor, serve the protocol, close everything, and return the signal, if any.

        If kernels are kept, the process exits instead with status 0.

        Raises:
            KernelexecError: the executor cannot be opened.
            ServerFailed: ``serve`` failed, which is a bug.
        """
        loop = asyncio.get_running_loop()
        for signum in _SIGNALS:
            if signal.getsignal(signum) is not signal.SIG_IGN:  # a signal that was ignored from the start stays ignored
                loop.add_signal_handler(signum, self._on_signal, signum)
        refusal: KernelexecError | None = None
        async with anyio.create_task_group() as tasks:
            if self.opening is not None:
                tasks.start_soon(self._serve, serve)
                await self.opening.wait_until_wanted(self.stop)
            try:
                if not self.stop.is_set():
                    await self._run_executor(tasks, serve)
            except KernelexecError as exc:
                refusal = exc
            self.closed.set()
            with anyio.move_on_after(0.0 if refusal else self.grace):
                await self._ended.wait()
            tasks.cancel_scope.cancel()
        if refusal is not None:
            raise refusal
        if self._failures:
            raise ServerFailed(f"The server ended by itself: {self._failures[0]!r:.500}") from self._failures[0]
        return self._signals[0] if self._signals else None

    @property
    def _can_keep_kernels(self) -> bool:
        options = self.executor.config.container
        return self.executor.config.isolation == "container" and options.orphan_seconds > 0 and options.mode == "persistent"

    async def _run_executor(self, tasks: TaskGroup, serve: Callable[[], Awaitable[None]]) -> None:
        """Keep the executor open until the server is to stop."""
        async with self.executor as executor:
            from kernelexec.executor.control.control_socket import ServerCommands  # noqa: PLC0415 - it imports parts of an open executor

            if self.opening is None:
                tasks.start_soon(self._serve, serve)
            else:
                self.opening.finish()
            restart = self._on_restart if self._can_keep_kernels else None
            executor.start_control(ServerCommands(stop=self.stop.set, restart=restart, clients=self.clients))
            await self.stop.wait()
            if self.keeps_kernels and executor.sessions() and not self._failures and signal.SIGINT not in self._signals:
                await self._exit_without_kernels()

    async def _serve(self, serve: Callable[[], Awaitable[None]]) -> None:
        try:
            await serve()
        except Exception as exc:  # noqa: BLE001 - raised as ServerFailed at the end
            self._failures.append(exc)
        self._ended.set()
        self.stop.set()

    def _on_signal(self, signum: signal.Signals) -> None:
        self._signals.append(signum)
        self.stop.set()

    def _on_restart(self) -> None:
        self.keeps_kernels = True
        self.stop.set()

    async def _exit_without_kernels(self) -> None:
        """Answer the running calls, write the records, and exit at once, so that the kernels wait for their next owner."""
        self.release_calls()
        self.closed.set()
        with anyio.move_on_after(self.grace):
            await self._ended.wait()
        async with anyio.create_task_group() as tasks:
            for name in self.executor.sessions():
                if (session := self.executor.open_session(name)) is not None:
                    tasks.start_soon(session.write_handover)
        self.clean_up()
        sys.stderr.flush()
        os._exit(0)  # leaving the executor would end the kernels
