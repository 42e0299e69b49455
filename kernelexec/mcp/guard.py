"""Guard of the HTTP server: checks of ``Host``, ``Origin`` and size before any other code reads a request.

A foreign page in a user's browser can send requests to this machine, also by DNS rebinding. Browsers set ``Host`` to the
target and ``Origin`` to the page.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from contextlib import suppress
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kernelexec.mcp.stdio import LINE_BYTES

#: The largest request body, the same as over stdin.
BODY_BYTES = LINE_BYTES
#: The largest body before login: forms and client registrations.
FORM_BYTES = 256 * 1024


class RequestGuard:
    """ASGI middleware against a foreign ``Host`` or ``Origin`` (403), large bodies (413) and requests during shutdown (503).

    The guard answers ``/healthz`` and ``/readyz`` before all checks.

    Args:
        app: the guarded application.
        hosts: allowed names in ``Host``, without a port; loopback is always allowed.
        origins: allowed page origins, such as ``https://example.org``, besides the server's own and loopback.
        ready: returns whether cells can run; false during shutdown.
        body_bytes: the largest body.
        path: path for large bodies; elsewhere the limit is ``FORM_BYTES``, because forms are read before authentication.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        path: str,
        hosts: Collection[str] = (),
        origins: Collection[str] = (),
        ready: Callable[[], bool] = lambda: True,
        body_bytes: int = BODY_BYTES,
    ) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)
        self._ready = ready
        self._body_bytes = body_bytes
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # Health probes name the server by the address of a pod or container, which no option lists. The answers reveal little.
        if scope["path"] in ("/healthz", "/readyz") and scope["method"] in ("GET", "HEAD"):
            alive = scope["path"] == "/healthz" or self._ready()
            await respond(send, 200 if alive else 503, {"status": "ok" if alive else "not ready"})
            return
        if not self._ready():
            await respond(send, 503, {"error": "The server is shutting down."})
            return
        if (reason := self._explain_refusal(scope)) is not None:
            await respond(send, 403, {"error": reason})
            return
        most = self._body_bytes if scope["path"] == self._path else min(self._body_bytes, FORM_BYTES)
        lengths = [value for name, value in scope["headers"] if name == b"content-length"]
        # A declared length is refused before anything is read. Chunked bodies declare none, so the body is counted as well.
        is_too_large = any(not length.isdigit() or int(length) > most for length in lengths)
        if not is_too_large:
            bounded = _BoundedRequest(receive, send, most)
            with suppress(ClientDisconnect):  # the client has gone, or the guard answers
                await self._app(scope, bounded.receive, bounded.send)
            is_too_large = bounded.is_too_large
        if is_too_large:
            await respond(send, 413, {"error": f"The body must have at most {most} bytes."})

    def _explain_refusal(self, scope: Scope) -> str | None:
        """Return the reason to refuse a request's ``Host`` or ``Origin``; None if both are allowed."""
        headers = {name: value.decode("latin-1") for name, value in scope["headers"] if name in (b"host", b"origin")}
        host = headers.get(b"host", "")
        server = parse_host(f"//{host}")
        if server is None or not (server in self._hosts or is_loopback(server)):
            return "Host: this server does not have that name; --allowed-host adds a name."
        origin = headers.get(b"origin")
        if origin is None or origin.lower().rstrip("/") in self._origins:
            return None
        page = parse_host(origin)
        # `null`, the origin of sandboxed frames and local files, has no host and is refused.
        if page is not None:
            is_same = urlsplit(origin).netloc.lower() == host.lower()
            # Pages of loopback on any port, such as those of inspectors, may call a server on loopback.
            if is_same or (is_loopback(page) and is_loopback(server)):
                return None
        return "Origin: pages of that origin may not send requests; --allowed-origin allows them."


class _BoundedRequest:
    """Request with a body limit, counted while the application reads. Nothing is buffered before authentication.

    Once the body is too large, the application gets a disconnect, its response is dropped, and the guard responds. A response
    that has begun continues.
    """

    def __init__(self, receive: Receive, send: Send, limit: int) -> None:
        self.is_too_large = False
        self._receive = receive
        self._send = send
        self._left = limit
        self._has_answered = False

    async def receive(self) -> Message:
        """Return the next message; a disconnect if the body is too large."""
        if not self.is_too_large:
            message = await self._receive()
            self._left -= len(message.get("body", b""))
            # A second response on the same request is impossible, so a response that has begun is not replaced.
            self.is_too_large = self._left < 0 and not self._has_answered
        return {"type": "http.disconnect"} if self.is_too_large else message

    async def send(self, message: Message) -> None:
        """Send a message, unless the guard must respond."""
        if not self.is_too_large:
            self._has_answered = True
            await self._send(message)


def parse_host(url: str) -> str | None:
    """Return the host of an address, in lower case; None without a host."""
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is loopback."""
    # No look-up: with DNS rebinding a foreign name has the address of loopback.
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


async def respond(send: Send, status: int, content: object) -> None:
    """Send a JSON response and close the connection."""
    body = json.dumps(content).encode()
    # The rest of a refused body is still on its way; a closed connection need not read it.
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
