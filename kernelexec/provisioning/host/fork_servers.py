"""The fork servers of an executor: processes with the kernel's modules imported, which fork kernels in milliseconds."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import anyio

from kernelexec.cancellation import await_to_end
from kernelexec.config import Config
from kernelexec.launcher import protocol
from kernelexec.provisioning.host.fork_server_process import ForkServerProcess, take_early
from kernelexec.provisioning.host.interpreters import (
    choose_interpreter,
    find_import,
    search_paths,
    without_untrusted,
    writable_directories,
)
from kernelexec.provisioning.launch.environment import kernel_environment
from kernelexec.provisioning.runtime.owned_directory import close_fd, track_fd
from kernelexec.provisioning.runtime.processes import AdoptedProcess

# A socket pair of datagrams carries JSON and descriptors (SCM_RIGHTS); kernelexec.launcher.protocol has the fields:
#
#     this side                                          server
#     {"settings": true}   [settings file, stderr]   ->
#                                                    <-  {"serves": bool, "threads": n, "modules": [...]}
#                                                    <-  {"imported": name, ...} after each module, between requests
#     {"request": n}       [Fork file, stderr]       ->
#                                                    <-  {"request": n, "pid": p} [pidfd], from the forked process itself
#     {"request": n, "adopt": pid}                   ->
#                                                    <-  {"request": n, "failed" or "lost": reason}, instead of a process
#                                                    <-  {"request": n, "ended": status}, once, at the end of that process
_MESSAGE_BYTES = 64 * 1024
#: How long the server's report of an exit status may follow the end of a kernel, in seconds, since it may be importing a
#: library; and that of a kernel that this side has killed.
_REPORT_SECONDS, _KILL_REPORT_SECONDS = 10.0, 1.0
#: How long the last reports may follow the end of a server, in seconds.
_LATE_SECONDS = 5.0
_SERVERS_MAX = 2
logger = logging.getLogger("kernelexec")


class ForkServerUnavailable(Exception):
    """The server has ended or cannot fork; the caller starts a new process instead."""


class ForkedProcess(AdoptedProcess):
    """A kernel forked by a fork server, which as the parent reports the exit status."""

    def __init__(self, pid: int, fd: int, status: asyncio.Future[int]) -> None:
        super().__init__(pid, fd)
        self._status = status

    def poll(self) -> int | None:
        """Return the exit status, or a substitute without a report; None while the process lives."""
        substitute = super().poll()
        is_reported = self._status.done() and not self._status.cancelled()
        return self._status.result() if substitute is not None and is_reported else substitute

    async def wait_report(self) -> None:
        """Wait for the server's report of the exit status, at most 10 s, or 1 s after a kill by this object."""
        with anyio.move_on_after(_KILL_REPORT_SECONDS if self._killed else _REPORT_SECONDS):
            await asyncio.wait([self._status])


