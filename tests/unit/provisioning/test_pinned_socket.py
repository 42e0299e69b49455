"""A kernel's socket is connected to only while it is the kernel's own: its file, the file's owner, and who serves it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernelexec.config import Container
from kernelexec.errors import KernelConnectionFailed
from kernelexec.provisioning.container import reuse
from kernelexec.provisioning.container.reuse import InitConnection
from kernelexec.provisioning.runtime import unix_sockets
from kernelexec.provisioning.runtime.unix_sockets import open_pinned

UID = os.geteuid()


@pytest.fixture
def served(short_path: Path) -> Iterator[Path]:
    """A socket that this process serves."""
    path = short_path / "shell"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(path))
        server.listen()
        yield path


def test_the_kernels_own_socket_is_connected_to(served: Path) -> None:
    asked: list[int] = []

    def belongs(pid: int) -> bool:
        asked.append(pid)
        return True

    with open_pinned(served, uid=UID, belongs=belongs) as connected:
        assert connected.getpeername() == str(served)
    assert asked == [os.getpid()]


def test_a_link_to_another_socket_is_refused(served: Path) -> None:
    link = served.with_name("link")
    link.symlink_to(served)
    with pytest.raises(KernelConnectionFailed, match="link is not a socket"):
        open_pinned(link, uid=UID)


def test_a_link_in_the_place_of_the_directory_is_refused(served: Path) -> None:
    link = served.with_name("b1")
    link.symlink_to(served.parent)
    with pytest.raises(KernelConnectionFailed, match="shell: Not a directory"):
        open_pinned(link / served.name, uid=UID)


def test_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "shell"
    file.touch()
    with pytest.raises(KernelConnectionFailed, match="shell is not a socket"):
        open_pinned(file, uid=UID)


def test_a_missing_socket_is_named(tmp_path: Path) -> None:
    with pytest.raises(KernelConnectionFailed, match="shell: No such file"):
        open_pinned(tmp_path / "shell", uid=UID)


def test_the_socket_of_another_user_is_refused(served: Path) -> None:
    with pytest.raises(KernelConnectionFailed, match=f"not a socket of uid {UID + 1}"):
        open_pinned(served, uid=UID + 1)


def test_a_server_of_another_user_is_refused(served: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unix_sockets, "read_peer", lambda _: (os.getpid(), UID + 1))
    with pytest.raises(KernelConnectionFailed, match=f"of uid {UID + 1}, not by the kernel"):
        open_pinned(served, uid=UID)


@pytest.mark.parametrize("belongs", [lambda pid: pid != os.getpid(), lambda _: False])
def test_a_server_that_is_not_the_kernel_is_refused(served: Path, belongs: Callable[[int], bool]) -> None:
    with pytest.raises(KernelConnectionFailed, match=f"served by process {os.getpid()}"):
        open_pinned(served, uid=UID, belongs=belongs)


@pytest.mark.parametrize("other", [0, 1])
def test_only_the_containers_user_is_taken_for_its_init(short_path: Path, monkeypatch: pytest.MonkeyPatch, other: int) -> None:
    monkeypatch.setattr(reuse, "read_peer", lambda _: (os.getpid(), UID + other))

    async def main() -> None:
        init, path = InitConnection(), short_path / "init"
        init.listen(path, Container().ids)
        init.accept(lambda pid: pid == os.getpid())
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
            peer.connect(str(path))
            for _ in range(3):
                await asyncio.sleep(0)
            assert init.is_connected == (other == 0)
        init.close()

    asyncio.run(main())
