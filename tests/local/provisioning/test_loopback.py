"""Ports of a loopback address: free, apart from each other, and known to be the kernel's own."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kernelexec.errors import KernelConnectionFailed
from kernelexec.kernel.wire.channels import Connector
from kernelexec.provisioning import Connection
from kernelexec.provisioning.runtime.ports import find_free_ports, has_foreign_listener

LISTENS = """
import socket, sys, time
sock = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("listening", flush=True)
time.sleep(600)
"""


@contextmanager
def listening(address: str, port: int) -> Iterator[int]:
    """A process that listens, which is a child of this one."""
    command = [sys.executable, "-c", LISTENS, address, str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "listening\n"
            yield process.pid
        finally:
            process.kill()


def test_ports_are_free_and_of_one_address() -> None:
    address, ports = find_free_ports(("a", "b", "c"))
    assert address.startswith("127.")
    assert len(set(ports.values())) == 3
    for port in ports.values():
        with socket.create_server((address, port)) as sock:
            assert sock.getsockname() == (address, port)


def test_addresses_differ() -> None:
    assert len({find_free_ports(("a",))[0] for _ in range(20)}) > 15


def test_a_listener_is_distinguished_from_a_stranger() -> None:
    address, ports = find_free_ports(("a",))
    assert has_foreign_listener(address, ports["a"], os.getpid())
    with listening(address, ports["a"]) as pid:
        assert not has_foreign_listener(address, ports["a"], pid)
        assert not has_foreign_listener(address, ports["a"], os.getpid())
        with listening(address, find_free_ports(("b",))[1]["b"]) as other:
            assert has_foreign_listener(address, ports["a"], other)


def test_a_listener_at_every_address_is_seen_too() -> None:
    address, ports = find_free_ports(("a",))
    with listening("0.0.0.0", ports["a"]) as pid:  # noqa: S104 - what a stranger may do
        assert not has_foreign_listener(address, ports["a"], pid)
        assert has_foreign_listener(address, ports["a"], pid + 10**8)


def test_a_port_that_a_stranger_serves_is_not_written_to() -> None:
    address, ports = find_free_ports(("shell_port",))
    with listening(address, ports["shell_port"]) as pid, subprocess.Popen(["sleep", "600"]) as other:
        try:

            async def dialed(family: int) -> bool:
                connection = Connection(Path("/s"), b"key", address, ports)
                with await Connector(connection, family, is_serving=False).open_socket("shell") as sock:
                    return bool(sock.getpeername() == (address, ports["shell_port"]))

            assert asyncio.run(dialed(pid))
            with pytest.raises(KernelConnectionFailed, match="served by another process than the kernel"):
                asyncio.run(dialed(other.pid))
        finally:
            other.kill()
