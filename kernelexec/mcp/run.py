"""Life of a server with any transport, until a signal, the end of the connection or an operator's command.

At the end all sessions, kernels and containers are closed. With ``--keep-kernels`` the server answers the running calls, writes
its records and exits without closing sessions; their containers wait for the next server in the workspace.
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
    """Error of a server with a failed protocol; ``__cause__`` is the original error."""


class Opening:
    """The delayed opening of an executor. Opening takes a tenth of a second, and the list of tools needs no executor.

    The first request for the executor opens it at once. Otherwise the opening begins 0.05 s after a request for the list of
    tools, at the latest 1 s after the server has begun to read requests.
    """

    def __init__(self) -> None:
        self._is_serving, self._is_wanted, self._is_open = anyio.Event(), anyio.Event(), anyio.Event()

    def begin_serving(self) -> None:
        """Note the begin of reading requests."""
        self._is_serving.set()

    def request_soon(self) -> None:
        """Request the opening in 0.05 s, time enough to write the current answer."""
        if not self._is_wanted.is_set():
            asyncio.get_running_loop().call_later(_PAUSE, self._is_wanted.set)

    async def wait_until_wanted(self, stop: anyio.Event) -> None:
        """Wait until the executor should be opened or ``stop`` is set."""
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
        """Release the waiting requests."""
        self._is_open.set()

    async def wait_until_open(self) -> None:
        """Request the opening and wait until the executor is open."""
        if not self._is_open.is_set():
            self._is_wanted.set()
            await self._is_open.wait()


@dataclass(eq=False)
class ServerRun:
    """Run of a server until ``stop`` is set, a signal arrives or the protocol ends.

    With an ``opening`` the protocol begins first, and the opening determines when the executor opens. Otherwise the executor
    opens first. Once the sessions have ended, ``closed`` is set, and the protocol is cancelled after ``grace`` seconds for the
    last responses.

    Raises:
        InvalidConfig: ``keeps_kernels`` is set and kernels cannot outlive the server.
    """

    executor: AsyncExecutor
    keeps_kernels: bool = False
    """Whether kernels are left to the next server in the workspace, at any end except SIGINT or a failure."""
    grace: float = 0.0
    opening: Opening | None = None
    release_calls: Callable[[], None] = lambda: None
    """Called before an exit without the kernels, to make running calls return."""
    clean_up: Callable[[], None] = lambda: None
    """Called last before an exit without the kernels."""
    clients: dict[str, str] = field(default_factory=dict)
    """The clients by the executor's names of their sessions."""
    stop: anyio.Event = field(default_factory=anyio.Event)
    closed: anyio.Event = field(default_factory=anyio.Event)
    _signals: list[signal.Signals] = field(default_factory=list)
    _failures: list[Exception] = field(default_factory=list)
    _ended: anyio.Event = field(default_factory=anyio.Event)

    def __post_init__(self) -> None:
        """Refuse ``keeps_kernels`` for kernels bound to their executor."""
        if self.keeps_kernels and not self._can_keep_kernels:
            raise InvalidConfig(
                "--keep-kernels: kernels end with their server unless they are in containers that the next server adopts: "
                "isolation must be container, container.mode persistent, and container.orphan_seconds above 0."
            )

    async def run(self, serve: Callable[[], Awaitable[None]]) -> signal.Signals | None:
        """Open the executor, serve the protocol, close everything, and return the first signal, if any.

        With kept kernels the process exits with status 0 instead of returning.

        Raises:
            KernelexecError: the executor cannot be opened.
            ServerFailed: ``serve`` failed, which is a bug.
        """
        loop = asyncio.get_running_loop()
        for signum in _SIGNALS:
            if signal.getsignal(signum) is not signal.SIG_IGN:  # a signal that was ignored from the start stays ignored
                loop.add_signal_handler(signum, self._on_signal, signum)
        refusal: KernelexecError | None = None
        # The group encloses the executor: the protocol outlives the sessions, to answer the calls of ended sessions.
        async with anyio.create_task_group() as tasks:
            if self.opening is not None:
                tasks.start_soon(self._serve, serve)
                await self.opening.wait_until_wanted(self.stop)
            try:
                if not self.stop.is_set():  # a client may have left before it needed the executor
                    await self._run_executor(tasks, serve)
            except KernelexecError as exc:
                refusal = exc  # raised below: the group would wrap the error in an ExceptionGroup
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
        """Keep the executor open until ``stop`` is set."""
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
        # All signals are kept: the first is returned, and a SIGINT among them ends kernels that were to be kept.
        self._signals.append(signum)
        self.stop.set()

    def _on_restart(self) -> None:
        self.keeps_kernels = True
        self.stop.set()

    async def _exit_without_kernels(self) -> None:
        """Answer the running calls, write the records, and exit at once. The kernels wait for their next owner."""
        self.release_calls()
        self.closed.set()
        with anyio.move_on_after(self.grace):
            await self._ended.wait()
        async with anyio.create_task_group() as tasks:
            for name in self.executor.sessions():
                if (session := self.executor.open_session(name)) is not None:
                    tasks.start_soon(session.write_handover)
        self.clean_up()
        sys.stderr.flush()  # os._exit flushes nothing
        os._exit(0)  # leaving the executor would end the kernels
