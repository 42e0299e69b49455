"""How a kernel's channels are reached: unix sockets or loopback ports, which are served by its own processes only.

Of an encrypted kernel the key is the proof, not the process: what listens may be a relay to wherever it runs.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import ExitStack

import anyio
import anyio.to_thread

from kernelexec.errors import KernelConnectionFailed
from kernelexec.kernel.wire.channels import Channel, open_pinned
from kernelexec.provisioning import Connection
from kernelexec.provisioning.runtime.ports import strangers
from kernelexec.provisioning.runtime.processes import descends

_SOONEST, _LATEST = 0.005, 0.1
#: How long a relay may hold a connection to a kernel that does not serve yet, before another one is tried.
_HANDSHAKE_SECONDS = 5.0


class Dialing:
    """Opens the channels of a kernel's process ``pid``: at once where it said that it serves, else as soon as it does."""

    def __init__(
        self, connection: Connection, pid: int | None, *, said: bool, serves: Callable[[int], bool] | None = None
    ) -> None:
        self.failure: KernelConnectionFailed | None = None
        self._connection = connection
        self._pid = pid
        self._said = said
        self._serves = serves or (lambda peer: pid in (None, peer) if said else descends(peer, pid or 0))

    async def __call__(self, channel: str) -> socket.socket:
        """A connected socket. Of a kernel that says nothing the channel is tried until it is there; the caller bounds it.

        Raises:
            KernelConnectionFailed: it is not what it should be, or not there though the kernel said that it serves.
        """
        if self._said and self._connection.address is None:
            return open_pinned(self._connection.path(channel), uid=self._connection.uid, belongs=self._serves)
        pause = _SOONEST
        while True:
            try:
                sock = await self._open(channel)
            except KernelConnectionFailed as exc:
                if self._said or not isinstance(exc.__cause__, OSError):
                    raise
                self.failure = exc
            else:
                self.failure = None
                return sock
            await anyio.sleep(pause)
            pause = min(_LATEST, pause * 2)

    async def connect(self, channel: str, make: Callable[..., Channel]) -> Channel:
        """A channel that ``make`` makes, its handshake done. Of an encrypted kernel that says nothing it is tried again.

        Raises:
            KernelConnectionFailed: the peer is not the kernel.
        """
        patient = self._connection.server_key is not None and not self._said
        pause = _SOONEST
        while True:
            opened = make(server_key=self._connection.server_key)
            try:
                await self._shake_hands(opened, await self(channel), _HANDSHAKE_SECONDS if patient else None)
            except KernelConnectionFailed as exc:
                if opened.greeted or not patient:
                    raise
                self.failure = exc
            else:
                self.failure = None
                if opened.closed.is_set():
                    raise KernelConnectionFailed("the kernel closed the connection")
                return opened
            await anyio.sleep(pause)
            pause = min(_LATEST, pause * 2)

    async def _shake_hands(self, opened: Channel, sock: socket.socket, patience: float | None) -> None:
        try:
            with anyio.fail_after(patience):
                await opened.connect(sock)
        except TimeoutError as exc:
            opened.abort()
            raise KernelConnectionFailed(f"no handshake within {patience} s") from exc
        except BaseException:
            opened.abort()
            raise

    async def _open(self, channel: str) -> socket.socket:
        if self._connection.address is not None:
            return await self._open_port(self._connection.address, self._connection.port(channel))
        return open_pinned(self._connection.path(channel), uid=self._connection.uid, belongs=self._serves)

    async def _open_port(self, address: str, port: int) -> socket.socket:
        with ExitStack() as unless_done:
            sock = unless_done.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            sock.setblocking(False)  # noqa: FBT003 - the socket module's own signature
            try:
                await asyncio.get_running_loop().sock_connect(sock, (address, port))
            except OSError as exc:
                raise KernelConnectionFailed(f"{address}:{port}: {exc.strerror or exc}") from exc
            encrypted = self._connection.server_key is not None
            if not encrypted and await anyio.to_thread.run_sync(strangers, address, port, self._pid or 0):
                raise KernelConnectionFailed(f"{address}:{port} is served by another process than the kernel.")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            unless_done.pop_all()
        return sock
