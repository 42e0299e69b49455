"""The reuse of a container: over a unix socket, the container's init ends the processes of a kernel and forks the next."""

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
#: How long the end of all processes of a container may take, in seconds: the init itself gives up after 2 s.
_SWEEP_SECONDS = 5.0
Mounts = Iterable[tuple[str, str, bool]]


class InitConnection:
    """The connection to a container's init. All messages are checked, because code in the container may have got the socket."""

    def __init__(self) -> None:
        self.kernels: dict[str, tuple[ContainerState, OomDetector]] = {}
        """The kernel in this container and all branches, by mark; the kernel's mark is empty."""
        self._uid = 0
        self._path = Path()
        # One after the other: the listener until the init connects, then the channel until its end, then neither.
        self._listener: socket.socket | None = None
        self._channel: socket.socket | None = None
        # At most one request waits at a time, under the lock: replies carry no number.
        self._answer: asyncio.Future[dict[str, Any]] | None = None
        self._request_lock = asyncio.Lock()

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection to the init."""
        return self._channel is not None

    def listen(self, path: Path, ids: tuple[int, int]) -> None:
        """Listen at ``path`` for the init of a container about to start; ``ids`` are the user and group of the init."""
        self._path, (self._uid, gid) = path, ids
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        track_fd(self._listener.fileno())
        try:
            self._listener.setblocking(False)  # noqa: FBT003 - the library's own signature
            self._listener.bind(str(path))
            if self._uid != os.getuid():
                os.chown(path, -1, gid)
            # Connecting needs write permission to the socket's file; between bind and chmod nothing listens yet.
            self._path.chmod(0o660 if self._uid != os.getuid() else 0o600)
            self._listener.listen(1)
        except BaseException:
            self.close()
            raise

    def accept(self, is_peer: Callable[[int], bool]) -> None:
        """Accept the init; ``is_peer`` checks by process id that the peer belongs to the container."""
        if self._listener is not None:
            asyncio.get_running_loop().add_reader(self._listener, self._accept, is_peer)

    def close(self) -> None:
        """Close the connection: the init then ends with the kernel, or at once without a kernel."""
        for sock in (self._listener, self._channel):
            if sock is not None:
                asyncio.get_running_loop().remove_reader(sock)
                close_fd(sock.detach())
        if self._listener is not None:
            self._path.unlink(missing_ok=True)
        self._listener = self._channel = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_result({})

    async def request(self, message: Mapping[str, Any], patience: float | None) -> dict[str, Any]:
        """Return the reply to a message; without a reply within ``patience`` seconds, disconnect and return an empty reply."""
        async with self._request_lock:
            self._answer = asyncio.get_running_loop().create_future()
            reply = None
            try:
                with anyio.move_on_after(patience):
                    reply = await self._answer if self.send(message) else {}
            finally:
                self._answer = None
                if reply is None:  # a late reply would be taken for the next one
                    self._disconnect()
        return reply or {}

    def send(self, message: Mapping[str, Any]) -> bool:
        """Send a message without waiting for a reply; return whether the message was sent."""
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
        self.close()  # the listener too: the init connects before it forks a kernel, so a later peer would be user code
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
                # An end counts once: a repeated report must not change the status of a kernel that has ended.
                state, oom = self.kernels.get(mark, (None, None))
                if state is not None and oom is not None and state.status is None:
                    oom.on_exit(status, kills)
                    state.end(status)
            case {"swept": _} | {"born": _} | {"failed": _}:
                if self._answer is not None and not self._answer.done():
                    self._answer.set_result(message)
            case _:
                self._disconnect()

    def _disconnect(self) -> None:
        self.close()
        # Wake every ``wait``: ends are reported by the engine only from now on, so the containers are inspected.
        with suppress(RuntimeError):
            for state, _ in self.kernels.values():
                state.changed.set()


class ContainerReuse:
    """The reuse of a container for kernels in succession, with the knowledge whether anything of the last kernel is left.

    A branch has an instance with a ``mark`` and the same connection; a branch is followed only by copies of checkpoints.
    """

    def __init__(self, state: ContainerState, oom: OomDetector, init: InitConnection, mark: str = "") -> None:
        self.init = init
        self._mark = mark
        init.kernels[mark] = self._state, self._oom = state, oom
        self._is_clean = False
        """Whether no process and no file of the last kernel is left, as the init has reported."""
        self._sources: dict[str, tuple[int, int]] = {}
        self._in_memory: list[str] = []

    @property
    def has_branches(self) -> bool:
        """Whether branches use the container."""
        return len(self.init.kernels) > 1

    @property
    def is_possible(self) -> bool:
        """Whether the init can fork the next kernel."""
        return self._is_clean and self.init.is_connected and not self.has_branches

    def reset_container(self) -> None:
        """Forget the previous container."""
        self._is_clean = False

    def listen(self, path: str, options: Container, mounts: Mounts) -> None:
        """Prepare for a container about to start: note the mounts, and listen for the init at ``path`` if not empty."""
        self._sources = _identities(mounts)
        self._in_memory = sorted({"/dev/mqueue", *options.memory_directories})
        if path:
            self.init.listen(Path(path), options.ids)

    def has_same_mounts(self, mounts: Mounts) -> bool:
        """Return whether the same directories are mounted: the paths may have changed, but not the inodes."""
        return self._sources == _identities(mounts)

    async def fork(self, arguments: Sequence[str], kwargs: Mapping[str, Any]) -> bool:
        """Fork the next kernel; return whether the init has done so."""
        if not self.is_possible or not self.expect_kernel():
            return False
        return "born" in await self.init.request(
            {"birth": protocol.fork_content(arguments, kwargs["env"], kwargs["cwd"])}, None
        )

    def signal(self, signum: int) -> bool:
        """Signal the kernel through the init; return whether the request was sent."""
        return self.init.send({"signal": signum, "mark": self._mark})

    async def adopt(self, pid: int) -> bool:
        """Have the init watch a kernel forked by a checkpoint; return whether the kernel is a child of the init."""
        return "born" in await self.init.request({"adopt": pid, "mark": self._mark}, _SWEEP_SECONDS)

    def expect_kernel(self) -> bool:
        """Prepare for another kernel in this container; return whether there is a connection to the init."""
        state = self._state
        if not self.init.is_connected or state.events is None:
            return False
        self._oom.continue_container(state.events.memory_kills(state.id))
        state.reset_kernel()
        self._is_clean = False
        state.changed.clear()
        return True

    async def sweep(self, spared: Collection[int] = ()) -> bool:
        """End all processes in the container except the init, and clear files in memory; return whether reuse is possible.

        ``spared`` processes are checkpoints: only their copies can use the container afterwards. With branches, only the
        branches can. In both cases files stay. For a branch, only the processes with its mark end.

        Files on the devices of mounts belong to this machine and stay, wherever in the container the files are.
        """
        if self.init.is_connected and not self._is_clean:
            self._state.is_kill_requested |= self._state.status is None
            if spared or self.has_branches:
                is_swept = "swept" in await self.init.request({"end": sorted(spared), "mark": self._mark}, _SWEEP_SECONDS)
                if is_swept and self._state.status is None:  # a copy that the init has not taken over has no end to report
                    self._state.end(KILLED)
                return is_swept and bool(spared)
            devices = [device for device, _ in self._sources.values()]
            reply = await self.init.request({"sweep": self._in_memory, "spared": devices}, _SWEEP_SECONDS)
            # Not swept: a process or a file is left, or a cell has changed the init's resource limits, which a fork inherits.
            self._is_clean = reply.get("swept") is True
        return self.is_possible

    def leave(self) -> None:
        """Forget the ended branch; the connection stays."""
        self.init.kernels.pop(self._mark, None)


def _identities(mounts: Mounts) -> dict[str, tuple[int, int]]:
    """Return device and inode of each existing mounted directory, by path in the container."""
    identities = {}
    for source, inside, _ in mounts:
        with suppress(OSError):
            stat = os.stat(source)  # noqa: PTH116 - of the target of a link, as the engine sees it
            identities[inside] = stat.st_dev, stat.st_ino
    return identities
