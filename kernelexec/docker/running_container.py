"""A running container: commands as any user, resource usage, and changes of limits."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from docker.errors import APIError, NotFound

from kernelexec.docker.client import Engine, map_docker_errors
from kernelexec.errors import EngineFailed, EngineRefused
from kernelexec.results import Stats

_LABEL = "run the command"
_HEADER_BYTES = 8
#: Seconds of silence before the first probe, and between two, and their number; milliseconds for data to arrive (``tcp(7)``).
_KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}
#: The streams by their numbers in the engine's frames.
_STREAMS = {1: "stdout", 2: "stderr"}
_PIECE_BYTES = 64 * 1024
#: How long the engine may take to report the exit code after the end of the output, in seconds.
_EXIT_SECONDS = 10.0
_LOOK_SECONDS = 0.02
_NOT_STARTED = 126
_BILLION = 1_000_000_000
_BAD, _GONE = 400, 404


class ContainerCommand:
    """A started command. ``end_argv`` is run as the same user to end all processes of the command."""

    def __init__(
        self,
        engine: Engine,
        container: str,
        argv: Sequence[str],
        *,
        user: str,
        environment: Mapping[str, str],
        cwd: str,
        end_argv: Sequence[str],
    ) -> None:
        self._engine, self._container, self._user, self._end_argv = engine, container, user, end_argv
        self._process = _Exec(engine, container, argv, user=user, environment=dict(environment), workdir=cwd)

    def transfer(self, stdin: bytes, take: Callable[[str, bytes], bool]) -> int:
        """Feed the standard input, pass on the output to the end, and return the exit code.

        Once ``take`` returns False for the standard output, the command is ended.

        Raises:
            EngineFailed: the connection or the container was lost.
        """

        def pass_on(stream: str, content: bytes) -> bool:
            wants_more = take(stream, content)
            if not wants_more and stream == "stdout":
                self.kill()
            return wants_more

        return self._process.transfer(lambda connection: connection.sendall(stdin), pass_on)

    def kill(self) -> None:
        """End all processes of the command; nothing if the container has ended."""
        with suppress(EngineFailed):
            _Exec(self._engine, self._container, self._end_argv, user=self._user).transfer(lambda _: None, lambda *_: True)

    def disconnect(self) -> None:
        """End ``transfer``, whatever the command does."""
        self._process.disconnect()


class ContainerStream:
    """A program in a container with its standard streams: ``transfer`` occupies a thread, any other thread may write."""

    def __init__(self, engine: Engine, container: str, argv: Sequence[str], *, user: str) -> None:
        self._process = _Exec(engine, container, argv, user=user)
        self._outgoing: SimpleQueue[bytes | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._waiting = 0
        """The number of pieces that the thread has not written; under the lock."""

    def transfer(self, take: Callable[[str, bytes], bool]) -> None:
        """Pass on the output to the end; raise ``EngineFailed`` after a lost connection."""
        self._process.carry(self._feed, take, lambda: self._outgoing.put(None))

    def write(self, data: bytes) -> None:
        """Write bytes to the standard input: at once while the connection has room, the rest in the thread of ``transfer``."""
        with self._lock:
            # Bytes of earlier calls that the thread has not written come first.
            data = data[self._process.write_now(data) :] if not self._waiting else data
            if data:
                self._waiting += 1
                self._outgoing.put(data)

    def disconnect(self) -> None:
        """End ``transfer``."""
        self._outgoing.put(None)
        self._process.disconnect()

    def _feed(self, connection: socket.socket) -> None:
        while (data := self._outgoing.get()) is not None:
            connection.sendall(data)
            with self._lock:
                self._waiting -= 1


class _Exec:
    """A process started by the engine in a container."""

    def __init__(self, engine: Engine, container: str, argv: Sequence[str], **options: Any) -> None:  # noqa: ANN401 - the library's
        self._api: Any = engine.api
        self._socket: Any = None
        self._reason = ""
        """The engine's reason for not starting it."""
        with map_docker_errors(_LABEL):
            self._id = self._api.exec_create(container, list(argv), stdin=True, **options)["Id"]
            try:
                self._socket = self._api.exec_start(self._id, socket=True)
            except APIError as exc:
                self._reason = f"{exc.explanation or exc}\n"

    @property
    def _connection(self) -> socket.socket:
        connection: socket.socket = getattr(self._socket, "_sock", self._socket)
        return connection

    def transfer(self, feed: Callable[[socket.socket], None], take: Callable[[str, bytes], bool]) -> int:
        return self._read_exit_code() if self.carry(feed, take) else _NOT_STARTED

    def carry(
        self,
        feed: Callable[[socket.socket], None],
        take: Callable[[str, bytes], bool],
        on_end: Callable[[], None] = lambda: None,
    ) -> bool:
        """Let ``feed`` write in a thread and ``take`` get the output to the end; return whether the process was started."""
        if self._socket is None:
            take("stderr", self._reason.encode())
            return False
        connection = self._connection
        connection.settimeout(None)  # a command may be silent for any time
        _notice_loss(connection)
        # The library (7.2) returns the bare socket: what came together with the answer's headers is in the reader's buffer.
        response = self._socket._response  # noqa: SLF001 - see above
        reader = response.raw._fp.fp  # noqa: SLF001 - see above
        feeder = threading.Thread(target=_feed, args=(connection, feed), name="stdin of a command", daemon=True)
        feeder.start()
        try:
            with map_docker_errors(_LABEL):
                _read_frames(reader, take)
        finally:
            # In this order: the first ends a ``sendall`` of the feeder, the second its wait for more, so that it can be joined.
            self.disconnect()
            on_end()
            feeder.join()
            response.close()
            connection.close()
        return True

    def write_now(self, data: bytes) -> int:
        """Write without waiting; return the number of accepted bytes."""
        if self._socket is not None and isinstance(self._connection, socket.socket):
            with suppress(OSError, ValueError, AttributeError):  # full, or closed; an encrypted one takes no such flag
                return self._connection.send(data, socket.MSG_DONTWAIT)
        return 0

    def disconnect(self) -> None:
        if self._socket is not None:
            with suppress(OSError, AttributeError):  # it may be closed already
                self._connection.shutdown(socket.SHUT_RDWR)

    def _read_exit_code(self) -> int:
        deadline = time.monotonic() + _EXIT_SECONDS
        while time.monotonic() < deadline:
            with map_docker_errors(_LABEL):
                state = self._api.exec_inspect(self._id)
            if not state["Running"] and state["ExitCode"] is not None:
                return int(state["ExitCode"])
            time.sleep(_LOOK_SECONDS)  # the engine reports no end of an exec otherwise
        raise EngineRefused("The container engine did not report the exit code of the command.")


