"""Sockets that are what they should be: everything else is refused before a byte is written, and leaves nothing open."""

from __future__ import annotations

import gc
import os
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kernelexec.errors import KernelConnectionFailed
from kernelexec.provisioning.runtime.unix_sockets import open_pinned
from tests.support.pace import until

UID = os.getuid()


@contextmanager
def listening(path: Path, backlog: int = 5) -> Iterator[socket.socket]:
    """A listener at a path of any length."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            listener.bind(f"/proc/self/fd/{directory}/{path.name}")
        finally:
            os.close(directory)
        listener.listen(backlog)
        listener.setblocking(False)  # noqa: FBT003 - the socket module's own signature
        yield listener


@pytest.fixture(scope="module", autouse=True)
def nothing_left() -> None:
    """Close what earlier tests have left, which else might be closed in the middle of one that counts."""
    gc.collect()


def descriptors(generation: int = 1) -> int:
    gc.collect(generation)  # all objects would take long where thousands of tests have left some
    return len(list(Path("/proc/self/fd").iterdir()))


def assert_untouched(listener: socket.socket) -> None:
    """No peer connected, so none wrote."""
    with pytest.raises(BlockingIOError):
        listener.accept()


def assert_refused(path: Path, match: str, uid: int = UID, pid: int | None = None) -> None:
    """Refused with an error that names the socket, and no descriptor is left."""
    before = descriptors()
    with pytest.raises(KernelConnectionFailed, match=match) as caught:
        open_pinned(path, uid=uid, belongs=lambda peer: pid in (None, peer))
    assert path.name in str(caught.value)
    until(lambda: descriptors() <= before or descriptors(2) <= before)


def test_a_socket_of_the_expected_process_is_connected(short_path: Path) -> None:
    with listening(short_path / "s") as listener, open_pinned(short_path / "s", uid=UID, belongs=os.getpid().__eq__) as ours:
        theirs, _ = listener.accept()
        with theirs:
            ours.sendall(b"hello")
            assert theirs.recv(100) == b"hello"
            assert ours.getblocking() is False
            assert ours.get_inheritable() is False


def test_a_connection_leaves_one_descriptor_and_none_once_closed(short_path: Path) -> None:
    with listening(short_path / "s"):
        before = descriptors()
        with open_pinned(short_path / "s", uid=UID, belongs=os.getpid().__eq__):
            assert descriptors() == before + 1
        until(lambda: descriptors() <= before or descriptors(2) <= before)


@pytest.mark.parametrize("pid", [None, os.getpid()], ids=["any process", "this process"])
def test_a_link_to_the_socket_of_another_daemon_is_refused_and_the_daemon_hears_nothing(
    short_path: Path, pid: int | None
) -> None:
    with listening(short_path / "daemon") as daemon:
        (short_path / "s").symlink_to(short_path / "daemon")
        assert_refused(short_path / "s", "is not a socket", pid=pid)
        (short_path / "chain").symlink_to(short_path / "s")
        assert_refused(short_path / "chain", "is not a socket", pid=pid)
        assert_untouched(daemon)


def test_a_socket_of_another_owner_is_refused_without_a_connection(short_path: Path) -> None:
    with listening(short_path / "s") as listener:
        assert_refused(short_path / "s", f"not a socket of uid {UID + 1}", uid=UID + 1)
        assert_untouched(listener)


NO_SOCKETS: dict[str, Callable[[Path], object]] = {
    "a plain file": Path.touch,
    "a fifo": os.mkfifo,
    "a directory": Path.mkdir,
    "a dangling link": lambda path: path.symlink_to("nowhere"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to a device": lambda path: path.symlink_to("/dev/null"),
}


@pytest.mark.parametrize("make", NO_SOCKETS.values(), ids=NO_SOCKETS)
def test_paths_other_than_sockets_are_refused(short_path: Path, make: Callable[[Path], object]) -> None:
    make(short_path / "s")
    assert_refused(short_path / "s", "is not a socket")


@pytest.mark.parametrize(("path", "reason"), [("s", "No such file"), ("missing/s", "No such file"), ("n" * 300, "too long")])
def test_a_path_that_is_not_there_is_refused(short_path: Path, path: str, reason: str) -> None:
    assert_refused(short_path / path, reason)


def test_a_socket_without_a_server_is_refused(short_path: Path) -> None:
    with listening(short_path / "s"):
        pass
    assert_refused(short_path / "s", "Connection refused")


def test_a_socket_of_datagrams_is_refused(short_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
        datagrams.bind(str(short_path / "s"))
        assert_refused(short_path / "s", "wrong type")


def test_a_socket_that_takes_no_more_connections_is_refused_at_once(short_path: Path) -> None:
    with listening(short_path / "s", backlog=0), open_pinned(short_path / "s", uid=UID):
        assert_refused(short_path / "s", "temporarily unavailable")


@pytest.mark.parametrize("length", [106, 107, 108, 109, 200, 1000])
def test_a_path_of_any_length_is_connected(short_path: Path, length: int) -> None:
    path = short_path / "d"
    while (missing := length - len(str(path / "s"))) > 0:
        path = path / ("d" * 99) if missing > 100 else path.with_name(path.name + "d" * missing)
    path.mkdir(parents=True)
    path /= "s"
    assert len(str(path)) == length
    with listening(path) as listener, open_pinned(path, uid=UID, belongs=os.getpid().__eq__) as ours:
        theirs, _ = listener.accept()
        with theirs:
            ours.sendall(b"hello")
            assert theirs.recv(100) == b"hello"


@pytest.mark.parametrize("spare", [0, 1])
def test_a_lack_of_descriptors_is_a_refusal(short_path: Path, spare: int) -> None:
    with listening(short_path / "s") as listener:
        before, limits = descriptors(), resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest_free = os.dup(listener.fileno())
        os.close(lowest_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + spare, limits[1]))
        try:
            with pytest.raises(KernelConnectionFailed):
                open_pinned(short_path / "s", uid=UID, belongs=os.getpid().__eq__)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        until(lambda: descriptors() <= before)
        assert_untouched(listener)
