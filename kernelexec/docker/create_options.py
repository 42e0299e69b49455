"""A kernel's container in the engine's own words. Pure: what is locked down, and which option relaxes it, is read here."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from docker.types.containers import LogConfig, Ulimit
from docker.types.services import Mount

from kernelexec.config import HOME_INSIDE, Container, Limits

_DEAF = {"max-size": "1m", "max-file": "1"}
_TMPFS = "rw,noexec,nosuid,nodev,size={},{}"
_BILLION = 1_000_000_000
#: The one address at which ports are published.
LOOPBACK = "127.0.0.1"
#: The network of containers that are to have none, and have published ports.
NETWORK = "kernelexec"
#: Nobody answers there: names are not looked up by the engine either, which asks the servers that a container would.
_NO_DNS = [LOOPBACK]
_SOON = ["timeout:1", "attempts:1"]


@dataclass(frozen=True, slots=True)
class Order:
    """One container to be made."""

    image: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    user: str
    cwd: str
    mounts: tuple[tuple[str, str, bool], ...]
    """Where it is on this machine, or the name of a volume; where it is in the container, and whether it can only be read."""
    labels: Mapping[str, str]
    options: Container
    limits: Limits = field(default_factory=Limits)
    ports: tuple[int, ...] = ()
    """Ports of the container that are published on this machine's own address, each at one that is free."""
    has_init: bool = False
    """Whether its command reaps what other processes leave, as a first process must."""

    @property
    def network(self) -> str:
        """Which one it is in."""
        return network_of(self.options.network, self.ports)

    def settings(self) -> dict[str, Any]:
        """What the container is."""
        return {
            "image": self.image,
            "command": list(self.command),
            "entrypoint": [],
            "environment": dict(self.environment),
            "user": self.user,
            "working_dir": self.cwd,
            "labels": {**self.options.labels, **self.labels},
            "ports": list(self.ports),
            "hostname": self._hostname,
            "use_config_proxy": False,
        }

    def host(self) -> dict[str, Any]:
        """What the machine gives it."""
        options = self.options
        memory = options.memory_bytes
        return {
            "network_mode": self.network,
            "port_bindings": dict.fromkeys(self.ports, (LOOPBACK,)) or None,
            "dns": _NO_DNS if self.network == NETWORK else None,
            "dns_opt": _SOON if self.network == NETWORK else None,
            "read_only": options.read_only_root,
            "cap_drop": ["ALL"],
            "cap_add": list(options.cap_add) or None,
            "security_opt": ["no-new-privileges:true"] if options.no_new_privileges else None,
            "extra_hosts": {self._hostname: "127.0.0.1"} if self._hostname and self._is_alone else None,
            "init": not self.has_init,
            "ipc_mode": "private",
            "shm_size": options.shm_bytes,
            "mem_limit": memory,
            "memswap_limit": options.memory_swap_bytes or memory,
            "nano_cpus": None if options.cpus is None else round(options.cpus * _BILLION),
            "pids_limit": options.pids,
            "tmpfs": {path: self._in_memory(path, size) for path, size in options.memory_places.items()},
            "ulimits": self._ulimits(),
            "log_config": LogConfig(type="json-file", config=_DEAF),
            "mounts": [_mount(*mount) for mount in self.mounts],
        }

    def _in_memory(self, path: str, size: int) -> str:
        """How a directory in memory is made: anybody's, but for a home, which is the kernel's own."""
        if not path.startswith(HOME_INSIDE):
            return _TMPFS.format(size, "mode=1777")
        return _TMPFS.format(size, "uid={},gid={},mode=0755".format(*self.options.ids))

    @property
    def _is_alone(self) -> bool:
        return self.options.sudo and self.options.network == "none"

    @property
    def _hostname(self) -> str | None:
        """The name that is chosen; one of ours for sudo, which looks it up: without a network the engine leaves it unknown."""
        return self.options.hostname or ("kernel" if self._is_alone else None)

    def _ulimits(self) -> list[Ulimit]:
        limits = self.limits
        bounds = {"core": 0, "nofile": limits.nofile, "fsize": limits.fsize_bytes, "as": limits.as_bytes, "nproc": limits.nproc}
        return [Ulimit(name=name, soft=value, hard=value) for name, value in bounds.items() if value is not None]


def network_of(wanted: str, ports: Collection[object]) -> str:
    """The network of a container with such ports. Nothing can be published in ``none``: then nothing leads out of it."""
    return NETWORK if ports and wanted == "none" else wanted


def _mount(source: str, target: str, read_only: bool) -> Mount:  # noqa: FBT001 - as it is written down
    if source.startswith("/"):
        return Mount(target, source, type="bind", read_only=read_only)
    return Mount(target, source, type="volume", read_only=read_only, no_copy=True)
