"""Sockets that are what they should be: everything else is refused before a byte is written, and leaves nothing open."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kernelexec.provisioning.runtime.unix_sockets import open_pinned
from tests.unit.kernel.test_channels import UID, assert_refused

SERVER = """
import socket, sys
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(sys.argv[1])
    listener.listen()
    print("listening", flush=True)
    peer = listener.accept()[0]
    received = 0
    while chunk := peer.recv(1000):
        received += len(chunk)
    print(received, flush=True)
"""


@contextmanager
def serving(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that listens, and says how many bytes its first client sent."""
    with subprocess.Popen([sys.executable, "-c", SERVER, str(path)], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert output_of(server) == "listening\n"
            yield server
        finally:
            server.kill()


def output_of(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    return server.stdout.readline()


def test_another_process_is_connected_where_no_process_is_expected_or_it_is_the_one(short_path: Path) -> None:
    for name, expected in (("any", False), ("one", True)):
        with serving(short_path / name) as server:
            with open_pinned(short_path / name, uid=UID, belongs=server.pid.__eq__ if expected else lambda _: True) as ours:
                ours.sendall(b"12345")
            assert output_of(server) == "5\n"


def test_a_socket_served_by_another_process_is_refused_before_a_byte_is_written(short_path: Path) -> None:
    with serving(short_path / "s") as server:
        assert_refused(short_path / "s", f"served by process {server.pid}", pid=os.getpid())
        assert output_of(server) == "0\n"


def test_the_socket_of_another_daemon_under_a_second_name_is_refused_before_a_byte_is_written(short_path: Path) -> None:
    with serving(short_path / "daemon") as server:
        (short_path / "s").hardlink_to(short_path / "daemon")
        assert_refused(short_path / "s", f"served by process {server.pid}", pid=os.getpid())
        assert output_of(server) == "0\n"
