"""Connections of older clients, and the sessions that end with them.

An older client without a token and an agent name has the sessions of its connection, which no later connection can name.
They end when the client ends the connection, or when it has had no open request for a while.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import anyio

#: The most seconds that the sessions of a connection without requests live after its stream of events was closed.
CLOSED_STREAM_SECONDS = 60.0
#: Seconds after which a session that is busy is looked at again.
_BUSY_SECONDS = 5.0


@dataclass(eq=False, slots=True)
class _Connection:
    """One connection: its open requests and streams, its last use on the monotonic clock, and the names of its sessions."""

    requests: int = 0
    has_lost_stream: bool = False
    last_use: float = field(default_factory=time.monotonic)
    is_over: bool = False
    sessions: set[str] = field(default_factory=set)


class Connections:
    """The connections of older clients by id.

    Args:
        close_session: closes the session of that name if it is open.
        is_busy: returns whether a cell of the session runs or waits.
        silent_seconds: how long the sessions of a connection without open requests live; None for no limit.
    """

    def __init__(
        self,
        close_session: Callable[[str], Coroutine[Any, Any, None]],
        is_busy: Callable[[str], bool],
        *,
        silent_seconds: float | None,
    ) -> None:
        self._close_session = close_session
        self._is_busy = is_busy
        self._silent_seconds = silent_seconds
        self._connections: dict[str, _Connection] = {}
        self._changed = anyio.Event()

    def begin_request(self, connection_id: str, *, is_stream: bool = False) -> None:
        """Note that a request of a connection is served from now on; ``is_stream`` is its stream of events."""
        connection = self._connections.setdefault(connection_id, _Connection())
        connection.requests += 1
        connection.has_lost_stream &= not is_stream

    def end_request(self, connection_id: str, *, is_stream: bool = False) -> None:
        """Note the end of a request."""
        if (connection := self._connections.get(connection_id)) is not None:
            connection.requests -= 1
            connection.has_lost_stream |= is_stream
            connection.last_use = time.monotonic()
            if not (connection.requests or connection.sessions):
                del self._connections[connection_id]
            self._changed.set()

    def end(self, connection_id: str) -> None:
        """Note that the client has ended its connection: ``run`` closes its sessions at once."""
        if (connection := self._connections.get(connection_id)) is not None:
            connection.is_over = True
            self._changed.set()

    def add_session(self, connection_id: str, session: str) -> None:
        """Note that a session belongs to a connection; also if the connection is over by now, since calls may outlive it."""
        self._connections.setdefault(connection_id, _Connection(is_over=True)).sessions.add(session)
        self._changed.set()

    async def run(self) -> None:
        """Close the sessions of ended and of silent connections, until cancelled."""
        while True:
            self._changed = anyio.Event()
            async with anyio.create_task_group() as tasks:
                for session in self._remove_ended():
                    tasks.start_soon(self._close_session, session)
            wait = min((self._find_deadline(connection) for connection in self._connections.values()), default=None)
            with anyio.move_on_after(None if wait is None else max(wait - time.monotonic(), 0.0)):
                await self._changed.wait()

    async def make_room(self) -> bool:
        """Close the sessions of the connection that has been silent for longest; return False if no connection is silent."""
        silent = [
            (self._is_any_busy(connection), connection.last_use, name)
            for name, connection in self._connections.items()
            if connection.sessions and not connection.requests
        ]
        if not silent:
            return False
        for session in self._connections.pop(min(silent)[2]).sessions:
            await self._close_session(session)
        return True

    def _remove_ended(self) -> list[str]:
        """Forget ended and silent connections, and return their sessions; a silent one with a running cell is kept."""
        now, sessions = time.monotonic(), list[str]()
        for name, connection in list(self._connections.items()):
            if self._find_deadline(connection) > now:
                continue
            if not connection.is_over and self._is_any_busy(connection):
                connection.last_use += _BUSY_SECONDS
            else:
                del self._connections[name]
                sessions += connection.sessions
        return sessions

    def _find_deadline(self, connection: _Connection) -> float:
        """Return the time from which on the sessions of a connection are closed."""
        if connection.is_over:
            return 0.0
        if connection.requests or self._silent_seconds is None:
            return float("inf")
        seconds = min(self._silent_seconds, CLOSED_STREAM_SECONDS) if connection.has_lost_stream else self._silent_seconds
        return connection.last_use + seconds

    def _is_any_busy(self, connection: _Connection) -> bool:
        return any(map(self._is_busy, connection.sessions))
