"""Tracker of the requests of older clients, by the id of their connection, which the protocol calls a session."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kernelexec.mcp.calls.connections import Connections

_ID_HEADER = b"mcp-session-id"
_REFUSED = 400


class ConnectionTracker:
    """ASGI middleware that tells ``Connections`` when requests of a connection begin and end, and when its client ends it."""

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
            if is_end and message["type"] == "http.response.start" and message["status"] < _REFUSED:
                self._connections.end(connection_id)
            await send(message)

        self._connections.begin_request(connection_id, is_stream=is_stream)
        try:
            await self._app(scope, receive, send_and_note_end)
        finally:
            self._connections.end_request(connection_id, is_stream=is_stream)
