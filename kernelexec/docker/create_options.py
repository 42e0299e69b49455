"""The options of the engine for a kernel's container. Pure: all restrictions, and the settings to relax them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from docker.types.containers import DeviceRequest, LogConfig, Ulimit
from docker.types.services import Mount

from kernelexec.config import HOME_INSIDE, Container, Limits

#: However much a container prints, the engine's log of it stays small.
_DEAF = {"max-size": "1m", "max-file": "1"}
_TMPFS = "rw,noexec,nosuid,nodev,size={},{}"
_BILLION = 1_000_000_000
#: The size of the private directory of a kernel that is reached by a relay.
_PRIVATE_BYTES = 64 * 1024 * 1024


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
    private: str = ""
    """A directory in memory of the kernel's user alone; none if empty."""
    has_init: bool = False
    """Whether its command reaps orphaned processes, as a first process must."""

    def settings(self) -> dict[str, Any]:
        """Return the settings of the container itself."""
        return {
            "image": self.image,
            "command": list(self.command),
            "entrypoint": [],  # None would keep the image's, which would get the command as its arguments
            "environment": dict(self.environment),
            "user": self.user,
            "working_dir": self.cwd,
            "labels": dict(self.labels),
            "hostname": self._hostname,
            # Else the library adds the proxies of ~/.docker/config.json to the environment, passwords included.
            "use_config_proxy": False,
        }

    def host(self) -> dict[str, Any]:
        """Return the host settings of the container: limits, mounts and network."""
        options, limits = self.options, self.limits
        memory, in_memory = options.memory_bytes, options.memory_directories
        ulimits = {"core": 0, "as": limits.as_bytes, "nofile": limits.nofile}
        return {
            "network_mode": self.options.network,
            "read_only": options.read_only_root,
            "cap_drop": ["ALL"],
            "cap_add": list(options.cap_add) or None,
            "security_opt": None if options.sudo else ["no-new-privileges:true"],
            "extra_hosts": {self._hostname: "127.0.0.1"} if self._hostname and self._is_alone else None,
            "init": not self.has_init,  # orphans that process 1 does not reap would count against the limit of processes
            "ipc_mode": "private",  # the engine's default may be shareable
            "shm_size": in_memory.pop("/dev/shm"),  # noqa: S108 - the container's
            "mem_limit": memory,
            "memswap_limit": memory,  # of memory and swap together, so nothing is swapped
            "nano_cpus": None if options.cpus is None else round(options.cpus * _BILLION),
            "device_requests": _request_gpus(options.gpus),
            "pids_limit": options.pids,
            "tmpfs": {path: self._in_memory(path, size) for path, size in in_memory.items()} | self._private(),
            "ulimits": [Ulimit(name=name, soft=value, hard=value) for name, value in ulimits.items() if value is not None],
            "log_config": LogConfig(type="json-file", config=_DEAF),
            "mounts": [_mount(*mount) for mount in self.mounts],
        }

    def _in_memory(self, path: str, size: int) -> str:
        """Return the options of a directory in memory: writable by all, but for a home, which belongs to the kernel's user."""
        if not path.startswith(HOME_INSIDE):
            return _TMPFS.format(size, "mode=1777")
        return _TMPFS.format(size, "uid={},gid={},mode=0755".format(*self.options.ids))

    def _private(self) -> dict[str, str]:
        if not self.private:
            return {}
        return {self.private: _TMPFS.format(_PRIVATE_BYTES, "uid={},gid={},mode=0700".format(*self.options.ids))}

    @property
    def _is_alone(self) -> bool:
        return self.options.sudo and self.options.network == "none"

    @property
    def _hostname(self) -> str | None:
        """Return our own host name for sudo without a network, because sudo looks up the name; None is the engine's choice."""
        return "kernel" if self._is_alone else None


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
    # With a copy the engine would fill an empty volume with the image's files at that path.
    return Mount(target, source, type="volume", read_only=read_only, no_copy=True)
