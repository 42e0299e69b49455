"""The engine's description of itself: its version, the names of its images, and where it runs."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from kernelexec.docker.client import Engine, host, map_docker_errors, socket_at


@dataclass(frozen=True, slots=True)
class About:
    """An engine: its version, the machine that it runs on, the kind of its control groups, and its images by name."""

    version: str
    system: str
    cgroup: str
    live_restore: bool
    images: tuple[str, ...]

    def first_of(self, names: Iterable[str]) -> str | None:
        """Return the first of these images that the engine has."""
        here = {name.removesuffix(":latest") for name in self.images}
        return next((name for name in names if name.removesuffix(":latest") in here), None)


def about(engine: Engine) -> About:
    """Return the description of an engine."""
    with map_docker_errors("describe itself"):
        answer, listed = engine.api.info(), engine.api.images()
    return About(
        version=str(answer.get("ServerVersion", "unknown")),
        system=str(answer.get("OperatingSystem", "unknown")),
        cgroup=str(answer.get("CgroupVersion") or "1"),
        live_restore=bool(answer.get("LiveRestoreEnabled")),
        images=tuple(sorted(name for image in listed for name in image.get("RepoTags") or () if name != "<none>:<none>")),
    )


#: Of `struct ucred`: the process, its user and its group.
_PEER = struct.Struct("3i")
_NEAR = frozenset({"", "localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """An engine's description of its machine, and its address."""

    address: str
    """The address of the engine."""
    system: str
    """The operating system of its machine; ``Docker Desktop`` in the virtual machine of that."""
    node: str
    release: str
    """The name of its machine, and the release of the machine's kernel."""
    listener: int
    """The process that listens at its unix socket, as this machine counts; 0 if it is unknown."""

    @property
    def remote(self) -> bool:
        """Return whether its address names another machine."""
        url = urlsplit(self.address)
        return url.scheme == "ssh" or (url.scheme in {"tcp", "http", "https"} and (url.hostname or "") not in _NEAR)

    @classmethod
    def of(cls, engine: Engine) -> Self:
        """Return the location of an engine."""
        with map_docker_errors("describe itself"):
            answer = engine.api.info()
        address = host()
        return cls(address, answer["OperatingSystem"], answer["Name"], answer["KernelVersion"], _listener(address))


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
