"""Loopback ports for kernels without unix sockets: the choice of free ports, and the check of the listening process."""

from __future__ import annotations

import re
import secrets
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from kernelexec.errors import KernelStartFailed
from kernelexec.launcher.processes.proc import PROC
from kernelexec.provisioning import platform
from kernelexec.provisioning.runtime.processes import is_descendant

_LISTENS = "0A"
_TRIES = 10
_SOCKET = re.compile(r"socket:\[(\d+)\]")


def find_free_ports(names: tuple[str, ...]) -> tuple[str, dict[str, int]]:
    """Return a loopback address and a free port for each name.

    On Linux the address is a random member of 127.0.0.0/8, so another program is unlikely to take a port before the kernel
    binds the port. Other systems have 127.0.0.1 only.

    Raises:
        KernelStartFailed: no port is free.
    """
    for attempt in range(_TRIES):
        is_fixed = attempt == _TRIES - 1 or not platform.PLATFORM.has_loopback_range
        random_address = f"127.{1 + secrets.randbelow(254)}.{secrets.randbelow(256)}.{1 + secrets.randbelow(254)}"
        address = "127.0.0.1" if is_fixed else random_address
        with suppress(OSError), ExitStack() as bound:
            sockets = {name: bound.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) for name in names}
            for sock in sockets.values():  # all are bound before any is closed, else two names could get the same port
                sock.bind((address, 0))
            return address, {name: int(sock.getsockname()[1]) for name, sock in sockets.items()}
    message = "No port of a loopback address is free: end the programs that use them, or raise net.ipv4.ip_local_port_range."
    raise KernelStartFailed(message)


def has_foreign_listener(address: str, port: int, family: int) -> bool:
    """Return whether any listener there is no descendant of ``family``, or nothing listens; False without ``/proc``."""
    if not (PROC / "net/tcp").exists():
        return False
    wanted = set(_find_listeners(address, port))
    return not wanted or not wanted <= _find_sockets(family)


def _find_listeners(address: str, port: int) -> Iterator[str]:
    """Yield the inodes of the sockets listening on a port, at that address or at all addresses."""
    # A line of /proc/net/tcp: the number, local and remote endpoint (the address as the machine's own u32 in hexadecimal), the
    # state, ..., and the inode as the tenth field.
    raw = struct.unpack("=I", socket.inet_aton(address))[0]
    endpoints = {f"{raw:08X}:{port:04X}", f"{0:08X}:{port:04X}"}
    for line in (PROC / "net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1] in endpoints and fields[3] == _LISTENS:
            yield fields[9]


def _find_sockets(family: int) -> set[str]:
    """Return the inodes of all sockets of a process and the descendants."""
    inodes = set()
    for process in PROC.glob("[0-9]*"):
        if is_descendant(int(process.name), family):
            with suppress(OSError):
                for fd in (process / "fd").iterdir():
                    inodes |= _read_socket(fd)
    return inodes


def _read_socket(fd: Path) -> set[str]:
    with suppress(OSError):
        if match := _SOCKET.fullmatch(str(fd.readlink())):
            return {match[1]}
    return set()
