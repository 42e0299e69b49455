"""One connection to one channel of a kernel: a unix socket that is what it should be, and ZMTP over it.

The kernel's side is untrusted. A socket is opened by a pinned descriptor that may be no link, must be a socket of the
expected owner, and must be served by the expected process, before a single byte is written to it: a kernel that puts a link
to another daemon's socket in its place reaches nobody.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from kernelexec.errors import KernelConnectionFailed
from kernelexec.kernel.wire import zmtp
from kernelexec.provisioning.runtime.processes import peer_of
from kernelexec.workspace.rmtree import NAMED


def open_pinned(path: Path, *, uid: int, pid: int | None = None, belongs: Callable[[int], bool] | None = None) -> socket.socket:
    """A connected, non-blocking unix stream socket to exactly what ``path`` names now.

    Linux only in its full strength: elsewhere the path is checked and then connected to by name.

    Raises:
        KernelConnectionFailed: a link, no socket, another owner, or served by another process than ``pid``, or by one that
            does not belong.
    """
    try:
        pin = os.open(path, NAMED | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as exc:
        raise KernelConnectionFailed(f"{path.name}: {exc.strerror}") from exc
    with ExitStack() as unless_done:
        try:
            _check_file(pin, path, uid)
            sock = unless_done.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            sock.setblocking(False)  # noqa: FBT003 - the socket module's own signature
            sock.connect(f"/proc/self/fd/{pin}" if Path("/proc/self/fd").exists() else str(path))
            _check_peer(sock, path, uid, belongs or (lambda peer: pid in (None, peer)))
        except OSError as exc:
            raise KernelConnectionFailed(f"{path.name}: {exc.strerror or exc}") from exc
        finally:
            os.close(pin)
        unless_done.pop_all()
    return sock


def _check_file(pin: int, path: Path, uid: int) -> None:
    found = os.fstat(pin)
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != uid:
        raise KernelConnectionFailed(f"{path.name} is not a socket of uid {uid}: the kernel may have replaced it.")


def _check_peer(sock: socket.socket, path: Path, uid: int, belongs: Callable[[int], bool]) -> None:
    peer = peer_of(sock)
    if peer is None:
        return
    peer_pid, peer_uid = peer
    if peer_uid != uid or not belongs(peer_pid):
        raise KernelConnectionFailed(f"{path.name} is served by process {peer_pid} of uid {peer_uid}, not by the kernel.")


class Channel(asyncio.Protocol):
    """ZMTP over one connection; messages go to ``deliver`` as they come, the end of the connection to ``lost``.

    With the public key of the kernel's side all of it is encrypted, and nobody else at the other end can read or say a thing.
    """

    def __init__(
        self,
        socket_type: bytes,
        identity: bytes,
        limit_bytes: int,
        deliver: Callable[[zmtp.Multipart], None],
        lost: Callable[[Channel, str], None],
        *,
        server_key: bytes | None = None,
    ) -> None:
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.closed = asyncio.Event()
        self.heard_at = 0.0
        """When the last of what came was read, by the loop's clock, whatever it was."""
        self._decoder: zmtp.Decoder
        if server_key is None:
            self._hello = zmtp.GREETING + zmtp.ready_command(socket_type, identity)
            self._decoder, self._message = zmtp.Decoder(limit_bytes), zmtp.message
        else:
            from kernelexec.kernel.wire import curve  # noqa: PLC0415 - its library takes time to load, and most kernels need none

            boxes = curve.Decoder(limit_bytes, server_key, zmtp.properties(socket_type, identity))
            self._hello, self._decoder, self._message = zmtp.greeting(boxes.mechanism), boxes, boxes.message
        self._deliver = deliver
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._reason = "the kernel closed the connection"

    @property
    def greeted(self) -> bool:
        """Whether the peer has greeted as it should: a relay before a kernel that does not serve yet cannot."""
        return self._decoder.greeted

    async def connect(self, sock: socket.socket) -> None:
        """Take over a connected socket and shake hands.

        Raises:
            KernelConnectionFailed: the peer is not a ZMTP 3 peer, or has not the secret to the server's key.
        """
        await asyncio.get_running_loop().create_connection(lambda: self, sock=sock)
        await self.ready

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._hello)

    def data_received(self, data: bytes) -> None:
        """Pass on what is complete; hang up on what is not ZMTP."""
        try:
            for event in self._decoder.feed(data):
                if isinstance(event, zmtp.Multipart):
                    self._deliver(event)
                elif isinstance(event, zmtp.Answer):
                    assert self._transport is not None
                    self._transport.write(event.content)
                elif not self.ready.done():
                    self.ready.set_result(None)
        except zmtp.ProtocolError as exc:
            self._reason = str(exc)
            self.abort()
        self.heard_at = asyncio.get_running_loop().time()

    def connection_lost(self, exc: Exception | None) -> None:
        """Say so, once."""
        reason = str(exc) if exc else self._reason
        if not self.ready.done():
            self.ready.set_exception(KernelConnectionFailed(f"no handshake: {reason}"))
        self.closed.set()
        self._transport = None
        self._lost(self, reason)

    @property
    def gone(self) -> bool:
        """Whether the connection has been made and takes nothing any more, though its loss may not have been told yet."""
        return self.closed.is_set() or (self._transport is not None and self._transport.is_closing())

    def send(self, frames: list[bytes]) -> None:
        """Queue a message for sending.

        Raises:
            KernelConnectionFailed: the connection is gone.
        """
        if self._transport is None or self._transport.is_closing():
            raise KernelConnectionFailed(self._reason)
        self._transport.write(self._message(frames))

    def abort(self) -> None:
        """Drop the connection at once."""
        if self._transport is not None:
            self._transport.abort()
