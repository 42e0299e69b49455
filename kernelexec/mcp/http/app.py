"""Serving many agents over HTTP, on this machine's own address or a socket in its files, with the signals minded here."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route

from kernelexec.config import Config
from kernelexec.errors import InvalidConfig
from kernelexec.executor import AsyncExecutor
from kernelexec.mcp.http.authentication import Signed, authentication
from kernelexec.mcp.http.guard import BODY_BYTES, Gate, is_loopback
from kernelexec.mcp.http.metrics import PATH as METRICS_PATH
from kernelexec.mcp.http.metrics import Metrics
from kernelexec.mcp.http.oauth import Provided
from kernelexec.mcp.instrumentation import observers
from kernelexec.mcp.run import INTERVAL, until_over
from kernelexec.mcp.server import make_server, quiet
from kernelexec.mcp.toolsets import EVERYTHING, Offer

PATH = "/mcp"
_BACKLOG = 512
#: How long what is under way may take to end, once all sessions have, in seconds: old clients' streams never do.
_GRACE = 0.5
_PORT_MAX = 65535
#: How long an older client's connection may say nothing, at least, in seconds; and what is as good as for ever.
_CONNECTION_SECONDS, _FOR_EVER = 1800.0, 1e9


@dataclass(frozen=True, slots=True)
class Door:
    """Where the server listens, and to whom.

    Args:
        host: an address of this machine; others than loopback need ``tokens``, ``signed`` or ``auth``.
        port: 0 takes a free one.
        socket: a path for a unix socket, instead of an address; only this user may connect to it.
        tokens: the file of bearer tokens, see ``tokens``; without one everybody who can connect may do everything.
        signed: which tokens of an authorization server count too.
        auth: the operator's own provider, which says who calls; ``tokens`` may stand beside it.
        hosts, origins: see ``Gate``.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    socket: Path | None = None
    tokens: Path | None = None
    signed: Signed | None = None
    auth: Provided | None = None
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()

    @property
    def open(self) -> bool:
        """Whether nobody is asked who they are."""
        return self.tokens is None and self.signed is None and self.auth is None

    def check(self) -> None:
        """Refuse what would let strangers in.

        Raises:
            InvalidConfig: see there.
        """
        if not 0 <= self.port <= _PORT_MAX:
            raise InvalidConfig(f"port={self.port}: it is 0 to {_PORT_MAX}; 0 takes a free one.")
        if self.socket is None and self.open and not is_loopback(self.host):
            message = (
                f"host={self.host!r}: others than this machine could run code here: give --tokens FILE (`kernelexec mcp-token` "
                "makes one), --jwt-keys or --auth, or listen on 127.0.0.1."
            )
            raise InvalidConfig(message)


async def serve_http(
    config: Config,
    door: Door,
    *,
    interval: float = INTERVAL,
    offer: Offer = EVERYTHING,
    told: Callable[[str], None] = lambda _where: None,
) -> signal.Signals | None:
    """Serve until a signal comes, and return it, with everything closed; ``told`` hears where, once requests are answered.

    Raises:
        IsolationUnavailable, InvalidConfig: before anything listened.
        OSError: it cannot listen there.
        Broken: see ``until_over``.
    """
    door.check()
    auth = authentication(door.tokens, door.signed, door.auth)
    metrics = Metrics()
    over, closed, opening = anyio.Event(), anyio.Event(), AsyncExecutor(config=config, hooks=[metrics.observe, *observers()])
    listener = _listen(door)
    bound = _identity(door.socket)

    async def speak(executor: AsyncExecutor) -> None:
        quiet()
        served = make_server(executor, interval=interval, auth=auth, offer=offer)
        served.middleware.insert(0, metrics)
        served.custom_route(METRICS_PATH, ["GET"])(partial(metrics.answer, auth=auth))
        # Who is not meant is sent away by the gate. The answers are streams: else nobody would hear that a client has gone.
        app = served.http_app(
            PATH, host_origin_protection=False, json_response=False, session_idle_timeout=_connection_seconds(config)
        )
        hosts = (door.host, *door.hosts)
        gate = Middleware(Gate, hosts=hosts, origins=door.origins, ready=lambda: not over.is_set(), path=PATH)
        app.user_middleware.insert(0, gate)

        def begun() -> None:
            _leave_bound_to_gate(app)
            told(_where(door, listener))

        server = _Server(uvicorn.Config(app, **_OPTIONS), begun=begun)

        async def end() -> None:
            await over.wait()
            for listening in server.servers:
                listening.close()
            await closed.wait()  # until then calls under way are answered
            server.should_exit = True

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(end)
            await server.serve([listener])
            tasks.cancel_scope.cancel()

    try:
        return await until_over(opening, over, speak, closed=closed, grace=3 * _GRACE)
    finally:
        listener.close()
        if door.socket is not None and _identity(door.socket) == bound:  # else another server listens there by now
            door.socket.unlink(missing_ok=True)


_OPTIONS: dict[str, Any] = {
    "log_config": None,
    "access_log": False,
    "server_header": False,
    "proxy_headers": False,
    "ws": "none",
    "lifespan": "on",
    "backlog": _BACKLOG,
    "timeout_graceful_shutdown": _GRACE,
}


class _Server(uvicorn.Server):
    """One that leaves signals to who runs it, and says when it has begun."""

    def __init__(self, config: uvicorn.Config, *, begun: Callable[[], None]) -> None:
        super().__init__(config)
        self._begun = begun

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """See uvicorn's ``Server``."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn's ``Server``."""
        await super().startup(sockets)
        self._begun()


def _leave_bound_to_gate(app: Starlette) -> None:
    """Have the SDK read bodies as large as the gate lets in: its own bound of 4 MiB is less than a cell may have, escaped.

    Its manager comes when the application begins, and fastmcp takes no bound for it.
    """
    (endpoint,) = (route.endpoint for route in app.routes if isinstance(route, Route) and route.path == PATH)
    served: Any = getattr(endpoint, "app", endpoint)  # behind what asks for a token
    bound: Any = getattr(served.session_manager, "asgi_app", None)
    if hasattr(bound, "max_body_size"):  # older ones have none
        bound.max_body_size = BODY_BYTES


def _connection_seconds(config: Config) -> float:
    """How long an older client's connection may say nothing: sessions are its own, so it ends no sooner than their kernels.

    In the time between, its next cell is told what was lost.
    """
    seconds = config.capacity.idle_seconds
    return _FOR_EVER if seconds is None else max(_CONNECTION_SECONDS, 2 * seconds)


def _listen(door: Door) -> socket.socket:
    if door.socket is None:
        found = socket.getaddrinfo(door.host, door.port, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        return _bound(family, kind, protocol, address)
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(door.socket.lstat().st_mode) and _is_dead(door.socket):
            door.socket.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        before = os.umask(0o177)
        try:
            listener.bind(str(door.socket))
        finally:
            os.umask(before)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _bound(family: int, kind: int, protocol: int, address: Any) -> socket.socket:  # noqa: ANN401 - of any family
    """A listening socket that says that it is TCP: asyncio sends small pieces at once by no other, and an answer has two."""
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _identity(path: Path | None) -> tuple[int, ...]:
    """Which file that is; none is empty."""
    try:
        about = path.lstat() if path is not None else None
    except OSError:
        return ()
    return () if about is None else (about.st_dev, about.st_ino, about.st_mtime_ns)


def _is_dead(path: Path) -> bool:
    """Whether nobody listens at a socket any more."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        try:
            asking.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return False


def _where(door: Door, listener: socket.socket) -> str:
    if door.socket is not None:
        return f"{PATH} on {door.socket}"
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{PATH}"
