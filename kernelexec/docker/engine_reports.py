"""The engine's reports: version, images and location; and the events of containers."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from docker.types.daemon import CancellableStream

from kernelexec.docker.client import CALL_SECONDS, Engine, host, map_docker_errors, socket_at
from kernelexec.docker.labels import OWNER
from kernelexec.errors import EngineRefused, EngineUnavailable

#: Of `struct ucred`: the process, its user and its group.
_PEER = struct.Struct("3i")
_ENDS, _OUT_OF_MEMORY = frozenset({"die", "destroy"}), "oom"
_AGAIN_SECONDS = 0.5
logger = logging.getLogger("kernelexec")


@dataclass(frozen=True, slots=True)
class About:
    """The description of an engine: version, operating system, version of control groups, and names of images."""

    version: str
    system: str
    cgroup: str
    live_restore: bool
    images: tuple[str, ...]

    def first_of(self, names: Iterable[str]) -> str | None:
        """Return the first of the named images in the engine; None if all are missing."""
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


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """The address of an engine, and the engine's description of the machine."""

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
        """Return whether the engine may be on another machine: even a loopback address may lead there, by a tunnel."""
        return urlsplit(self.address).scheme in {"ssh", "tcp", "http", "https"}

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
            # The process that called listen(2): systemd if it has activated the socket.
            pid, _, _ = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    except (OSError, AttributeError):  # only Linux has SO_PEERCRED
        return 0
    return int(pid)


class EventStream:
    """The engine's events, which say when to inspect a container: it may have ended, or the engine went away or came back.

    An event is never a proof: the state of a container is the engine's answer.
    """

    _current: EventStream | None = None
    _guard = threading.Lock()

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._out_of_memory: Counter[str] = Counter()
        self._holders = 0
        self._watchers: dict[str, tuple[Callable[[], None], ...]] = {}
        self._listens = threading.Event()
        self._over = threading.Event()
        self._stream: CancellableStream | None = None
        self._thread = threading.Thread(target=self._listen, name="kernelexec-engine", daemon=True)

    @classmethod
    def acquire(cls) -> Self:
        """Return the stream of this process; each caller must call ``release``. Blocks, so call from a thread."""
        engine = Engine.acquire()
        with cls._guard:
            current = cls._current
            if current is None or current.engine is not engine:
                current = cls._current = cls(engine)
                current._thread.start()
            current._holders += 1
        # An end between the caller's first look and the opening of the stream would be missed. The engine may be away.
        current._listens.wait(_AGAIN_SECONDS)
        assert isinstance(current, cls)
        return current

    def release(self) -> None:
        """End this caller's use; the last release ends the stream. Blocks, so call from a thread."""
        with self._guard:
            self._holders -= 1
            last = not self._holders
            if last and EventStream._current is self:
                EventStream._current = None
        if last:
            self._over.set()
            self._hang_up()  # ends the thread's read, which has no timeout
            self._thread.join(CALL_SECONDS)  # an engine that accepts requests and answers none keeps the thread
        self.engine.release()

    @contextmanager
    def of(self, container: str) -> Iterator[asyncio.Event]:
        """Yield an event of the running loop, set whenever the container should be inspected."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(changed.set)

        with self._guard:  # tuples are replaced and never changed, so the thread of the stream reads them without the lock
            self._watchers[container] = (*self._watchers.get(container, ()), wake)
        try:
            yield changed
        finally:
            with self._guard:
                self._watchers[container] = tuple(other for other in self._watchers[container] if other is not wake)
                if not self._watchers[container]:
                    del self._watchers[container]
                    self._out_of_memory.pop(container, None)

    def memory_kills(self, container: str) -> int:
        """Return how often a process of the watched container was killed for lack of memory."""
        return self._out_of_memory[container]

    def _listen(self) -> None:
        """Read events: the thread. When the stream breaks, and when the engine is back, all containers are inspected."""
        filters = {"type": "container", "label": OWNER}
        while not self._over.is_set():
            try:
                with map_docker_errors("tell what happens"):
                    self._stream = self.engine.api.events(decode=True, filters=filters)
                    if self._over.is_set():  # the last ``release`` came before this stream, and has closed none
                        return
                    self._listens.set()
                    self._wake_all()  # what happened without a stream has no event
                    for event in self._stream:
                        self._on_event(str(event.get("Action", "")), str(event.get("Actor", {}).get("ID", "")))
            except (EngineUnavailable, EngineRefused):
                pass
            except Exception:
                logger.exception("kernelexec.engine_news_failed")
            finally:
                self._hang_up()
            self._wake_all()
            self._over.wait(_AGAIN_SECONDS)

    def _hang_up(self) -> None:
        with suppress(Exception):  # it may be closed already
            if self._stream is not None:
                self._stream.close()

    def _on_event(self, action: str, container: str) -> None:
        if container not in self._watchers:
            return
        if action == _OUT_OF_MEMORY:
            self._out_of_memory[container] += 1
        if action in _ENDS or action == _OUT_OF_MEMORY:
            for wake in self._watchers.get(container, ()):
                wake()

    def _wake_all(self) -> None:
        if not self._over.is_set():
            for watchers in list(self._watchers.values()):
                for wake in watchers:
                    wake()
