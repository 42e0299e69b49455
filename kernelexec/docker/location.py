"""What can be told, at no cost, of where an engine is: on this machine, in a virtual one, or elsewhere."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from kernelexec.docker.address import host, socket_at
from kernelexec.docker.client import Engine, mapped

#: Of `struct ucred`: the process, its user and its group.
_PEER = struct.Struct("3i")
_NEAR = frozenset({"", "localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """What an engine says of its machine, and what the way to it says."""

    address: str
    """Where it is asked."""
    system: str
    """The name of its machine's operating system; ``Docker Desktop`` for that one's virtual machine."""
    node: str
    release: str
    """The name of its machine, and the release of that one's kernel."""
    listener: int
    """The process behind its unix socket as this one counts; 0 if there is none, or it cannot be seen."""

    @property
    def remote(self) -> bool:
        """Whether it is asked for on another machine by name."""
        place = urlsplit(self.address)
        return place.scheme == "ssh" or (place.scheme in {"tcp", "http", "https"} and (place.hostname or "") not in _NEAR)

    @classmethod
    def of(cls, engine: Engine) -> Self:
        """Ask the engine.

        Raises:
            EngineAway, EngineRefused: it does not say.
        """
        with mapped("describe itself"):
            said = engine.api.info()
        address = host()
        return cls(address, said["OperatingSystem"], said["Name"], said["KernelVersion"], _listener(address))


def _listener(address: str) -> int:
    path = socket_at(address)
    if path is None:
        return 0
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.connect(path)
            pid, _, _ = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    except (OSError, AttributeError):  # only Linux has SO_PEERCRED
        return 0
    return int(pid)
