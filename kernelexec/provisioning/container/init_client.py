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
from kernelexec.provisioning.runtime.owned_directory import hold, let_go
from kernelexec.provisioning.runtime.processes import peer_of

#: Name of the socket in the kernel's private directory; the length of a socket's path is limited.
NAME = "w"
_MESSAGE_BYTES, _ANSWER_BYTES = 96 * 1024, 1024
#: How long the end of all processes of a container may take, in seconds.
_SWEEP_SECONDS = 5.0


class Warden:
    """A client of the init process. Its messages are checked: code in the container may have got hold of its socket.

    ``ended`` is called at the kernel's end, with its status as in ``Popen`` and the number of kills for want of memory;
    ``lost`` is called when the connection is lost.
    """

    def __init__(self, path: Path, user: tuple[int, int], ended: Callable[[int, int], None], lost: Callable[[], None]) -> None:
        self._ended, self._lost = ended, lost
        self._uid = user[0]
        self._path = path
        self._loop = asyncio.get_running_loop()
        self._listener: socket.socket | None = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        hold(self._listener.fileno())
        self._channel: socket.socket | None = None
        self._answer: asyncio.Future[dict[str, Any]] | None = None
        self._asking = anyio.Lock()
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

    def welcome(self, belongs: Callable[[int], bool]) -> None:
        """Accept one connection, of a process that ``belongs`` to the container by its id."""
        if self._listener is not None:
            self._loop.add_reader(self._listener, self._accept, belongs)

    @property
    def open(self) -> bool:
        """Whether the init process is connected."""
        return self._channel is not None

    async def fork(self, arguments: Sequence[str], environ: Mapping[str, str], cwd: str) -> bool:
        """Fork a new kernel; return whether there is one."""
        reply = await self._ask({"birth": protocol.fork_content(arguments, environ, cwd)}, None)
        return "born" in reply

    async def sweep(self, directories: Iterable[str], spared: Iterable[int]) -> bool:
        """End all processes and clear these directories, which are in memory; return whether that was done.

        Files on a ``spared`` device (``st_dev``) belong to this machine and stay, wherever in the container they are.
        """
        reply = await self._ask({"sweep": list(directories), "spared": list(spared)}, _SWEEP_SECONDS)
        return reply.get("swept") is True

    def signal(self, signum: int) -> bool:
        """Signal the kernel; return whether the request was sent."""
        return self._send({"signal": signum})

    def close(self) -> None:
        """Close the connection: the init process then ends with its kernel, or at once without one."""
        for sock in (self._listener, self._channel):
            if sock is not None:
                self._loop.remove_reader(sock)
                let_go(sock.detach())
        if self._listener is not None:
            self._path.unlink(missing_ok=True)
        self._listener = self._channel = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_result({})

    async def _ask(self, message: Mapping[str, Any], patience: float | None) -> dict[str, Any]:
        """Return the reply; an empty one, and the end of the connection, if none comes."""
        async with self._asking:
            self._answer = self._loop.create_future()
            reply = None
            try:
                with anyio.move_on_after(patience):
                    reply = await self._answer if self._send(message) else {}
            finally:
                self._answer = None
                if reply is None:  # a late reply would be taken for the next one
                    self._give_up()
        return reply or {}

    def _send(self, message: Mapping[str, Any]) -> bool:
        data = json.dumps(message).encode()
        if self._channel is None or len(data) > _MESSAGE_BYTES:
            return False
        try:
            self._channel.send(data)
        except OSError:  # it has ended or does not read: the last request was not done
            self._give_up()
            return False
        return True

    def _accept(self, belongs: Callable[[int], bool]) -> None:
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        peer = peer_of(sock)
        if peer is None or peer[1] != self._uid or not belongs(peer[0]):
            sock.close()
            return
        self.close()
        sock.setblocking(False)  # noqa: FBT003 - as above
        hold(sock.fileno())
        self._channel = sock
        self._loop.add_reader(sock, self._read)

    def _read(self) -> None:
        assert self._channel is not None
        try:
            message = json.loads(self._channel.recv(_ANSWER_BYTES) or b"null")
        except (BlockingIOError, InterruptedError, ConnectionResetError):
            return  # its last messages are still to come, and then the end
        except (OSError, ValueError, RecursionError):
            message = None
        match message:
            case {"ended": int(status), "kills": int(kills)}:
                self._ended(status, kills)
            case {"swept": _} | {"born": _} | {"failed": _}:
                if self._answer is not None and not self._answer.done():
                    self._answer.set_result(message)
            case _:
                self._give_up()

    def _give_up(self) -> None:
        self.close()
        with suppress(RuntimeError):
            self._lost()
