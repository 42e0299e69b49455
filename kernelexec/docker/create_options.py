"""The options of the engine for a kernel's container. Pure: all restrictions, and the settings that relax them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from docker.types.containers import DeviceRequest, LogConfig, Ulimit
from docker.types.services import Mount

from kernelexec.config import HOME_INSIDE, Container, Limits

_DEAF = {"max-size": "1m", "max-file": "1"}
_TMPFS = "rw,noexec,nosuid,nodev,size={},{}"
_BILLION = 1_000_000_000
#: The only address at which ports are published.
LOOPBACK = "127.0.0.1"
#: The network of containers with published ports, but without any other network.
NETWORK = "kernelexec"
#: No name server: nothing answers there, and the engine resolves names by the same servers.
_NO_DNS = [LOOPBACK]
_SOON = ["timeout:1", "attempts:1"]


@dataclass(frozen=True, slots=True)
class Order:
    """A container to be created."""

    image: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    user: str
    cwd: str
    mounts: tuple[tuple[str, str, bool], ...]
    """Of each mount: its path on this machine or its volume, its path in the container, and whether it is read-only."""
    labels: Mapping[str, str]
    options: Container
    limits: Limits = field(default_factory=Limits)
    ports: tuple[int, ...] = ()
    """Ports of the container that are published on this machine's loopback address, each at a free port."""
    has_init: bool = False
    """Whether its command reaps orphaned processes, as a first process must."""

    @property
    def network(self) -> str:
        """Return the name of its network."""
        return network_of(self.options.network, self.ports)

    def settings(self) -> dict[str, Any]:
        """Return the settings of the container itself."""
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
        """Return the settings of its host: limits, mounts and network."""
        options, limits = self.options, self.limits
        memory = options.memory_bytes
        ulimits = {"core": 0, "fsize": limits.fsize_bytes, "as": limits.as_bytes}
        ulimits |= {"nofile": limits.nofile, "nproc": limits.nproc}
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
            "device_requests": _request_gpus(options.gpus),
            "pids_limit": options.pids,
            "tmpfs": {path: self._in_memory(path, size) for path, size in options.memory_directories.items()},
            "ulimits": [Ulimit(name=name, soft=value, hard=value) for name, value in ulimits.items() if value is not None],
            "log_config": LogConfig(type="json-file", config=_DEAF),
            "mounts": [_mount(*mount) for mount in self.mounts],
        }

    def _in_memory(self, path: str, size: int) -> str:
        """Return the options of a directory in memory: writable by all, but for a home, which belongs to the kernel's user."""
        if not path.startswith(HOME_INSIDE):
            return _TMPFS.format(size, "mode=1777")
        return _TMPFS.format(size, "uid={},gid={},mode=0755".format(*self.options.ids))

    @property
    def _is_alone(self) -> bool:
        return self.options.sudo and self.options.network == "none"

    @property
    def _hostname(self) -> str | None:
        """Return the chosen host name, or ours for sudo, which looks it up and has no network."""
        return self.options.hostname or ("kernel" if self._is_alone else None)


def network_of(wanted: str, ports: Collection[object]) -> str:
    """Return the network of a container with such ports, which cannot be published in ``none``: a network without a way out."""
    return NETWORK if ports and wanted == "none" else wanted


def _request_gpus(gpus: str | int | tuple[str, ...] | None) -> list[DeviceRequest] | None:
    """Return the request to the engine: of all GPUs the number -1."""
    if gpus is None:
        return None
    if isinstance(gpus, tuple):
        return [DeviceRequest(device_ids=list(gpus), capabilities=[["gpu"]])]
    return [DeviceRequest(count=gpus if isinstance(gpus, int) else -1, capabilities=[["gpu"]])]


def _mount(source: str, target: str, read_only: bool) -> Mount:  # noqa: FBT001 - as it is written down
    if source.startswith("/"):
        return Mount(target, source, type="bind", read_only=read_only)
    return Mount(target, source, type="volume", read_only=read_only, no_copy=True)
