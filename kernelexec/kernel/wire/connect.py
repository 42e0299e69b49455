"""Opens the sockets of a kernel's channels and checks that the kernel's own processes serve them.

The proof of an encrypted kernel is its key instead: its port may be served by a relay to the place where it runs.
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
from kernelexec.provisioning.runtime.ports import has_foreign_listener

_SOONEST, _LATEST = 0.005, 0.1
#: How long a relay may hold a connection to a kernel that does not serve yet, before another one is tried.
_HANDSHAKE_SECONDS = 5.0


def _accept_all(_peer: int) -> bool:
    return True


class Connector:
    """Opens the channels of a kernel: at once where it ``is_serving``, else again and again until it serves.

    ``accepts`` decides by process id which peer of a unix socket is the kernel; the peer of an unencrypted port must descend
    from ``pid``.
    """

    def __init__(
        self, connection: Connection, pid: int | None, *, is_serving: bool, accepts: Callable[[int], bool] = _accept_all
    ) -> None:
        self.failure: KernelConnectionFailed | None = None
        """The reason why the last try failed."""
        self._connection = connection
        self._pid = pid
        self._is_serving = is_serving
        self._accepts = accepts

    async def open_socket(self, channel: str) -> socket.socket:
        """Return a connected socket. Until the kernel serves, the connection is tried again; the caller bounds the wait.

        Raises:
            KernelConnectionFailed: the peer is not the kernel, or the socket is missing though the kernel is serving.
        """
        if self._is_serving and self._connection.address is None:
            return open_pinned(self._connection.path(channel), uid=self._connection.uid, belongs=self._accepts)
        pause = _SOONEST
        while True:
            try:
                sock = await self._open(channel)
            except KernelConnectionFailed as exc:
                if self._is_serving or not isinstance(exc.__cause__, OSError):
                    raise
                self.failure = exc
            else:
                self.failure = None
                return sock
            await anyio.sleep(pause)
            pause = min(_LATEST, pause * 2)

    async def connect(self, channel: str, make: Callable[..., Channel]) -> Channel:
        """Return a channel from ``make`` after its handshake, which is tried again until an encrypted kernel serves.

        Raises:
            KernelConnectionFailed: the peer is not the kernel.
        """
        patient = self._connection.server_key is not None and not self._is_serving
        pause = _SOONEST
        while True:
            opened = make(server_key=self._connection.server_key)
            try:
                await self._shake_hands(opened, await self.open_socket(channel), _HANDSHAKE_SECONDS if patient else None)
            except KernelConnectionFailed as exc:
                if opened.is_greeted or not patient:
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
        return open_pinned(self._connection.path(channel), uid=self._connection.uid, belongs=self._accepts)

    async def _open_port(self, address: str, port: int) -> socket.socket:
        with ExitStack() as unless_done:
            sock = unless_done.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            sock.setblocking(False)  # noqa: FBT003 - the socket module's own signature
            try:
                await asyncio.get_running_loop().sock_connect(sock, (address, port))
            except OSError as exc:
                raise KernelConnectionFailed(f"{address}:{port}: {exc.strerror or exc}") from exc
            encrypted = self._connection.server_key is not None
            if not encrypted and await anyio.to_thread.run_sync(has_foreign_listener, address, port, self._pid or 0):
                raise KernelConnectionFailed(f"{address}:{port} is served by another process than the kernel.")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            unless_done.pop_all()
        return sock
