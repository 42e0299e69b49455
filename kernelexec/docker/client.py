"""Calls to the container engine, each with a bound. They block: they are made in threads."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self

from docker.api.client import APIClient
from docker.constants import DEFAULT_DOCKER_API_VERSION
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.utils.utils import kwargs_from_env, parse_repository_tag

from kernelexec.docker.address import host
from kernelexec.docker.connection import connected
from kernelexec.docker.create_options import LOOPBACK
from kernelexec.errors import ContainerGone, EngineAway, EngineRefused, ImageMissing

#: How long one call may take, in seconds; how long the engine may take to say that it is there.
CALL_SECONDS = 60
PROBE_SECONDS = 1.5
_LOG_BYTES = 4096
#: How long an engine that answered is taken to be there.
_FRESH_SECONDS = 10.0
_CONFLICT = 409
_ALIVE = frozenset({"running", "paused"})


@dataclass(frozen=True, slots=True)
class Seen:
    """What the engine says of a container. ``pid`` is its first process as this machine counts, 0 where it has ended."""

    id: str
    name: str
    image: str
    running: bool
    exit_code: int
    out_of_memory: bool
    pid: int
    labels: Mapping[str, str]
    ports: Mapping[int, int]
    """Its tcp ports that are published at this machine's own address, and where."""
    changed: str
    """When it was made, or ended if it did, as the engine's clock says."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """One of many containers, as the engine lists them."""

    id: str
    running: bool
    labels: Mapping[str, str]


class Engine:
    """A connection to the engine that ``DOCKER_HOST`` names, or to this machine's own."""

    _shared: Engine | None = None
    _guard = threading.Lock()

    def __init__(self, *, timeout: float = CALL_SECONDS) -> None:
        """Connect.

        Raises:
            EngineAway: it does not answer.
        """
        self.holders = 1
        self.whose = (os.getpid(), host())
        with mapped("answer"):
            settings = kwargs_from_env()
            with closing(connected(APIClient(version=DEFAULT_DOCKER_API_VERSION, timeout=timeout, **settings))) as asking:
                said = asking.version(api_version=False)["ApiVersion"]
            spoken = min(said, DEFAULT_DOCKER_API_VERSION, key=lambda text: [int(part) for part in text.split(".")])
            self.api = connected(APIClient(version=spoken, timeout=timeout, **settings))

    @classmethod
    def shared(cls) -> Engine:
        """The connection of this process; whoever has it gives it back by ``release``.

        Raises:
            EngineAway: the engine does not answer.
        """
        with cls._guard:
            shared = cls._shared
            if shared is None or shared.whose != (os.getpid(), host()):
                shared = cls._shared = cls()
            else:
                shared.holders += 1
            return shared

    def release(self) -> None:
        """Give the connection back; the last one closes it."""
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
        """Make a container of the engine's own settings; its id. It does not run yet.

        Raises:
            ImageMissing, EngineRefused, EngineAway: there is no container.
        """
        with mapped("make a container", image=str(settings["image"])):
            made = self.api.create_container(name=name, host_config=self.api.create_host_config(**host), **settings)
        return str(made["Id"])

    def start(self, container: str) -> None:
        """Let it run.

        Raises:
            EngineRefused, EngineAway: it does not.
        """
        with mapped("start the container"):
            self.api.start(container)

    def see(self, container: str) -> Seen:
        """What it is now.

        Raises:
            ContainerGone: there is none of that id or name.
            EngineAway: nobody says.
        """
        with mapped("describe the container"):
            said = self.api.inspect_container(container)
        state = said["State"]
        return Seen(
            id=said["Id"],
            name=str(said["Name"]).removeprefix("/"),
            image=str(said["Config"]["Image"]),
            running=bool(state["Running"]),
            exit_code=int(state["ExitCode"]),
            out_of_memory=bool(state["OOMKilled"]),
            pid=int(state["Pid"]),
            labels=said["Config"]["Labels"] or {},
            ports=dict(_published(said["NetworkSettings"].get("Ports") or {})),
            changed=max(str(said["Created"]), str(state["FinishedAt"])),
        )

    def signal(self, container: str, signum: int) -> None:
        """Send a signal to its first process, which hands it on; nothing where it has ended.

        Raises:
            EngineAway: nobody could.
        """
        with suppress(ContainerGone, EngineRefused), mapped("signal the container"):
            self.api.kill(container, signal=signum)

    def rename(self, container: str, name: str) -> None:
        """Give it another name.

        Raises:
            EngineFailed: it has none, or another one has it.
        """
        with mapped("rename the container"):
            self.api.rename(container, name)

    def remove(self, container: str) -> None:
        """End and remove it, with whatever runs in it; nothing where it is gone.

        Raises:
            EngineAway, EngineRefused: it may still be there.
        """
        with suppress(ContainerGone), mapped("remove the container"):
            try:
                self.api.remove_container(container, force=True, v=True)
            except APIError as exc:
                if exc.response is None or exc.response.status_code != _CONFLICT:
                    raise
                # It is being removed already, and has its name until it is gone.
                self.api.wait(container, timeout=CALL_SECONDS, condition="removed")

    def pull(self, image: str, *, platform: str | None = None) -> None:
        """Get an image from its registry, by default for the engine's own platform; this may take minutes.

        Raises:
            ImageMissing, EngineRefused, EngineAway: it did not come.
        """
        repository, tag = parse_repository_tag(image)
        with mapped(f"get the image {image}", image=image):
            for step in self.api.pull(repository, tag=tag or "latest", platform=platform, stream=True, decode=True):
                if "error" in step:
                    raise EngineRefused(f"The container engine did not get the image {image}: {step['error']}")

    def logs(self, container: str) -> str:
        """The end of what its first process wrote; empty where that cannot be had."""
        with suppress(ContainerGone, EngineAway, EngineRefused), mapped("give the container's output"):
            said = self.api.logs(container, tail=100)
            return bytes(said)[-_LOG_BYTES:].decode("utf-8", "replace")
        return ""

    def labelled(self, label: str) -> list[Labelled]:
        """All containers that have a label, those that have ended too.

        Raises:
            EngineAway: nobody says.
        """
        with mapped("list containers"):
            listed = self.api.containers(all=True, filters={"label": label})
        return [Labelled(str(one["Id"]), one["State"] in _ALIVE, one["Labels"]) for one in listed]

    @contextmanager
    def events(self, label: str) -> Iterator[tuple[Iterator[tuple[str, str]], Callable[[], None]]]:
        """What happens to containers that have a label, as it does: action and container; and what wakes its reader.

        Raises:
            EngineAway: nobody says, or says any more.
        """
        with mapped("tell what happens"):
            stream = self.api.events(decode=True, filters={"type": "container", "label": label})

        def hang_up() -> None:
            with suppress(Exception):  # it is closed already
                stream.close()

        try:
            yield _told(stream), hang_up
        finally:
            hang_up()