def _read_frames(reader: Any, take: Callable[[str, bytes], bool]) -> None:  # noqa: ANN401 - the library's
    # A frame of the engine: the stream (1 byte), three zero bytes, the length (4 bytes, big-endian), the content.
    read = getattr(reader, "read1", reader.read)  # that of a connection by ssh has no other
    wanted = dict.fromkeys(_STREAMS.values(), True)
    while any(wanted.values()) and len(header := reader.read(_HEADER_BYTES)) == _HEADER_BYTES:
        stream, left = _STREAMS.get(header[0]), int.from_bytes(header[4:], "big")
        while left and (content := read(min(left, _PIECE_BYTES))):
            left -= len(content)
            if stream is not None and wanted[stream]:
                wanted[stream] = take(stream, content)


def _feed(connection: socket.socket, feed: Callable[[socket.socket], None]) -> None:
    with suppress(OSError):
        feed(connection)
    with suppress(OSError):  # a half-close: the process gets the end of its input, and its output still comes
        if isinstance(connection, ssl.SSLSocket):  # its own method would end the reading, too
            socket.socket.shutdown(connection, socket.SHUT_WR)
        else:
            connection.shutdown(socket.SHUT_WR)


def _notice_loss(connection: socket.socket) -> None:
    """Let the system notice an unreachable engine on another machine during silence, where keep-alive is supported."""
    if getattr(connection, "family", None) not in (socket.AF_INET, socket.AF_INET6):
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        if (number := getattr(socket, option, None)) is not None:
            connection.setsockopt(socket.IPPROTO_TCP, number, value)


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


def change_limits(engine: Engine, container: str, *, memory_bytes: int | None, cpus: float | None) -> None:
    """Set limits of a running container; None changes nothing. Nothing is swapped.

    A limit set by `NanoCpus` can be changed by `NanoCpus` only, which the library's own call does not know.
    """
    wanted: dict[str, Any] = {} if memory_bytes is None else {"Memory": memory_bytes, "MemorySwap": memory_bytes}
    if cpus is not None:
        wanted["NanoCpus"] = round(cpus * _BILLION)
    api = engine.api
    with map_docker_errors("change the container's limits"):
        answer = api.post(f"{api.base_url}/v{api.api_version}/containers/{container}/update", json=wanted, timeout=api.timeout)
        if answer.status_code >= _BAD:
            refused: Any = NotFound if answer.status_code == _GONE else APIError
            raise refused("", response=answer, explanation=str(answer.json().get("message", "")).strip())


def _in_use(memory: Mapping[str, Any]) -> int | None:
    """Return the usage less the inactive file cache, which the system can reclaim at once."""
    if "usage" not in memory:
        return None
    counters = memory.get("stats") or {}
    idle = counters.get("total_inactive_file", counters.get("inactive_file", 0))
    return max(0, int(memory["usage"]) - int(idle))
