"""What an HTTP request has to be before anything reads it: meant for this server, from a page that may, and of a bounded size.

A page of a stranger's, open in somebody's browser, can send requests to this machine (DNS rebinding, too). Browsers say by
``Host`` and ``Origin`` what they mean and where that comes from.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from contextlib import suppress
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kernelexec.mcp.stdio_transport import LINE_BYTES

#: The largest request: what fits over stdin fits here.
BODY_BYTES = LINE_BYTES
#: The largest one where strangers log in: forms, and what registers a client.
FORM_BYTES = 256 * 1024
_LOOPBACK = "localhost"


class Gate:
    """ASGI middleware: refuses a foreign ``Host`` or ``Origin`` with 403, too large a body with 413, all at the end with 503.

    It answers about health itself, at ``/healthz`` and ``/readyz``.

    Args:
        app: what comes behind it.
        hosts: names, without a port, that ``Host`` may have besides those of this machine itself.
        origins: pages' origins, as ``https://example.org``, that may send requests besides this machine's and the server's own.
        ready: whether cells can be run, or the server ends.
        body_bytes: how large a body may be.
        path: where it may; elsewhere nobody has shown a token, and ``FORM_BYTES`` are the most. None is everywhere.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Collection[str] = (),
        origins: Collection[str] = (),
        ready: Callable[[], bool] = lambda: True,
        body_bytes: int = BODY_BYTES,
        path: str | None = None,
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
        if scope["path"] in ("/healthz", "/readyz") and scope["method"] in ("GET", "HEAD"):
            alive = scope["path"] == "/healthz" or self._ready()
            await say(send, 200 if alive else 503, {"status": "ok" if alive else "not ready"})
            return
        if not self._ready():
            await say(send, 503, {"error": "The server is ending."})
            return
        if (why := self._foreign(scope)) is not None:
            await say(send, 403, {"error": why})
            return
        most = self._body_bytes if self._path in (None, scope["path"]) else min(self._body_bytes, FORM_BYTES)
        if any(name == b"content-length" and not _fits(value, most) for name, value in scope["headers"]):
            await _too_large(send, most)
            return
        bounded = _Bounded(receive, send, most)
        with suppress(ClientDisconnect):  # nobody is there any more to be answered, or the gate answers
            await self._app(scope, bounded.receive, bounded.send)
        if bounded.over:
            await _too_large(send, most)

    def _foreign(self, scope: Scope) -> str | None:
        """Why a request is not meant for this server, or comes from a page that may not; None where neither is so."""
        said = {name: value.decode("latin-1") for name, value in scope["headers"] if name in (b"host", b"origin")}
        host = said.get(b"host", "")
        if not self._is_ours(_host_of(f"//{host}")):
            return "Host: this server has another name; --allowed-host gives it one more."
        origin = said.get(b"origin")
        if origin is None or origin.lower().rstrip("/") in self._origins:
            return None
        page, own = _host_of(origin), _host_of(f"//{host}")
        if page is not None and ((is_loopback(page) and own is not None and is_loopback(own)) or _same(origin, host)):
            return None
        return "Origin: pages from there may not send requests; --allowed-origin lets them."

    def _is_ours(self, host: str | None) -> bool:
        return host is not None and (host in self._hosts or is_loopback(host))


class _Bounded:
    """A request's body as it comes, so that it is read by nobody before it is known who sends it; and its answer.

    Once it is too large the request is as good as left, and what is answered to that goes nowhere: the answer is the gate's.
    """

    def __init__(self, receive: Receive, send: Send, limit: int) -> None:
        self.over = False
        self._receive = receive
        self._send = send
        self._left = limit
        self._answered = False

    async def receive(self) -> Message:
        """The next piece, if there is still room for it."""
        if not self.over:
            message = await self._receive()
            self._left -= len(message.get("body", b""))
            self.over = self._left < 0 and not self._answered
        return {"type": "http.disconnect"} if self.over else message

    async def send(self, message: Message) -> None:
        """Answer, unless the gate has to."""
        if not self.over:
            self._answered = True
            await self._send(message)


def _fits(length: bytes, most: int) -> bool:
    return length.isdigit() and int(length) <= most


async def _too_large(send: Send, most: int) -> None:
    await say(send, 413, {"error": f"The body is larger than {most} bytes."})


def _host_of(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    """Whether a host, by name or address, is this machine's own side only."""
    if host == _LOOPBACK:
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _same(origin: str, host: str) -> bool:
    """Whether a page is the server's own."""
    try:
        return urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False


async def say(send: Send, status: int, said: object) -> None:
    """Answer a request with something as JSON, and hear no more of it."""
    body = json.dumps(said).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
