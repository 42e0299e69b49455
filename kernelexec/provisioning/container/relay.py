"""The relay of a kernel without reachable unix sockets: local sockets, and a program in the container, run by the engine.

The program belongs to the launcher (``launch/relay``). After the end of the program or of the connection to the engine, another
program is started, and the kernel's connections go on.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import anyio.to_thread

from kernelexec.docker.client import Engine
from kernelexec.docker.running_container import ContainerStream
from kernelexec.errors import ContainerGone, EngineFailed
from kernelexec.launcher.relayed_connections import INSTANCE_BYTES, OPEN, READY, LinkError, RelayedConnections
from kernelexec.provisioning.runtime.kernel_directory import PORTS, RELAY_SECONDS, write_ready

#: The first and the longest pause between two programs, in seconds, and the bytes of their stderr that are logged.
_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS, _STDERR_BYTES = 0.05, 2.0, 4096
#: How long the end waits, in seconds, for a call to an engine that does not answer.
_JOIN_SECONDS = 5.0
#: Pieces of the stream that the event loop has not taken, at most: it takes them all in one turn, and other sessions wait.
_PIECES_MAX = 2
logger = logging.getLogger("kernelexec")


class KernelRelay:
    """The local sockets of a kernel in a container.

    Args:
        engine: the engine of the container.
        container: the container's id.
        argv: the launcher's program for the relay.
        user: the user of the kernel.
        directory: the private directory of the kernel, on this machine, with the ready pipe.
    """

    def __init__(self, engine: Engine, container: str, argv: Sequence[str], *, user: str, directory: Path) -> None:
        self._start_stream = partial(ContainerStream, engine, container, argv, user=user)
        self._container, self._directory = container, directory
        # The thread starts programs and reads their output; connections and frames belong to the event loop (``_call``).
        self._loop = asyncio.get_running_loop()
        self._connections = RelayedConnections(secrets.token_bytes(INSTANCE_BYTES), take=self._take)
        self._number = 0
        self._servers: list[asyncio.Server] = []
        self._stream: ContainerStream | None = None
        self._is_closed = self._is_ready = False
        self._is_greeted = threading.Event()
        self._pieces = threading.Semaphore(_PIECES_MAX)
        self._thread = threading.Thread(target=self._carry, name="relay of a kernel", daemon=True)

    async def open(self) -> None:
        """Listen on the local sockets, and start the program."""
        try:
            for number in PORTS.values():
                connect = partial(self._connect, f"s-{number}")
                self._servers.append(await self._loop.create_unix_server(connect, str(self._directory / f"s-{number}")))
                if self._is_closed:  # meanwhile
                    self._end()
                    return
            self._thread.start()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close everything; to the kernel this is the end of the owner."""
        self._end()
        if self._thread.ident is not None:
            await anyio.to_thread.run_sync(self._thread.join, _JOIN_SECONDS)

    def _end(self) -> None:
        """Close all sockets, so no client waits in vain, and end the program."""
        self._is_closed = True
        for server in self._servers:
            server.close()
        self._connections.abort()
        if self._stream is not None:
            self._stream.disconnect()

    def _connect(self, name: str) -> asyncio.Protocol:
        self._number += 1
        self._connections.link.send(OPEN, self._number, name.encode())
        return self._connections.add(self._number)

    def _take(self, kind: int, _: int, content: bytes) -> None:
        if kind == READY and not self._is_ready:  # each program reports it
            self._is_ready = True
            with suppress(OSError):  # its owner before has read it
                write_ready(self._directory, content)

    def _carry(self) -> None:
        """Run programs in succession until the container ends, or no program answers for 60 s. The body of the thread."""
        try:
            self._run_programs()
        except Exception:
            logger.exception("kernelexec.relay_failed", extra={"container": self._container})
        finally:
            self._call(self._end)

    def _run_programs(self) -> None:
        until, pause, last = time.monotonic() + RELAY_SECONDS, _PAUSE_SECONDS, ""
        while not self._is_closed and time.monotonic() < until:
            begun = time.monotonic()
            try:
                reason = self._run_program()
            except ContainerGone:
                return
            except EngineFailed as exc:  # it is away, or the container is paused, or has ended and will be removed
                reason = str(exc)
            # Only an end that lasts for seconds: the container of a closing session ends before its relay is closed.
            if reason not in ("", last) and pause == _LONGEST_PAUSE_SECONDS and not self._is_closed:
                logger.warning("kernelexec.relay_ended", extra={"container": self._container, "reason": reason})
                last = reason
            now = time.monotonic()
            until = now + RELAY_SECONDS if self._is_greeted.is_set() else until
            # A program that ran for a while was cut, and the next one may work at once; after others the pause doubles.
            pause = _PAUSE_SECONDS if now > begun + _LONGEST_PAUSE_SECONDS else min(2 * pause, _LONGEST_PAUSE_SECONDS)
            self._is_greeted.clear()
            if not self._is_closed:
                time.sleep(pause)  # the engine reports nothing when it is back

    def _run_program(self) -> str:
        """Run a program until the end of the stream; return the text of the program's standard error."""
        stream, errors = self._start_stream(), bytearray()
        self._call(self._use, stream)
        with suppress(EngineFailed):
            stream.transfer(partial(self._take_output, stream, errors))
        return errors.decode("utf-8", "replace")

    def _take_output(self, stream: ContainerStream, errors: bytearray, name: str, content: bytes) -> bool:
        if name == "stderr":
            errors += content
            del errors[:-_STDERR_BYTES]
        else:
            # Backpressure: a busy loop stops the thread, and with it the engine's stream. The timeout is to notice ``close``.
            while not self._pieces.acquire(timeout=1.0):
                if self._is_closed:
                    return False
            self._call(self._feed, stream, content)
        return not self._is_closed

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(function, *arguments)

    def _use(self, stream: ContainerStream) -> None:
        self._stream = stream
        if self._is_closed:
            stream.disconnect()
        else:
            self._connections.link.connect(stream.write)

    def _feed(self, stream: ContainerStream, content: bytes) -> None:
        self._pieces.release()
        # Late pieces of a program before the present one are dropped: the peer sends again whatever was not acknowledged.
        if stream is not self._stream or self._is_closed:
            return
        try:
            self._connections.link.feed(content)
        except LinkError as exc:
            logger.warning("kernelexec.relay_refused", extra={"container": self._container, "reason": str(exc)})
            self._end()
        if self._connections.link.is_greeted:
            self._is_greeted.set()
