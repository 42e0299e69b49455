"""The guard's unix sockets before a kernel's ports: nothing is lost, kept back without bound, or heard too early."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from kernelexec.provisioning.runtime.ports import find_free_ports
from tests.support.pace import BOUND
from tests.support.takeovers import wait_until

SERVES = """
import sys
from kernelexec.launcher.launch import unix_proxy
unix_proxy.serve({"address": sys.argv[1], "sockets": {sys.argv[2]: int(sys.argv[3])}})
sys.stdin.read()
"""


@pytest.fixture
def directory() -> tuple[str, int]:
    address, ports = find_free_ports(("shell",))
    return address, ports["shell"]


@pytest.fixture
def bridge(short_path: Path, directory: tuple[str, int]) -> Iterator[Path]:
    """The socket of a bridge that runs in a process of its own."""
    path = short_path / "s-1"
    command = [sys.executable, "-c", SERVES, directory[0], str(path), str(directory[1])]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        try:
            yield path
        finally:
            process.kill()


def connected(path: Path) -> socket.socket:
    wait_until(path.exists)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(BOUND)
    sock.connect(str(path))
    return sock


def accepted(server: socket.socket, sock: socket.socket) -> socket.socket:
    """The far end of a connection, besides those that only tested whether there is a listener."""
    sock.sendall(b"!")
    while True:
        far, _ = server.accept()
        far.settimeout(BOUND)
        if far.recv(1) == b"!":
            return far
        far.close()


def everything(sock: socket.socket) -> bytes:
    return b"".join(iter(lambda: sock.recv(65536), b""))


def test_there_is_no_socket_before_the_port_is_open(bridge: Path, directory: tuple[str, int]) -> None:
    assert not bridge.exists()
    with socket.create_server(directory) as server, closing(connected(bridge)) as near, closing(accepted(server, near)) as far:
        near.sendall(b"there")
        assert far.recv(5) == b"there"
        far.sendall(b"back")
        assert near.recv(4) == b"back"


def test_an_end_that_has_sent_all_still_receives(bridge: Path, directory: tuple[str, int]) -> None:
    with socket.create_server(directory) as server, closing(connected(bridge)) as near, closing(accepted(server, near)) as far:
        near.sendall(b"question")
        near.shutdown(socket.SHUT_WR)
        assert everything(far) == b"question"
        answer = os.urandom(3_000_000)

        def say() -> None:
            far.sendall(answer)
            far.close()

        threading.Thread(target=say).start()
        assert everything(near) == answer


def test_unread_output_is_not_taken_from_the_sender(bridge: Path, directory: tuple[str, int]) -> None:
    with socket.create_server(directory) as server, closing(connected(bridge)) as near, closing(accepted(server, near)) as far:
        far.settimeout(2)
        sent = 0
        with suppress(TimeoutError):
            while sent < 2**30:
                sent += far.send(bytes(65536))
        assert sent < 32 * 2**20, "the bridge keeps what it cannot hand on"
        far.close()
        assert len(everything(near)) == sent


def test_an_end_that_breaks_breaks_the_other(bridge: Path, directory: tuple[str, int]) -> None:
    with socket.create_server(directory) as server, closing(connected(bridge)) as near:
        far = accepted(server, near)
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        far.close()
        assert everything(near) == b""


def test_a_closed_port_ends_the_connection_by_the_socket(bridge: Path, directory: tuple[str, int]) -> None:
    with socket.create_server(directory):
        wait_until(bridge.exists)
    with closing(connected(bridge)) as near:
        assert near.recv(1) == b""
