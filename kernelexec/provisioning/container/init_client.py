"""The driver's side of a container's init process, which forks the kernels there; both speak over one unix socket."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio

from kernelexec.launcher import protocol
from kernelexec.provisioning.runtime.owned_directory import close_fd, track_fd
from kernelexec.provisioning.runtime.processes import read_peer

#: Name of the socket in the kernel's private directory; the length of a socket's path is limited.
SOCKET_NAME = "w"
_MESSAGE_BYTES, _ANSWER_BYTES = 96 * 1024, 1024
#: How long the end of all processes of a container may take, in seconds.
_SWEEP_SECONDS = 5.0


class ContainerInit:
    """A client of the init process. It checks all messages: code in the container may have got hold of the socket.

    ``on_exit`` is called at the kernel's end, with its status as in ``Popen`` and the number of kills for want of memory;
    ``on_lost`` is called when the connection is lost.
    """

    def __init__(
        self, path: Path, user: tuple[int, int], on_exit: Callable[[int, int], None], on_lost: Callable[[], None]
    ) -> None:
        self._on_exit, self._on_lost = on_exit, on_lost
        self._uid = user[0]
        self._path = path
        self._loop = asyncio.get_running_loop()
        self._listener: socket.socket | None = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        track_fd(self._listener.fileno())
        self._channel: socket.socket | None = None
        self._answer: asyncio.Future[dict[str, Any]] | None = None
        self._request_lock = anyio.Lock()
        try:
            self._listener.setblocking(False)  # noqa: FBT003 - the library's own signature
            self._listener.bind(str(path))
            if user[0] != os.getuid():
                os.chown(path, -1, user[1])
            path.chmod(0o660 if user[0] != os.getuid() else 0o600)
            self._listener.listen(1)
        except BaseException:
            self.close()
            raise

    def start_accepting(self, is_peer: Callable[[int], bool]) -> None:
        """Accept one connection, if ``is_peer`` finds the process id in the container."""
        if self._listener is not None:
            self._loop.add_reader(self._listener, self._accept, is_peer)

    @property
    def is_connected(self) -> bool:
        """Whether the init process is connected."""
        return self._channel is not None

    async def fork(self, arguments: Sequence[str], environ: Mapping[str, str], cwd: str) -> bool:
        """Fork a new kernel; return whether there is one."""
        reply = await self._request({"birth": protocol.fork_content(arguments, environ, cwd)}, None)
        return "born" in reply

    async def sweep(self, directories: Iterable[str], spared: Iterable[int]) -> bool:
        """End all processes and clear these directories, which are in memory; return whether that was done.

        Files on a ``spared`` device (``st_dev``) belong to this machine and stay, wherever in the container they are.
        """
        reply = await self._request({"sweep": list(directories), "spared": list(spared)}, _SWEEP_SECONDS)
        return reply.get("swept") is True

    def signal(self, signum: int) -> bool:
        """Signal the kernel; return whether the request was sent."""
        return self._send({"signal": signum})

    def close(self) -> None:
        """Close the connection: the init process then ends with its kernel, or at once without one."""
        for sock in (self._listener, self._channel):
            if sock is not None:
                self._loop.remove_reader(sock)
                close_fd(sock.detach())
        if self._listener is not None:
            self._path.unlink(missing_ok=True)
        self._listener = self._channel = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_result({})

    async def _request(self, message: Mapping[str, Any], patience: float | None) -> dict[str, Any]:
        """Return the reply; an empty one, and the end of the connection, if none comes."""
        async with self._request_lock:
            self._answer = self._loop.create_future()
            reply = None
            try:
                with anyio.move_on_after(patience):
                    reply = await self._answer if self._send(message) else {}
            finally:
                self._answer = None
                if reply is None:  # a late reply would be taken for the next one
                    self._disconnect()
        return reply or {}

    def _send(self, message: Mapping[str, Any]) -> bool:
        data = json.dumps(message).encode()
        if self._channel is None or len(data) > _MESSAGE_BYTES:
            return False
        try:
            self._channel.send(data)
        except OSError:  # it has ended or does not read: the last request was not done
            self._disconnect()
            return False
        return True

    def _accept(self, is_peer: Callable[[int], bool]) -> None:
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        peer = read_peer(sock)
        if peer is None or peer[1] != self._uid or not is_peer(peer[0]):
            sock.close()
            return
        self.close()
        sock.setblocking(False)  # noqa: FBT003 - as above
        track_fd(sock.fileno())
        self._channel = sock
        self._loop.add_reader(sock, self._read)

    def _read(self) -> None:
        assert self._channel is not None
        try:
            message = json.loads(self._channel.recv(_ANSWER_BYTES) or b"null")
        except (BlockingIOError, InterruptedError, ConnectionResetError):
            return  # its last messages follow, and then the end
        except (OSError, ValueError, RecursionError):
            message = None
        match message:
            case {"ended": int(status), "kills": int(kills)}:
                self._on_exit(status, kills)
            case {"swept": _} | {"born": _} | {"failed": _}:
                if self._answer is not None and not self._answer.done():
                    self._answer.set_result(message)
            case _:
                self._disconnect()

    def _disconnect(self) -> None:
        self.close()
        with suppress(RuntimeError):
            self._on_lost()