class ForkServer:
    """A server process. Early requests wait until the server is ready; all waiting requests fail when the server ends."""

    def __init__(self, python: str, environ: Mapping[str, str], modules: Sequence[str], stderr: Path) -> None:
        """Start the server, or take the early server.

        Raises:
            OSError: the interpreter cannot be started.
        """
        self.environ = dict(environ)
        self.imported: dict[str, str | None] = {}
        """The modules tried so far, each with the import error or None."""
        self.modules: frozenset[str] = frozenset()
        """The names of all top-level modules in the kernels' memory, except the standard library."""
        self.unsuitable: str | None = None
        """The module whose import started threads or showed text, and so ended the server."""
        self._failure: ForkServerUnavailable | None = None
        """Why the server gets no more requests; reports of forked kernels may still come."""
        self._exit_statuses: dict[int, asyncio.Future[int]] = {}
        self._pending: dict[int, asyncio.Future[ForkedProcess]] = {}
        self._number = 0
        with stderr.open("ab") as complaints:
            started = take_early(python, environ) or ForkServerProcess.start(python, environ, complaints)
            ours, self._process = started.channel, started.process
            settings: protocol.ForkServerSettings = {"environ": self.environ, "modules": list(modules)}
            with _write_to_memory(settings) as file, suppress(OSError):  # it may have ended already, which is read later
                socket.send_fds(ours, [json.dumps({"settings": True}).encode()], [file.fileno(), complaints.fileno()])
        ours.setblocking(False)  # noqa: FBT003 - the library's own signature
        track_fd(ours.fileno())  # the server ends with the last copy of this end, which a forked child must not keep
        self._channel: socket.socket | None = ours
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(ours, self._read)
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self._closed = asyncio.Event()

    @property
    def is_alive(self) -> bool:
        """Whether the server takes requests."""
        return self._channel is not None and self._failure is None

    @property
    def is_serving(self) -> bool:
        """Whether the server is ready to fork kernels."""
        return self.is_alive and self.ready.done() and self.ready.exception() is None

    async def fork(self, arguments: Sequence[str], environ: Mapping[str, str], cwd: str, stderr: IO[bytes]) -> ForkedProcess:
        """Fork a new kernel.

        Raises:
            ForkServerUnavailable: the server has ended or cannot fork; no new process exists.
        """
        if self._failure is not None:
            raise self._failure
        with _write_to_memory(protocol.fork_content(arguments, environ, cwd)) as request:
            return await self._request({}, request.fileno(), stderr.fileno())

    async def adopt(self, pid: int) -> ForkedProcess:
        """Watch a kernel forked by a checkpoint; the server has become the kernel's parent.

        Raises:
            ForkServerUnavailable: the server has ended, or has no such child.
        """
        return await self._request({"adopt": pid})

    async def _request(self, content: Mapping[str, int], *fds: int) -> ForkedProcess:
        """Send a request and return the process in the answer."""
        if self._channel is None:
            raise self._failure or ForkServerUnavailable("it has ended")
        self._number += 1
        number, pending = self._number, self._loop.create_future()
        self._pending[number] = pending
        try:
            socket.send_fds(self._channel, [json.dumps({"request": number, **content}).encode()], fds)
            # Shielded: the fork happens anyway, and its process must reach ``_discard_fork`` if this task is cancelled.
            return await asyncio.shield(pending)
        except OSError as exc:
            raise ForkServerUnavailable(str(exc)) from exc
        except asyncio.CancelledError:
            pending.add_done_callback(_discard_fork)
            raise
        finally:
            if pending.done():  # else the answer is still to come, and is found by its number
                self._pending.pop(number, None)

    async def stop(self) -> None:
        """End the server. Forked kernels live on until their provisioners end them."""
        self._failure = self._failure or ForkServerUnavailable("it was stopped")
        with suppress(OSError):
            self._process.kill()
        await await_to_end(self._finish())

    async def _finish(self) -> None:
        """Wait for the end of the killed process, and at most 5 s for the last messages."""
        await asyncio.to_thread(self._process.wait)
        # The socket ends with its last sender: a child that was just forked and has yet to report its pidfd, if any.
        with anyio.move_on_after(_LATE_SECONDS):
            await self._closed.wait()
        self._close()

    def _read(self) -> None:
        assert self._channel is not None
        try:
            message, fds, _, _ = socket.recv_fds(self._channel, _MESSAGE_BYTES, 1)
        except (BlockingIOError, InterruptedError, ConnectionResetError):
            return  # a reset comes first when the server left requests unread, then its last messages, then the end
        except OSError:
            message, fds = b"", []
        if not message:
            self._close()
            return
        self._on_message(json.loads(message), fds)

    def _on_message(self, message: dict[str, Any], fds: list[int]) -> None:
        self.modules |= set(message.get("modules", ()))
        if message.get("serves"):
            self.ready.set_result(None)
        elif "serves" in message:
            self._failure = ForkServerUnavailable("it has threads")
        elif "imported" in message:
            self._on_import(message)
        elif "ended" in message:
            if (status := self._exit_statuses.pop(message["request"], None)) is not None:
                status.set_result(message["ended"])
            elif (unborn := self._pending.pop(message["request"], None)) is not None:
                unborn.set_exception(ForkServerUnavailable("the forked process ended before it reported its start"))
        elif (pending := self._pending.pop(message["request"], None)) is not None:
            if "failed" in message or "lost" in message:
                pending.set_exception(ForkServerUnavailable(message.get("failed", message.get("lost"))))
                return
            status = self._exit_statuses[message["request"]] = self._loop.create_future()
            pending.set_result(ForkedProcess(message["pid"], fds[0], status))

    def _on_import(self, message: dict[str, Any]) -> None:
        name = message["imported"]
        self.imported[name] = message.get("failed")
        if message["threads"] != 1 or message.get("shows"):
            self.unsuitable = name
            reason = "shows text" if message.get("shows") else f"leaves {message['threads'] - 1} threads"
            self._failure = ForkServerUnavailable(f"the import of {name} {reason}")

    def _close(self) -> None:
        """Close the channel, fail all waiting requests and give up all reports."""
        channel, self._channel = self._channel, None
        if channel is None:
            return
        self._closed.set()
        failure = self._failure or ForkServerUnavailable("it has ended")
        self._loop.remove_reader(channel)
        close_fd(channel.detach())
        waiting: list[asyncio.Future[Any]] = [self.ready, *self._pending.values()]
        for pending in waiting:
            if not pending.done():
                pending.set_exception(failure)
                pending.exception()  # marks it as retrieved: perhaps no task waits for it
        self._pending.clear()
        for status in self._exit_statuses.values():
            status.cancel()
        self._exit_statuses.clear()


