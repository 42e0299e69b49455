"""This side of a container's first process, which forks the kernels there. It has the caller's ear by one socket."""

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

#: What its socket is called in the kernel's private directory, whose path has room for no more.
NAME = "w"
_MESSAGE_BYTES, _ANSWER_BYTES = 96 * 1024, 1024
#: How long it may take to end all processes of a container, in seconds.
_SWEEP_SECONDS = 5.0


class Warden:
    """Whatever it says is checked: code in the container may have come to speak for it.

    ``ended`` is told of the kernel's end: its status as ``Popen`` has it, and what was killed meanwhile for want of memory.
    ``lost`` is called when it cannot be asked any more.
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
        """Let the container's process connect, by whose id ``belongs`` says whether it is one, and nobody after it."""
        if self._listener is not None:
            self._loop.add_reader(self._listener, self._accept, belongs)

    @property
    def open(self) -> bool:
        """Whether it can be asked."""
        return self._channel is not None

    async def fork(self, arguments: Sequence[str], environ: Mapping[str, str], cwd: str) -> bool:
        """Have a new kernel; whether there is one."""
        said = await self._ask({"birth": protocol.fork_content(arguments, environ, cwd)}, None)
        return "born" in said

    async def sweep(self, directories: Iterable[str], spared: Iterable[int]) -> bool:
        """Have all its processes end and what is in these directories, which are in memory, removed; whether that was done.

        What is on a ``spared`` device (``st_dev``) is of this machine, and stays, wherever in the container it is.
        """
        said = await self._ask({"sweep": list(directories), "spared": list(spared)}, _SWEEP_SECONDS)
        return said.get("swept") is True

    def signal(self, signum: int) -> bool:
        """Have the kernel signalled; whether it could be asked."""
        return self._send({"signal": signum})

    def close(self) -> None:
        """Let go of it: without a kernel it ends, and with its kernel otherwise."""
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
        """The answer; an empty one where none comes, and then nothing is asked any more."""
        async with self._asking:
            self._answer = self._loop.create_future()
            said = None
            try:
                with anyio.move_on_after(patience):
                    said = await self._answer if self._send(message) else {}
            finally:
                self._answer = None
                if said is None:  # what is answered later would be taken for another answer
                    self._give_up()
        return said or {}

    def _send(self, message: Mapping[str, Any]) -> bool:
        said = json.dumps(message).encode()
        if self._channel is None or len(said) > _MESSAGE_BYTES:
            return False
        try:
            self._channel.send(said)
        except OSError:  # it has ended, or does not read: what it was asked last it has not done
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
            said = json.loads(self._channel.recv(_ANSWER_BYTES) or b"null")
        except (BlockingIOError, InterruptedError, ConnectionResetError):
            return  # what it had said before it left something unread is still to come, and then the end
        except (OSError, ValueError, RecursionError):
            said = None
        match said:
            case {"ended": int(status), "kills": int(kills)}:
                self._ended(status, kills)
            case {"swept": _} | {"born": _} | {"failed": _}:
                if self._answer is not None and not self._answer.done():
                    self._answer.set_result(said)
            case _:
                self._give_up()

    def _give_up(self) -> None:
        self.close()
        with suppress(RuntimeError):
            self._lost()
