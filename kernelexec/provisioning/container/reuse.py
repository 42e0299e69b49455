"""The reuse of a container: its init, over one unix socket, ends the processes of one kernel and forks the next one."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio

from kernelexec.config import Container
from kernelexec.launcher import protocol
from kernelexec.provisioning.container.container_state import KILLED, ContainerState, OomDetector
from kernelexec.provisioning.runtime.owned_directory import close_fd, track_fd
from kernelexec.provisioning.runtime.processes import read_peer

_MESSAGE_BYTES, _ANSWER_BYTES = 96 * 1024, 1024
#: How long the end of all processes of a container may take, in seconds.
_SWEEP_SECONDS = 5.0
Mounts = Iterable[tuple[str, str, bool]]


class ContainerReuse:
    """The connection to a container's init. It knows whether anything of the last kernel is left.

    It checks all messages: code in the container may have got hold of the socket.
    """

    def __init__(self, state: ContainerState, oom: OomDetector) -> None:
        self._state = state
        self._oom = oom
        self._is_clean = False
        """Whether no process and no file of the last kernel is left."""
        self._sources: dict[str, tuple[int, int]] = {}
        self._in_memory: list[str] = []
        self._uid = 0
        self._path = Path()
        self._listener: socket.socket | None = None
        self._channel: socket.socket | None = None
        self._answer: asyncio.Future[dict[str, Any]] | None = None
        self._request_lock = asyncio.Lock()
        self.branches: dict[str, tuple[ContainerState, OomDetector]] = {}
        """The branches of the kernel in this container, by their marks."""

    @property
    def is_possible(self) -> bool:
        """Whether the next kernel can be forked in this container."""
        return self._is_clean and self._channel is not None and not self.branches

    @property
    def is_connected(self) -> bool:
        """Whether the init can be reached."""
        return self._channel is not None

    def reset_container(self) -> None:
        """Forget the previous container."""
        self._is_clean = False

    def listen(self, path: str, options: Container, mounts: Mounts) -> None:
        """Prepare for a container that is about to start: its init connects to the socket ``path``, if there is one."""
        self._sources = _identities(mounts)
        self._in_memory = sorted({"/dev/mqueue", *options.memory_directories})
        if not path:
            return
        self._path, (self._uid, gid) = Path(path), options.ids
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        track_fd(self._listener.fileno())
        try:
            self._listener.setblocking(False)  # noqa: FBT003 - the library's own signature
            self._listener.bind(path)
            if self._uid != os.getuid():
                os.chown(path, -1, gid)
            self._path.chmod(0o660 if self._uid != os.getuid() else 0o600)
            self._listener.listen(1)
        except BaseException:
            self.close()
            raise

    def accept(self, is_peer: Callable[[int], bool]) -> None:
        """Let the init connect; ``is_peer`` decides by process id whether a peer belongs to the container."""
        if self._listener is not None:
            asyncio.get_running_loop().add_reader(self._listener, self._accept, is_peer)

    def has_same_mounts(self, mounts: Mounts) -> bool:
        """Return whether the same directories are mounted: their paths may have changed, but not their inodes."""
        return self._sources == _identities(mounts)

    async def fork(self, arguments: Sequence[str], kwargs: Mapping[str, Any]) -> bool:
        """Fork the next kernel; return whether there is one."""
        if not self.is_possible or not self.expect_kernel():
            return False
        return "born" in await self._request({"birth": protocol.fork_content(arguments, kwargs["env"], kwargs["cwd"])}, None)

    def signal(self, signum: int, mark: str | None = None) -> bool:
        """Signal the kernel, or the branch with a mark, without the engine; return whether that was possible."""
        return self._send({"signal": signum, **_marked(mark)})

    async def adopt(self, pid: int, mark: str | None = None) -> bool:
        """Have the init watch a kernel, or a branch with a mark, that a checkpoint has forked; return whether it is there."""
        return "born" in await self._request({"adopt": pid, **_marked(mark)}, _SWEEP_SECONDS)

    async def end_branch(self, mark: str, spared: Collection[int] = ()) -> bool:
        """End all processes of a branch except ``spared``, which are its checkpoints; return whether that is certain."""
        return "swept" in await self._request({"end_marked": sorted(spared), "mark": mark}, _SWEEP_SECONDS)

    def expect_kernel(self) -> bool:
        """Prepare for another kernel in this container; return whether there is a connection to its init."""
        state = self._state
        if self._channel is None or state.events is None:
            return False
        self._oom.continue_container(state.events.memory_kills(state.id))
        state.reset_kernel()
        self._is_clean = False
        state.changed.clear()
        return True

    async def sweep(self, spared: Collection[int] = ()) -> bool:
        """End all processes in the container but its init, and clear its files in memory; return whether it can be reused.

        With ``spared`` processes, which are checkpoints, only their copies can use it, and with branches only these: its files
        stay as they are.

        Files on the devices of mounts belong to this machine and stay, wherever in the container they are.
        """
        if self._channel is not None and not self._is_clean:
            self._state.is_kill_requested |= self._state.status is None
            devices = [device for device, _ in self._sources.values()]
            if spared or self.branches:
                is_swept = "swept" in await self._request({"end_others": sorted(spared)}, _SWEEP_SECONDS)
                if is_swept and self._state.status is None:  # a copy that the init has not taken over has no end to report
                    self._state.end(KILLED)
                return is_swept and bool(spared)
            reply = await self._request({"sweep": self._in_memory, "spared": devices}, _SWEEP_SECONDS)
            self._is_clean = reply.get("swept") is True
        return self.is_possible

    def close(self) -> None:
        """Close the connection: the init process then ends with its kernel, or at once without one."""
        for sock in (self._listener, self._channel):
            if sock is not None:
                asyncio.get_running_loop().remove_reader(sock)
                close_fd(sock.detach())
        if self._listener is not None:
            self._path.unlink(missing_ok=True)
        self._listener = self._channel = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_result({})

    async def _request(self, message: Mapping[str, Any], patience: float | None) -> dict[str, Any]:
        """Return the reply; an empty one, and the end of the connection, if none comes."""
        async with self._request_lock:
            self._answer = asyncio.get_running_loop().create_future()
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
        asyncio.get_running_loop().add_reader(sock, self._read)

    def _read(self) -> None:
        assert self._channel is not None
        try:
            message = json.loads(self._channel.recv(_ANSWER_BYTES) or b"null")
        except (BlockingIOError, InterruptedError, ConnectionResetError):
            return  # its last messages follow, and then the end
        except (OSError, ValueError, RecursionError):
            message = None
        match message:
            case {"ended": int(status), "mark": str(mark), "kills": int(kills)}:
                if (branch := self.branches.get(mark)) is not None and branch[0].status is None:
                    branch[1].on_exit(status, kills)
                    branch[0].end(status)
            case {"ended": int(status), "kills": int(kills)}:
                if self._state.status is None:
                    self._oom.on_exit(status, kills)
                    self._state.end(status)
            case {"swept": _} | {"born": _} | {"failed": _}:
                if self._answer is not None and not self._answer.done():
                    self._answer.set_result(message)
            case _:
                self._disconnect()

    def _disconnect(self) -> None:
        self.close()
        with suppress(RuntimeError):
            for state in (self._state, *(state for state, _ in self.branches.values())):
                state.changed.set()


def _marked(mark: str | None) -> dict[str, str]:
    """Return the part of a request that names a branch."""
    return {} if mark is None else {"mark": mark}


def _identities(mounts: Mounts) -> dict[str, tuple[int, int]]:
    """Return the device and the inode of each mounted directory that exists, by its path in the container."""
    identities = {}
    for source, inside, _ in mounts:
        with suppress(OSError):
            stat = os.stat(source)  # noqa: PTH116 - of the target of a link, as the engine sees it
            identities[inside] = stat.st_dev, stat.st_ino
    return identities