@contextmanager
def _write_to_memory(content: Mapping[str, object]) -> Iterator[IO[bytes]]:
    """Yield an unnamed file in memory with the content as JSON."""
    with os.fdopen(os.memfd_create("kernelexec", os.MFD_CLOEXEC), "w+b") as file:
        file.write(json.dumps(content).encode())
        file.seek(0)  # the receiver of the descriptor shares this position
        yield file


def _discard_fork(pending: asyncio.Future[ForkedProcess]) -> None:
    if not pending.cancelled() and pending.exception() is None:
        process = pending.result()
        try:
            process.kill()
        finally:
            process.close()


class ForkServers:
    """The fork servers of an executor, started on demand."""

    def __init__(self, config: Config) -> None:
        self.failure: str | None = None
        """Why kernels are not forked but started as new processes, in a sentence; None if forked."""
        self.note: str | None = None
        """The reason for a session's first result; None without a reason, or if the kernel's confinement reports the same."""
        self.python = choose_interpreter(config)
        self._config = config
        self._modules = config.preload
        self._servers: list[ForkServer] = []
        self._starting = anyio.Lock(fast_acquire=True)
        self._preparation: anyio.CancelScope | None = None
        self.disable_if_writable(None)

    def disable_if_writable(self, workspace: str | None) -> None:
        """Stop forking if cells in that workspace could write modules, since fork servers import unconfined."""
        path = find_import(self.python, self._environment(), writable_directories(self._config, workspace))
        if path is not None and self.failure is None:
            self.failure = f"Kernels are started one by one: cells can write {path}, which a fork server would import from."
            self.note = None if self.python == sys.executable else self.failure

    def find_serving(self) -> ForkServer | None:
        """Return the living, ready server with the environment of new kernels, or None."""
        server = self._find_alive() if self.failure is None else None
        return server if server is not None and server.is_serving else None

    async def prepare_ahead(self, root: Path) -> None:
        """Prepare before the first session, unless cells could write imported modules; ``cancel_preparation`` stops this."""
        if self.python != sys.executable or search_paths(self._environment()):
            return
        with anyio.CancelScope() as self._preparation:
            await self.prepare(root)

    def cancel_preparation(self) -> None:
        """Cancel the preparation before the first session."""
        if self._preparation is not None:
            self._preparation.cancel()

    async def prepare(self, root: Path) -> None:
        """Start a server if none serves; the server's stderr goes to a file in ``root``.

        After a failed start kernels are started as new processes, and ``failure`` holds the reason.
        """
        async with self._starting:
            if self.failure is not None:
                await self.stop()
            elif self.find_serving() is None:
                await self._remove_ended()
                await self._start_server(root / "forkserver")

    async def stop(self) -> None:
        """End all servers."""
        while self._servers:
            await self._servers.pop().stop()

    def _environment(self) -> dict[str, str]:
        """Return the kernels' environment without relative search paths, since a fork server is not confined."""
        return without_untrusted(kernel_environment(self._config))

    def _find_alive(self) -> ForkServer | None:
        environ = self._environment()
        return next((server for server in self._servers if server.is_alive and server.environ == environ), None)

    async def _start_server(self, stderr: Path) -> None:
        try:
            server = self._find_alive()
            # The environment of this process may change at any time, and each value would cost a server.
            if server is None and len(self._servers) == _SERVERS_MAX:
                return
            if server is None:
                server = ForkServer(self.python, self._environment(), self._modules, stderr)
                self._servers.append(server)
            async with asyncio.timeout(self._config.budgets.start):
                await asyncio.shield(server.ready)  # one future for all callers: a timeout here must not cancel it
        except (ForkServerUnavailable, OSError, TimeoutError) as exc:
            reason = f"Kernels are started one by one, since none can be forked: {exc or 'the fork server is too slow'}."
            self.failure = self.note = reason
            logger.info("kernelexec.fork_server_failed", extra={"reason": self.failure})
            await self.stop()

    async def _remove_ended(self) -> None:
        for server in [server for server in self._servers if not server.is_alive]:
            if server.unsuitable is not None:  # the next server does not import it
                self._modules = tuple(name for name in self._modules if name != server.unsuitable)
            self._servers.remove(server)
            await server.stop()