def _published(ports: Mapping[str, list[dict[str, str]] | None]) -> Iterator[tuple[int, int]]:
    for name, places in ports.items():
        for place in places or []:
            if place["HostIp"] == LOOPBACK:
                yield int(name.removesuffix("/tcp")), int(place["HostPort"])


def _told(stream: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401 - docker's own type has no annotations
    with mapped("tell what happens"):
        for event in stream:
            yield str(event.get("Action", "")), str(event.get("Actor", {}).get("ID", ""))


_answered: dict[str, float] = {}


def probe() -> str | None:
    """Why no engine can be used, in a sentence; None where one answers, or did a moment ago. It takes two seconds at most."""
    address, now = host(), time.monotonic()
    if now - _answered.get(address, -math.inf) < _FRESH_SECONDS:
        return None
    try:
        with Engine(timeout=PROBE_SECONDS):
            _answered[address] = now
            return None
    except EngineAway as exc:
        return str(exc)


@contextmanager
def mapped(what: str, *, image: str = "") -> Iterator[None]:
    """Whatever docker raises as an error of ours."""
    try:
        yield
    except ImageNotFound as exc:
        raise ImageMissing(f"The image {image} is not here.") from exc
    except NotFound as exc:
        if "No such image" in str(exc.explanation):
            raise ImageMissing(f"The image {image} is not here.") from exc
        raise ContainerGone("The container is gone.") from exc
    except APIError as exc:
        raise EngineRefused(f"The container engine did not {what}: {exc.explanation or exc}") from exc
    except (DockerException, OSError, ValueError) as exc:  # requests' own errors are OSErrors
        raise EngineAway(f"The container engine does not {what}: {_cause(exc)}") from exc


def _cause(exc: BaseException) -> str:
    """The reason, as a sentence."""
    address = host()
    reason: BaseException | None = exc
    while reason is not None:  # docker and what it is made of wrap what the socket said
        match reason:
            case FileNotFoundError():
                return f"there is no socket at {address}. Is Docker installed and started?"
            case PermissionError():
                return f"{address} cannot be opened: permission denied. Is this user in the group docker?"
            case ConnectionRefusedError():
                return f"nobody listens at {address}. Is Docker started?"
            case TimeoutError():
                return f"{address} did not answer in time."
        reason = reason.__cause__ or reason.__context__
    return f"{address} did not answer in time." if "timed out" in str(exc).lower() else f"{address}: {exc}"
