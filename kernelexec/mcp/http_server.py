"""HTTP server for many agents, on a TCP address or a unix socket."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import os
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware as HttpMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kernelexec.config import Config
from kernelexec.errors import InvalidConfig
from kernelexec.executor.executor import AsyncExecutor
from kernelexec.mcp.authentication import JwtOptions, OperatorProvider, make_auth_provider
from kernelexec.mcp.callers import Connections
from kernelexec.mcp.guard import BODY_BYTES, RequestGuard, is_loopback
from kernelexec.mcp.logs import make_observers
from kernelexec.mcp.run import ServerRun
from kernelexec.mcp.server import make_server, silence_libraries
from kernelexec.mcp.server_options import ALL_TOOLS, ServerOptions, read_host
from kernelexec.mcp.sessions import SessionService

if TYPE_CHECKING:
    from kernelexec.mcp.metrics import Metrics

PATH = "/mcp"
_METRICS_PATH = "/metrics"
_BACKLOG = 512
#: Seconds for open responses to end after all sessions have; streams of older clients never end.
_GRACE_SECONDS = 0.5
_PORT_MAX = 65535
#: The least idle time of an older client's connection in seconds, and a value for no limit.
_IDLE_SECONDS_MIN, _UNLIMITED_SECONDS = 1800.0, 1e9
_ID_HEADER = b"mcp-session-id"
_REFUSED = 400
_NO_METRICS = "Metrics need a library that comes with the extra `metrics`: pip install 'kernelexec[metrics]'.\n"
_NOT_IMPLEMENTED = 501


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """Options of the HTTP server: the address, and the authentication of clients.

    Without authentication every client may run code, so only loopback and unix sockets are allowed.

    Args:
        host: address of this machine; all except loopback need ``tokens``, ``jwt`` or ``auth``.
        port: TCP port; 0 chooses a free port.
        socket: path of a unix socket, instead of an address; only this user may connect.
        tokens: file of bearer tokens.
        jwt: options for tokens of an authorization server.
        auth: the operator's provider; may be combined with ``tokens``.
        public_url: the server's address for clients, for example behind a proxy; added to ``hosts``.
        hosts, origins: see ``RequestGuard``.

    Raises:
        InvalidConfig: the port or the public address is invalid, or an address other than loopback has no authentication.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    socket: Path | None = None
    tokens: Path | None = None
    jwt: JwtOptions | None = None
    auth: OperatorProvider | None = None
    public_url: str | None = None
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse invalid options."""
        if self.public_url is not None and read_host(self.public_url) is None:
            raise InvalidConfig(f"--public-url {self.public_url!r:.200} must be an address like https://example.org.")
        if not 0 <= self.port <= _PORT_MAX:
            raise InvalidConfig(f"port={self.port} must be 0 to {_PORT_MAX}; 0 chooses a free one.")
        if self.socket is None and self.is_open and not is_loopback(self.host):
            message = (
                f"host={self.host!r}: other machines could run code here. Use --tokens FILE (`kernelexec mcp-token` creates "
                "it), --jwt-keys or --auth, or listen on 127.0.0.1."
            )
            raise InvalidConfig(message)

    @property
    def is_open(self) -> bool:
        """Whether the server has no authentication."""
        return self.tokens is None and self.jwt is None and self.auth is None


async def serve_http(
    config: Config,
    http: HttpOptions,
    *,
    options: ServerOptions = ALL_TOOLS,
    on_listening: Callable[[str], None] = lambda _address: None,
) -> signal.Signals | None:
    """Serve until a signal or an operator's command, close everything and return the signal, if any.

    ``on_listening`` is called with the address when the server is ready.

    Raises:
        IsolationUnavailable, InvalidConfig: the server did not start.
        OSError: the address is not available.
        ServerFailed: see ``ServerRun``.
    """
    auth = make_auth_provider(http.tokens, http.jwt, http.auth, http.public_url)
    hosts = (http.host, *http.hosts, *filter(None, [read_host(http.public_url or "")]))
    metrics = _make_metrics()
    executor = AsyncExecutor(config=config, hooks=[*make_observers(), *([] if metrics is None else [metrics.observe])])
    # The grace is longer than uvicorn's own, so uvicorn ends its responses itself before the run would cancel it.
    run = ServerRun(executor, keeps_kernels=options.keep_kernels, grace=3 * _GRACE_SECONDS)
    listener = _listen(http)  # before the executor opens: an address in use fails at once
    identity = _identify_file(http.socket)

    async def serve() -> None:
        silence_libraries()
        sessions = SessionService(executor, options=options, clients=run.clients)
        run.release_calls = sessions.release_calls
        mcp_server = make_server(sessions, auth=auth)
        respond = _refuse_metrics
        if metrics is not None:
            mcp_server.middleware.insert(0, metrics)
            respond = partial(metrics.respond, auth=auth)
        mcp_server.custom_route(_METRICS_PATH, ["GET"])(respond)
        # The guard checks hosts and origins. Responses are streams, since only a stream notices that its client has gone.
        app = mcp_server.http_app(
            PATH, host_origin_protection=False, json_response=False, session_idle_timeout=_choose_idle_timeout(config)
        )
        # Outermost: the guard comes before fastmcp's authentication, and foreign requests do not touch connections.
        guard = HttpMiddleware(RequestGuard, hosts=hosts, origins=http.origins, ready=lambda: not run.stop.is_set(), path=PATH)
        app.user_middleware[:0] = [guard, HttpMiddleware(ConnectionTracker, connections=sessions.connections)]

        def on_started() -> None:
            _raise_body_limit(app)
            on_listening(_describe_address(http, listener))

        quiet: dict[str, Any] = {"log_config": None, "access_log": False, "server_header": False}
        limits: dict[str, Any] = {"backlog": _BACKLOG, "timeout_graceful_shutdown": _GRACE_SECONDS}
        # no proxy headers: by default uvicorn believes X-Forwarded-* of every client on loopback
        # h11 in any environment: httptools keeps the blanks around the values of headers, which MCP says to leave out
        settings = uvicorn.Config(app, http="h11", proxy_headers=False, ws="none", lifespan="on", **quiet, **limits)
        server = _Server(settings, on_started=on_started)

        async def stop_listening() -> None:
            await run.stop.wait()
            # Only the listeners: the open connections still carry the running calls.
            for listening in server.servers:
                listening.close()
            await run.closed.wait()  # running calls are answered until then
            server.should_exit = True

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stop_listening)
            tasks.start_soon(sessions.connections.run)
            await server.serve([listener])
            tasks.cancel_scope.cancel()

    def clean_up() -> None:
        listener.close()
        if http.socket is not None and _identify_file(http.socket) == identity:  # otherwise another server listens there
            http.socket.unlink(missing_ok=True)

    run.clean_up = clean_up
    try:
        return await run.run(serve)
    finally:
        clean_up()


def _make_metrics() -> Metrics | None:
    """Return the metrics; None without the extra."""
    if importlib.util.find_spec("prometheus_client") is None:
        return None
    from kernelexec.mcp.metrics import Metrics  # noqa: PLC0415 - optional dependency

    return Metrics()


async def _refuse_metrics(_request: Request) -> Response:
    return PlainTextResponse(_NO_METRICS, _NOT_IMPLEMENTED)


class _Server(uvicorn.Server):
    """Uvicorn server without signal handlers, calling ``on_started`` after the start."""

    def __init__(self, config: uvicorn.Config, *, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """See uvicorn's ``Server``."""
        yield  # uvicorn would replace the handlers of ServerRun, and raise its signals again at the end

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn's ``Server``."""
        await super().startup(sockets)
        self._on_started()


