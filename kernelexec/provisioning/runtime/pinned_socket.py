"""Unix sockets of untrusted processes, opened by a pinned descriptor.

Neither a socket nor its directory may be a link, and the socket must belong to the expected user and must be served by the
expected process before a single byte is written to it. So a kernel gains nothing if it replaces its socket by a link to
another daemon's.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from kernelexec.errors import KernelConnectionFailed
from kernelexec.provisioning.runtime.processes import read_peer
from kernelexec.workspace.safe_files import DIRECTORY, NAMED, closing_fd


def open_pinned(
    path: Path, *, uid: int, belongs: Callable[[int], bool] = lambda _: True, kind: int = socket.SOCK_STREAM
) -> socket.socket:
    """Return a connected, non-blocking unix socket to the file that ``path`` names now.

    Only Linux can connect to the checked file itself; elsewhere the path is checked and then connected to by name.

    Raises:
        KernelConnectionFailed: the path is a link or no socket, has another owner, or its server is one that ``belongs``
            rejects by process id.
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
    peer = read_peer(sock)
    if peer is None:
        return
    peer_pid, peer_uid = peer
    if peer_uid != uid or not belongs(peer_pid):
        raise KernelConnectionFailed(f"{path.name} is served by process {peer_pid} of uid {peer_uid}, not by the kernel.")
