"""The resource usage of a container, and the limits that can be changed while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from docker.errors import APIError, NotFound

from kernelexec.docker.client import Engine, map_docker_errors
from kernelexec.results import Stats

_BILLION = 1_000_000_000
_BAD, _GONE = 400, 404


def usage(engine: Engine, container: str) -> Stats:
    """Return the resource usage of a container at this moment."""
    with map_docker_errors("tell what the container uses"):
        used = engine.api.stats(container, stream=False, one_shot=True)
        inspected = engine.api.inspect_container(container)
    return usage_figures(used, inspected)


def usage_figures(used: Mapping[str, Any], inspected: Mapping[str, Any]) -> Stats:
    """Return the resource usage from the engine's answers to `stats` and `inspect`."""
    host, memory, pids = inspected["HostConfig"], used.get("memory_stats") or {}, used.get("pids_stats") or {}
    total = ((used.get("cpu_stats") or {}).get("cpu_usage") or {}).get("total_usage")
    nano = host.get("NanoCpus")
    return Stats(
        isolation="container",
        kernel="idle",
        kernel_epoch=0,
        memory_bytes=_in_use(memory),
        memory_limit_bytes=host.get("Memory") or None,
        cpu_seconds=None if total is None else total / _BILLION,
        cpus=nano / _BILLION if nano else None,
        pids=pids.get("current"),
        pids_limit=host.get("PidsLimit") or None,
        container=inspected["Id"],
        container_name=str(inspected["Name"]).removeprefix("/"),
        image=inspected["Config"]["Image"],
        network=host.get("NetworkMode"),
    )


def change_limits(
    engine: Engine, container: str, *, memory_bytes: int | None, swap_bytes: int | None, cpus: float | None
) -> None:
    """Set limits of a running container; None changes nothing. ``swap_bytes`` is memory and swap together.

    The library's own call does not know `NanoCpus`, and only `NanoCpus` can change limits that were set by it.
    """
    wanted: dict[str, Any] = {} if memory_bytes is None else {"Memory": memory_bytes, "MemorySwap": swap_bytes}
    if cpus is not None:
        wanted["NanoCpus"] = round(cpus * _BILLION)
    api = engine.api
    with map_docker_errors("change the container's limits"):
        answer = api.post(f"{api.base_url}/v{api.api_version}/containers/{container}/update", json=wanted, timeout=api.timeout)
        if answer.status_code >= _BAD:
            refused: Any = NotFound if answer.status_code == _GONE else APIError
            raise refused("", response=answer, explanation=str(answer.json().get("message", "")).strip())


def _in_use(memory: Mapping[str, Any]) -> int | None:
    """Return the memory that cannot be reclaimed at once: usage less inactive file cache."""
    if "usage" not in memory:
        return None
    counters = memory.get("stats") or {}
    idle = counters.get("total_inactive_file", counters.get("inactive_file", 0))
    return max(0, int(memory["usage"]) - int(idle))
