"""The container engine: its address and one shared connection; its containers, their state, resource usage and limits."""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self

from docker.api.client import APIClient
from docker.constants import DEFAULT_DOCKER_API_VERSION
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.transport import unixconn
from docker.utils.utils import kwargs_from_env, parse_repository_tag

from kernelexec.docker.create_options import LOOPBACK
from kernelexec.errors import ContainerGone, EngineRefused, EngineUnavailable, ImageMissing
from kernelexec.results import Stats


def host() -> str:
    """Return the engine's address from ``DOCKER_HOST``, or its default."""
    return os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"


def socket_at(address: str) -> str | None:
    """Return the path of the unix socket of an address; None for other kinds of addresses."""
    return "/" + address.removeprefix("unix://").lstrip("/") if address.startswith("unix://") else None


#: How long the engine may take to accept a connection, in seconds.
_CONNECT_SECONDS = 1.5


def connect_client(client: APIClient) -> APIClient:
    """Make a client open such connections; return the same client."""
    if (path := socket_at(host())) is not None:
        client.mount("http+docker://", _Adapter(path, client.timeout))  # type: ignore[no-untyped-call]
    return client


class _Connection(unixconn.UnixHTTPConnection):
    def connect(self) -> None:
        with ExitStack() as failed:
            sock = failed.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            sock.settimeout(_CONNECT_SECONDS)
            sock.connect(self.unix_socket)
            sock.settimeout(self.timeout)
            failed.pop_all()
        self.sock = sock


class _Pool(unixconn.UnixHTTPConnectionPool):
    def _new_conn(self) -> _Connection:
        return _Connection(self.base_url, self.socket_path, self.timeout)  # type: ignore[no-untyped-call]


class _Adapter(unixconn.UnixHTTPAdapter):
    def get_connection(self, url: str, _proxies: object = None) -> _Pool:
        with self.pools.lock:
            pool = self.pools.get(url)
            if pool is None:
                pool = _Pool(url, self.socket_path, self.timeout, self.max_pool_size)  # type: ignore[no-untyped-call]
                self.pools[url] = pool
        return pool


#: The time bounds of a call, and of the first answer of the engine, in seconds.
CALL_SECONDS = 60
PROBE_SECONDS = 1.5
_LOG_BYTES = 4096
#: How long an engine that answered is believed to be available.
_FRESH_SECONDS = 10.0
_CONFLICT = 409
_ALIVE = frozenset({"running", "paused"})


@dataclass(frozen=True, slots=True)
class ContainerStatus:
    """The state of a container. ``pid`` is its first process as this machine counts, 0 if it has ended."""

    id: str
    name: str
    image: str
    running: bool
    exit_code: int
    out_of_memory: bool
    pid: int
    labels: Mapping[str, str]
    ports: Mapping[int, int]
    """Its TCP ports, and the ports of this machine's loopback address that they are published at."""
    changed: str
    """When it was created, or ended if it did, by the engine's clock."""


@dataclass(frozen=True, slots=True)
class ListedContainer:
    """A container in a list of the engine."""

    id: str
    running: bool
    labels: Mapping[str, str]


