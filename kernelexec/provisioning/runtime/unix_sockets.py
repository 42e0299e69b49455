"""Unix sockets of untrusted processes, opened by a pinned descriptor, and the connection to a checkpoint.

Neither the socket nor the directory may be a link. The socket must belong to the expected user and must be served by the
expected process before the first byte is written. So a kernel gains nothing by a link to another daemon's socket.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

import anyio

from kernelexec.errors import KernelConnectionFailed, KernelStartFailed
from kernelexec.launcher.protocol import CHECKPOINT_SOCKET, DROP_REQUEST, RestoreRequest
from kernelexec.provisioning.runtime.owned_directory import close_fd, track_fd
from kernelexec.provisioning.runtime.processes import read_peer
from kernelexec.workspace.rmtree import names_in
from kernelexec.workspace.safe_files import DIRECTORY, NAMED, closing_fd

_ANSWER_BYTES = 64 * 1024
#: Files of a kernel's directory that are examined at most: it has some tens, but cells may make any number.
_ENTRIES_MAX = 10_000
#: How long a checkpoint may take to listen after it was made, and to answer, in seconds; and the pause between two tries.
_LISTEN_SECONDS, _ANSWER_SECONDS, _PAUSE_SECONDS = 2.0, 10.0, 0.002


def open_pinned(
    path: Path, *, uid: int, belongs: Callable[[int], bool] = lambda _: True, kind: int = socket.SOCK_STREAM
) -> socket.socket:
    """Return a connected, non-blocking unix socket to the file now at ``path``.

    Only Linux can connect to the checked file itself; other systems connect by name after the check.

    Raises:
        KernelConnectionFailed: the path is a link or no socket, has another owner, or ``belongs`` rejects the process id of
            the server.
    """
    try:
        with closing_fd(os.open(path.parent, DIRECTORY)) as directory:
            pin = os.open(path.name, NAMED | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except OSError as exc:
        raise KernelConnectionFailed(f"{path.name}: {exc.strerror}") from exc
    with ExitStack() as closing:
        try:
            _check_file(pin, path, uid)
            sock = closing.enter_context(socket.socket(socket.AF_UNIX, kind))
            sock.setblocking(False)  # noqa: FBT003 - the socket module's own signature
            # By the pinned inode, not by name: between the check and the connect the kernel could replace the name. The link
            # in /proc is also short, whereas the path of a socket has at most 107 bytes.
            sock.connect(f"/proc/self/fd/{pin}" if Path("/proc/self/fd").exists() else str(path))
            _check_peer(sock, path, uid, belongs)
        except OSError as exc:
            raise KernelConnectionFailed(f"{path.name}: {exc.strerror or exc}") from exc
        finally:
            os.close(pin)
        closing.pop_all()
    return sock


def _check_file(pin: int, path: Path, uid: int) -> None:
    status = os.fstat(pin)
    if not stat.S_ISSOCK(status.st_mode) or status.st_uid != uid:
        raise KernelConnectionFailed(f"{path.name} is not a socket of uid {uid}: the kernel may have replaced it.")


def _check_peer(sock: socket.socket, path: Path, uid: int, belongs: Callable[[int], bool]) -> None:
    # The credentials of the process that called listen(2): a link to another daemon's socket shows that daemon.
    peer = read_peer(sock)
    if peer is None:
        return
    peer_pid, peer_uid = peer
    if peer_uid != uid or not belongs(peer_pid):
        raise KernelConnectionFailed(f"{path.name} is served by process {peer_pid} of uid {peer_uid}, not by the kernel.")


def list_checkpoints(directory: str | Path) -> list[int]:
    """Return the numbers of the checkpoint sockets in a kernel's private directory, the newest first."""
    try:
        with closing_fd(os.open(directory, DIRECTORY)) as fd:
            names = names_in(fd, _ENTRIES_MAX)
    except OSError:
        return []
    numbers = (name.removeprefix(CHECKPOINT_SOCKET) for name in names if name.startswith(CHECKPOINT_SOCKET))
    return sorted((int(number) for number in numbers if number.isdecimal() and number.isascii()), reverse=True)


