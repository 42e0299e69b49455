"""Calls to the container engine by a shared connection, each with a time bound. Calls block, so they belong in threads.

The address of the engine and connections to the unix socket are here too. Unlike in the library, a failed connection leaves
no socket open.
"""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self

from docker.api.client import APIClient
from docker.constants import DEFAULT_DOCKER_API_VERSION
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.transport import unixconn
from docker.utils.utils import kwargs_from_env, parse_repository_tag

from kernelexec.errors import ContainerGone, EngineFailed, EngineRefused, EngineUnavailable, ImageMissing

#: The time bounds of a call, and of the first answer of the engine, in seconds. An engine that starts many containers on a busy
#: machine was seen to answer after 2 s; one that has ended refuses the connection at once, and is not waited for.
CALL_SECONDS = 60
PROBE_SECONDS = 10
_LOG_BYTES, _OUTPUT_BYTES = 4096, 256 * 1024
#: How long an engine that answered is believed to be available.
_FRESH_SECONDS = 10.0
_CONFLICT = 409
_ALIVE = frozenset({"running", "paused"})
_answered: dict[str, float] = {}


@dataclass(frozen=True, slots=True)
class ContainerStatus:
    """The state of a container. ``pid`` is the first process as this machine counts, 0 after the end."""

    id: str
    image: str
    running: bool
    exit_code: int
    out_of_memory: bool
    pid: int
    labels: Mapping[str, str]
    changed: str
    """When it was created, or ended if it did, by the engine's clock."""


@dataclass(frozen=True, slots=True)
class ListedContainer:
    """A container in a list of the engine."""

    id: str
    running: bool
    labels: Mapping[str, str]


class Engine:
    """A connection to the engine of ``DOCKER_HOST``, or else of this machine; see the package for the errors."""

    _shared: Engine | None = None
    _guard = threading.Lock()

    def __init__(self, *, timeout: float = CALL_SECONDS) -> None:
        self.holders = 1
        self.whose = (os.getpid(), host())  # a forked child must not use its parent's connection
        with map_docker_errors("answer"):
            settings = kwargs_from_env()
            # The library's version="auto" would ask in the constructor, before ``connect_client`` has replaced the adapter.
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
        """End this caller's use; the last release closes the connection."""
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
        """Create a container from the engine's own settings; return the id. ``start`` runs the container."""
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
            image=str(answer["Config"]["Image"]),
            running=bool(state["Running"]),
            exit_code=int(state["ExitCode"]),
            out_of_memory=bool(state["OOMKilled"]),
            pid=int(state["Pid"]),
            labels=answer["Config"]["Labels"] or {},
            changed=max(str(answer["Created"]), str(state["FinishedAt"])),  # the year is 0001 before the first end
        )

    def inspect_image(self, image: str) -> dict[str, Any]:
        """Return the engine's description of an image."""
        with map_docker_errors("describe the image", image=image):
            description: dict[str, Any] = self.api.inspect_image(image)
        return description

    def signal(self, container: str, signum: int) -> None:
        """Send a signal to a container's first process, which forwards signals; an ended container is no error."""
        with suppress(ContainerGone, EngineRefused), map_docker_errors("signal the container"):
            self.api.kill(container, signal=signum)

    def rename(self, container: str, name: str) -> None:
        """Rename a container."""
        with map_docker_errors("rename the container"):
            self.api.rename(container, name)

    def remove(self, container: str) -> None:
        """Kill and remove a container; a missing container is no error."""
        with suppress(ContainerGone), map_docker_errors("remove the container"):
            try:
                self.api.remove_container(container, force=True, v=True)
            except APIError as exc:
                if exc.response is None or exc.response.status_code != _CONFLICT:
                    raise
                # It is being removed already, and keeps its name until it is gone.
                self.api.wait(container, timeout=CALL_SECONDS, condition="removed")

    def pull(self, image: str) -> None:
        """Pull an image from the registry; this may take minutes."""
        repository, tag = parse_repository_tag(image)
        with map_docker_errors(f"get the image {image}", image=image):
            for step in self.api.pull(repository, tag=tag or "latest", stream=True, decode=True):
                if "error" in step:
                    raise EngineRefused(f"The container engine did not get the image {image}: {step['error']}")

    def wait(self, container: str, seconds: float) -> int | None:
        """Wait for the end of a container; return the exit code, or None if the container runs on after ``seconds``."""
        try:
            with map_docker_errors("wait for the container"):
                return int(self.api.wait(container, timeout=seconds)["StatusCode"])
        except EngineUnavailable:  # a read timeout looks like a lost engine: only the state tells them apart
            if self.inspect_container(container).running:
                return None
            raise

    def output(self, container: str) -> bytes:
        """Return the end of the output of a container's first process."""
        output = bytearray()
        with map_docker_errors("give the container's output"):
            for chunk in self.api.logs(container, stream=True, follow=False, tail=2000):
                output += chunk  # ``tail`` bounds the number of lines, not their length
                del output[:-_OUTPUT_BYTES]
        return bytes(output)

    def logs(self, container: str) -> str:
        """Return the end of a container's output for a message; empty if not available."""
        with suppress(EngineFailed):
            return self.output(container)[-_LOG_BYTES:].decode("utf-8", "replace")
        return ""

    def list_containers(self, label: str) -> list[ListedContainer]:
        """Return all containers with a label, ended ones too."""
        with map_docker_errors("list containers"):
            listed = self.api.containers(all=True, filters={"label": label})
        return [ListedContainer(str(each["Id"]), each["State"] in _ALIVE, each["Labels"]) for each in listed]


def probe() -> str | None:
    """Return why no engine can be used, in a sentence; None if the engine answers, or answered in the last 10 s."""
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
    # The narrowest class first: ImageNotFound derives from NotFound, NotFound from APIError, APIError from OSError (requests).
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


def host() -> str:
    """Return the engine's address from ``DOCKER_HOST``, or the default address."""
    return os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"


def socket_at(address: str) -> str | None:
    """Return the path of the unix socket of an address; None for other kinds of addresses."""
    return "/" + address.removeprefix("unix://").lstrip("/") if address.startswith("unix://") else None


def connect_client(client: APIClient) -> APIClient:
    """Make a client connect to a unix socket by our adapter; return the same client."""
    if (path := socket_at(host())) is not None:
        client.mount("http+docker://", _Adapter(path, client.timeout))  # type: ignore[no-untyped-call]
    return client


class _Connection(unixconn.UnixHTTPConnection):
    def connect(self) -> None:
        with ExitStack() as failed:
            sock = failed.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            sock.settimeout(self.timeout)
            sock.connect(self.unix_socket)  # at once: to a unix socket whose queue is full it fails
            failed.pop_all()
        self.sock = sock


class _Pool(unixconn.UnixHTTPConnectionPool):
    def _new_conn(self) -> _Connection:
        return _Connection(self.base_url, self.socket_path, self.timeout)  # type: ignore[no-untyped-call]


class _Adapter(unixconn.UnixHTTPAdapter):
    """The connections of a unix socket, shared by all URLs: the library's adapter has a pool for each of the last 25 URLs."""

    def get_connection(self, _url: str, _proxies: object = None) -> _Pool:
        with self.pools.lock:
            pool = self.pools.get(self.socket_path)
            if pool is None:
                pool = _Pool("localhost", self.socket_path, self.timeout, self.max_pool_size)  # type: ignore[no-untyped-call]
                self.pools[self.socket_path] = pool
        return pool