class Engine:
    """A connection to the engine that ``DOCKER_HOST`` names, or to this machine's own; see the package for what it raises."""

    _shared: Engine | None = None
    _guard = threading.Lock()

    def __init__(self, *, timeout: float = CALL_SECONDS) -> None:
        self.holders = 1
        self.whose = (os.getpid(), host())
        with map_docker_errors("answer"):
            settings = kwargs_from_env()
            with closing(connect_client(APIClient(version=DEFAULT_DOCKER_API_VERSION, timeout=timeout, **settings))) as asking:
                newest = asking.version(api_version=False)["ApiVersion"]
            spoken = min(newest, DEFAULT_DOCKER_API_VERSION, key=lambda text: [int(part) for part in text.split(".")])
            self.api = connect_client(APIClient(version=spoken, timeout=timeout, **settings))

    @classmethod
    def acquire(cls) -> Engine:
        """Return the connection of this process; each caller must call ``release``."""
        with cls._guard:
            shared = cls._shared
            if shared is None or shared.whose != (os.getpid(), host()):
                shared = cls._shared = cls()
            else:
                shared.holders += 1
            return shared

    def release(self) -> None:
        """Release the connection; the last release closes it."""
        with self._guard:
            self.holders -= 1
            if self.holders:
                return
            if Engine._shared is self:
                Engine._shared = None
        self.api.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def create(self, name: str | None, settings: Mapping[str, Any], host: Mapping[str, Any]) -> str:
        """Create a container from the engine's own settings; return its id. It does not run yet."""
        with map_docker_errors("make a container", image=str(settings["image"])):
            created = self.api.create_container(name=name, host_config=self.api.create_host_config(**host), **settings)
        return str(created["Id"])

    def start(self, container: str) -> None:
        """Start a container."""
        with map_docker_errors("start the container"):
            self.api.start(container)

    def inspect_container(self, container: str) -> ContainerStatus:
        """Return the state of a container."""
        with map_docker_errors("describe the container"):
            answer = self.api.inspect_container(container)
        state = answer["State"]
        return ContainerStatus(
            id=answer["Id"],
            name=str(answer["Name"]).removeprefix("/"),
            image=str(answer["Config"]["Image"]),
            running=bool(state["Running"]),
            exit_code=int(state["ExitCode"]),
            out_of_memory=bool(state["OOMKilled"]),
            pid=int(state["Pid"]),
            labels=answer["Config"]["Labels"] or {},
            ports=dict(_published_ports(answer["NetworkSettings"].get("Ports") or {})),
            changed=max(str(answer["Created"]), str(state["FinishedAt"])),
        )

    def inspect_image(self, image: str) -> dict[str, Any]:
        """Return the engine's description of an image."""
        with map_docker_errors("describe the image", image=image):
            description: dict[str, Any] = self.api.inspect_image(image)
        return description

    def signal(self, container: str, signum: int) -> None:
        """Send a signal to a container's first process, which forwards it; nothing if it has ended."""
        with suppress(ContainerGone, EngineRefused), map_docker_errors("signal the container"):
            self.api.kill(container, signal=signum)

    def rename(self, container: str, name: str) -> None:
        """Rename a container."""
        with map_docker_errors("rename the container"):
            self.api.rename(container, name)

    def remove(self, container: str) -> None:
        """Kill and remove a container; nothing if it is gone."""
        with suppress(ContainerGone), map_docker_errors("remove the container"):
            try:
                self.api.remove_container(container, force=True, v=True)
            except APIError as exc:
                if exc.response is None or exc.response.status_code != _CONFLICT:
                    raise
                # It is being removed already, and keeps its name until it is gone.
                self.api.wait(container, timeout=CALL_SECONDS, condition="removed")

    def pull(self, image: str, *, platform: str | None = None) -> None:
        """Pull an image from its registry, by default for the engine's own platform; this may take minutes."""
        repository, tag = parse_repository_tag(image)
        with map_docker_errors(f"get the image {image}", image=image):
            for step in self.api.pull(repository, tag=tag or "latest", platform=platform, stream=True, decode=True):
                if "error" in step:
                    raise EngineRefused(f"The container engine did not get the image {image}: {step['error']}")

    def logs(self, container: str) -> str:
        """Return the end of the output of a container's first process; empty if it is not available."""
        with suppress(ContainerGone, EngineUnavailable, EngineRefused), map_docker_errors("give the container's output"):
            output = self.api.logs(container, tail=100)
            return bytes(output)[-_LOG_BYTES:].decode("utf-8", "replace")
        return ""

    def list_containers(self, label: str) -> list[ListedContainer]:
        """Return all containers with a label, ended ones too."""
        with map_docker_errors("list containers"):
            listed = self.api.containers(all=True, filters={"label": label})
        return [ListedContainer(str(each["Id"]), each["State"] in _ALIVE, each["Labels"]) for each in listed]

    @contextmanager
    def events(self, label: str) -> Iterator[tuple[Iterator[tuple[str, str]], Callable[[], None]]]:
        """Stream events of containers with a label, as actions and containers; yield it with a function that ends it."""
        with map_docker_errors("tell what happens"):
            stream = self.api.events(decode=True, filters={"type": "container", "label": label})

        def hang_up() -> None:
            with suppress(Exception):  # it may be closed already
                stream.close()

        try:
            yield _actions(stream), hang_up
        finally:
            hang_up()


def _published_ports(ports: Mapping[str, list[dict[str, str]] | None]) -> Iterator[tuple[int, int]]:
    for name, places in ports.items():
        for address in places or []:
            if address["HostIp"] == LOOPBACK:
                yield int(name.removesuffix("/tcp")), int(address["HostPort"])


def _actions(stream: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401 - docker's own type has no annotations
    with map_docker_errors("tell what happens"):
        for event in stream:
            yield str(event.get("Action", "")), str(event.get("Actor", {}).get("ID", ""))


_answered: dict[str, float] = {}


def probe() -> str | None:
    """Return why no engine can be used, in a sentence; None if it answers, or did a moment ago. At most two seconds."""
    address, now = host(), time.monotonic()
    if now - _answered.get(address, -math.inf) < _FRESH_SECONDS:
        return None
    try:
        with Engine(timeout=PROBE_SECONDS):
            _answered[address] = now
            return None
    except EngineUnavailable as exc:
        return str(exc)


@contextmanager
def map_docker_errors(label: str, *, image: str = "") -> Iterator[None]:
    """Translate errors of the library ``docker`` into ours."""
    try:
        yield
    except ImageNotFound as exc:
        raise ImageMissing(f"The image {image} is not here.") from exc
    except NotFound as exc:
        if "No such image" in str(exc.explanation):
            raise ImageMissing(f"The image {image} is not here.") from exc
        raise ContainerGone("The container is gone.") from exc
    except APIError as exc:
        raise EngineRefused(f"The container engine did not {label}: {exc.explanation or exc}") from exc
    except (DockerException, OSError, ValueError) as exc:  # requests' own errors are OSErrors
        raise EngineUnavailable(f"The container engine does not {label}: {_cause(exc)}") from exc


def _cause(exc: BaseException) -> str:
    """Return the reason of an error as a sentence."""
    address = host()
    reason: BaseException | None = exc
    while reason is not None:  # docker and its libraries wrap the socket's own error
        match reason:
            case FileNotFoundError():
                return f"there is no socket at {address}. Is Docker installed and started?"
            case PermissionError():
                return f"{address} cannot be opened: permission denied. Is this user in the group docker?"
            case ConnectionRefusedError():
                return f"no server listens at {address}. Is Docker started?"
            case TimeoutError():
                return f"{address} did not answer in time."
        reason = reason.__cause__ or reason.__context__
    return f"{address} did not answer in time." if "timed out" in str(exc).lower() else f"{address}: {exc}"


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