class CheckpointSocket:
    """A connection to a checkpoint: a stopped copy of a kernel, which forks kernels on request.

    All answers are checked: cells could change the memory of the process.
    """

    def __init__(self, sock: socket.socket, number: int, path: Path) -> None:
        self.path = path
        track_fd(sock.fileno())
        self._socket = sock
        self.number = number
        peer = read_peer(sock)
        self.pid = 0 if peer is None else peer[0]
        """Process id on this machine; 0 if not visible from here."""
        self.own_pid = 0
        """Process id in the checkpoint's own namespace, such as the container's."""
        self.cell = 0
        """The execution count of the next cell at the time of the checkpoint."""
        self.name: str | None = None
        self.is_automatic = False
        """Whether the checkpoint was made after a cell, not by request."""
        self.after = ""
        """The execution id of the last cell before the checkpoint."""

    @classmethod
    async def connect(cls, directory: Path, number: int, *, uid: int) -> Self:
        """Connect to a checkpoint in the private directory of a kernel of that user.

        Raises:
            KernelConnectionFailed: the checkpoint is gone, or another file has the name.
        """
        path = directory / f"{CHECKPOINT_SOCKET}{number}"
        # The description too: a copy that accepts and never answers must not hold up the others of a kernel that died.
        with anyio.move_on_after(_LISTEN_SECONDS):
            while True:
                try:
                    connected = cls(open_pinned(path, uid=uid, kind=socket.SOCK_SEQPACKET), number, path)
                except KernelConnectionFailed as exc:
                    # The kernel binds the socket before the fork and the copy listens after it: refused until then.
                    if not isinstance(exc.__cause__, ConnectionRefusedError):
                        raise
                else:
                    try:
                        await connected._describe()
                    except BaseException:
                        connected.close()
                        raise
                    return connected
                await anyio.sleep(_PAUSE_SECONDS)
        raise KernelConnectionFailed(f"{path.name} has no process that answers")

    async def _describe(self) -> None:
        match await self._ask({}):
            case {
                "checkpoint": {
                    "pid": int(pid),
                    "cell": int(cell),
                    "name": str() | None as name,
                    "is_automatic": bool(is_automatic),
                    "after": str(after),
                }
            }:
                self.own_pid, self.cell, self.after = pid, cell, after
                self.name, self.is_automatic = name, is_automatic
            case _:
                raise KernelConnectionFailed("the checkpoint does not describe itself")

    async def fork(self, options: dict[str, Any]) -> int:
        """Fork a kernel with the launcher's options; return the process id in the checkpoint's namespace.

        Raises:
            KernelStartFailed: the checkpoint is gone, or did not fork a kernel.
        """
        try:
            answer = await self._ask({"restore": options})
        except KernelConnectionFailed as exc:
            raise KernelStartFailed(f"The checkpoint cannot be restored: {exc}.") from exc
        match answer:
            case {"pid": int(pid)} if pid > 0:
                return pid
            case {"failed": str(reason)}:
                raise KernelStartFailed(f"The checkpoint cannot be restored: it could not be copied: {reason:.200}.")
        raise KernelStartFailed("The checkpoint cannot be restored: it gave no answer that can be read.")

    async def drop(self) -> None:
        """End the checkpoint."""
        with suppress(OSError), anyio.move_on_after(_ANSWER_SECONDS):
            await asyncio.get_running_loop().sock_sendall(self._socket, DROP_REQUEST)
            await asyncio.get_running_loop().sock_recv(self._socket, 1)  # no byte comes: the end of the process
        with suppress(OSError), closing_fd(os.open(self.path.parent, DIRECTORY)) as directory:
            os.unlink(self.path.name, dir_fd=directory)

    async def _ask(self, request: RestoreRequest) -> Any:  # noqa: ANN401 - JSON of an untrusted process
        loop = asyncio.get_running_loop()
        try:
            with anyio.fail_after(_ANSWER_SECONDS):
                await loop.sock_sendall(self._socket, json.dumps(request).encode())
                # One datagram is one answer (SOCK_SEQPACKET); a longer one is cut, and then no JSON.
                return json.loads(await loop.sock_recv(self._socket, _ANSWER_BYTES) or b"null")
        except TimeoutError as exc:
            raise KernelConnectionFailed(f"the checkpoint did not answer within {_ANSWER_SECONDS:g} s") from exc
        except (OSError, ValueError, RecursionError) as exc:
            raise KernelConnectionFailed(f"the checkpoint is gone: {exc}") from exc

    def close(self) -> None:
        """Close the connection; repeated calls do nothing. The checkpoint stays."""
        if (fd := self._socket.detach()) >= 0:
            close_fd(fd)