def _raise_body_limit(app: Starlette) -> None:
    """Raise the SDK's body limit of 4 MiB to the guard's limit, because an escaped cell may be larger."""
    # The SDK's session manager exists once the application has started, and fastmcp has no option for its limit.
    (endpoint,) = (route.endpoint for route in app.routes if isinstance(route, Route) and route.path == PATH)
    served: Any = getattr(endpoint, "app", endpoint)  # inside the token check
    bound: Any = getattr(served.session_manager, "asgi_app", None)
    if hasattr(bound, "max_body_size"):  # older SDKs have no limit
        bound.max_body_size = BODY_BYTES


def _choose_idle_timeout(config: Config) -> float:
    """Return the idle seconds of an older client's connection; it outlives kernels, so the next cell can report their loss."""
    seconds = config.capacity.idle_seconds
    return _UNLIMITED_SECONDS if seconds is None else max(_IDLE_SECONDS_MIN, 2 * seconds)


def _listen(http: HttpOptions) -> socket.socket:
    if http.socket is None:
        addresses = socket.getaddrinfo(http.host, http.port, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = addresses[0]
        return _bind(family, kind, protocol, address)
    with contextlib.suppress(FileNotFoundError):
        # bind() refuses an existing path, and a killed server leaves its socket. A file of another kind is never removed.
        if stat.S_ISSOCK(http.socket.lstat().st_mode) and _is_dead(http.socket):
            http.socket.unlink()
    before = os.umask(0o177)  # a chmod after bind() would leave a moment in which other users can connect
    try:
        return _bind(socket.AF_UNIX, socket.SOCK_STREAM, 0, str(http.socket))
    finally:
        os.umask(before)


def _bind(family: int, kind: int, protocol: int, address: Any) -> socket.socket:  # noqa: ANN401 - of any family
    """Return a listening socket. TCP needs the explicit protocol: asyncio sets TCP_NODELAY on no other socket."""
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _identify_file(path: Path | None) -> tuple[int, ...]:
    """Return device, inode and modification time of a file; empty if there is no file."""
    with contextlib.suppress(OSError):
        if path is not None:
            status = path.lstat()
            return status.st_dev, status.st_ino, status.st_mtime_ns
    return ()


def _is_dead(path: Path) -> bool:
    """Return whether a unix socket has no listener."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        return asking.connect_ex(str(path)) == errno.ECONNREFUSED


def _describe_address(http: HttpOptions, listener: socket.socket) -> str:
    if http.socket is not None:
        return f"{PATH} on {http.socket}"
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{PATH}"


class ConnectionTracker:
    """ASGI middleware for ``Connections``: reports the begin and end of requests, and connections ended by their clients."""

    def __init__(self, app: ASGIApp, *, connections: Connections) -> None:
        self._app = app
        self._connections = connections

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        names = [value for name, value in scope["headers"] if name == _ID_HEADER] if scope["type"] == "http" else []
        if not names:
            await self._app(scope, receive, send)
            return
        connection_id = names[0].decode("latin-1")
        is_stream, is_end = scope["method"] == "GET", scope["method"] == "DELETE"

        async def send_and_note_end(message: Message) -> None:
            # Only an accepted DELETE ends a connection, not one that a token check or the SDK refuses.
            if is_end and message["type"] == "http.response.start" and message["status"] < _REFUSED:
                self._connections.end(connection_id)
            await send(message)

        # No id is checked here: an unknown id has no sessions, so the end of its request forgets it.
        self._connections.begin_request(connection_id, is_stream=is_stream)
        try:
            await self._app(scope, receive, send_and_note_end)
        finally:
            self._connections.end_request(connection_id, is_stream=is_stream)
