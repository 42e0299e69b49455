"""Callers of requests: identity, scopes, and the connections of older clients.

Each agent has separate sessions and cannot detect other agents' sessions. A client over stdin and stdout is a single agent and
owns the whole process. HTTP requests are independent of each other, so an agent is identified by the first of these in a
request: a session handle, an agent name, the authenticated client, or a session of the older protocol. Handles and names are
scoped to the authenticated client, if any.

An older client without a token and an agent name has the sessions of its connection. No later connection can name them. They
end when the client ends the connection, or after a time without an open request.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable, Collection, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
from fastmcp.exceptions import FastMCPError, PromptError, ResourceError, ToolError
from fastmcp.server.dependencies import get_access_token, get_http_request
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS

from kernelexec.errors import CapacityReached, InvalidRequest
from kernelexec.mcp.logs import HANDLE
from kernelexec.mcp.server_options import QuotaTracker
from kernelexec.text import escape_line
from kernelexec.workspace.directory import OWNED_NAME_CHARS, check_name, make_owner_prefix

#: Where an agent name is read: the request's ``_meta``, an HTTP header, or the environment of a process.
AGENT_META, AGENT_HEADER, AGENT_VARIABLE = "kernelexec/agent", "x-kernelexec-agent", "KERNELEXEC_AGENT"
_AGENT_CHARS, _PROGRAM_CHARS = 200, 100
#: The beginning of the identity of an agent that is known by its connection only.
_CONNECTION = "session "
#: The characters of the digest of a handle.
_HANDLE_CHARS = 40
#: The first protocol revision with stateless requests; revisions are dates.
STATELESS_VERSION = "2026-07-28"
#: The most seconds that the sessions of a connection without requests live after its stream of events was closed.
CLOSED_STREAM_SECONDS = 60.0
#: Seconds after which a session that is busy is looked at again.
_BUSY_SECONDS = 5.0

_UNKNOWN_AGENT = (
    "This server cannot identify the owner of session {name!r}. Call create_session and pass its handle as `session`. "
    f"Or let your client send the header {AGENT_HEADER} with a name for this agent, the same in each request."
)
_NO_SUBJECT = (
    "The provider's token must have a `sub`: without it the server cannot tell your sessions from those of other users."
)

#: ``read``: tools that change nothing; ``execute``: also tools that run code or change files; ``admin``: the server's
#: metrics, but no sessions.
READ, EXECUTE, ADMIN = "read", "execute", "admin"
SCOPES = (READ, EXECUTE, ADMIN)


@dataclass(frozen=True, slots=True)
class Caller:
    """Identity of a request's sender.

    Args:
        authenticated: the authenticated client; empty without authentication.
        agent: the agent's name or connection; None if unknown.
        is_only_client: whether the process serves a single agent.
        scopes: the allowed scopes; None allows everything.
        title: the agent's name for people, as in names of directories.
        program: name and version of the client's program, as stated by the client.
    """

    authenticated: str = ""
    agent: str | None = None
    is_only_client: bool = False
    scopes: frozenset[str] | None = None
    title: str = ""
    program: str = ""

    def resolve_session(self, name: str) -> str:
        """Return the executor's name for this caller's name or handle of a session.

        Raises:
            InvalidRequest: the name is invalid, or the owner of the session cannot be identified.
        """
        if self.is_handle(name):
            return f"h-{self._hash('handle', name).hex()[:_HANDLE_CHARS]}"
        check_name(name)
        if self.is_only_client:
            return name
        if self.agent is None:
            raise InvalidRequest(_UNKNOWN_AGENT.format(name=name))
        if len(name) > OWNED_NAME_CHARS:
            raise InvalidRequest(f"session name {name!r} must have at most {OWNED_NAME_CHARS} characters on this server.")
        return f"{self._owner_prefix}{name}"

    @property
    def client(self) -> str:
        """Return the client for quotas; agent names do not multiply an authenticated client's quota."""
        return f"authenticated {self.authenticated}" if self.authenticated else f"agent {self.agent}" * (self.agent is not None)

    @property
    def connection(self) -> str | None:
        """Return the id of the connection of an older client without another identity; None for other callers."""
        return (self.agent or "").removeprefix(_CONNECTION) if (self.agent or "").startswith(_CONNECTION) else None

    def may_call(self, *, read_only: bool) -> bool:
        """Return whether the scopes allow a call; a ``read_only`` call needs less."""
        return self.scopes is None or EXECUTE in self.scopes or (read_only and READ in self.scopes)

    def owns_session(self, session: str) -> bool:
        """Return whether an executor's session belongs to this caller by name; sessions with handles do not."""
        return self.is_only_client or (self.agent is not None and session.startswith(self._owner_prefix))

    def format_session(self, session: str) -> str:
        """Return this caller's own name of an executor's session."""
        return session if self.is_only_client else session.removeprefix(self._owner_prefix)

    @staticmethod
    def is_handle(name: str) -> bool:
        """Return whether a session name has the form of a handle."""
        return HANDLE.fullmatch(name) is not None

    @staticmethod
    def make_handle() -> str:
        """Return a new handle. Handles are not stored: a handle with the same authentication gives access to the session."""
        return f"ks-{secrets.token_hex(16)}"

    @property
    def _owner_prefix(self) -> str:
        return make_owner_prefix(self.title, self._hash("agent", self.agent or ""))

    def _hash(self, kind: str, name: str) -> bytes:
        # JSON separates the parts without ambiguity, and `kind` keeps handles apart from agents. With the authenticated client
        # in the digest, a stolen handle or an agent name of another client names a session that does not exist.
        return hashlib.sha256(json.dumps([kind, self.authenticated, name]).encode()).digest()


#: The caller in a process that serves a single client.
ONLY_CLIENT = Caller(is_only_client=True)
#: The caller of the current request.
CALLER: ContextVar[Caller] = ContextVar("kernelexec_caller", default=ONLY_CLIENT)


class CallerMiddleware(Middleware):
    """Middleware to identify callers and to check their scopes and quotas.

    ``read_only_tools`` change nothing.
    """

    def __init__(self, quotas: QuotaTracker, read_only_tools: Collection[str]) -> None:
        self._quotas = quotas
        self._read_only_tools = read_only_tools

    async def on_request(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:  # noqa: ANN401 - fastmcp's
        """See fastmcp's ``Middleware``."""
        try:
            token = CALLER.set(replace(_identify_caller(context), program=_name_program(context)))
        except InvalidRequest as exc:
            raise MCPError(INVALID_PARAMS, str(exc)) from exc
        try:
            return await call_next(context)
        finally:
            CALLER.reset(token)

    async def on_list_tools(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:  # noqa: ANN401 - the same
        """See fastmcp's ``Middleware``; return only the tools within the caller's scopes."""
        tools, caller = await call_next(context), CALLER.get()
        return [tool for tool in tools if caller.may_call(read_only=tool.name in self._read_only_tools)]

    async def on_list_prompts(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:  # noqa: ANN401 - the same
        """See fastmcp's ``Middleware``."""
        return await call_next(context) if CALLER.get().may_call(read_only=False) else []

    async def on_call_tool(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:  # noqa: ANN401 - the same
        """See fastmcp's ``Middleware``."""
        tool, server = context.message.name, context.fastmcp_context and context.fastmcp_context.fastmcp
        try:
            _check_scopes(tool, ToolError, read_only=tool in self._read_only_tools)
        except ToolError:
            if not server or await server.get_tool(tool) is not None:  # an unknown one is named as such, to each caller
                raise
        self._count_call(ToolError)
        return await call_next(context)

    async def on_read_resource(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:  # noqa: ANN401 - the same
        """See fastmcp's ``Middleware``."""
        _check_scopes(context.message.uri, ResourceError, read_only=True)
        self._count_call(ResourceError)
        return await call_next(context)

    async def on_get_prompt(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:  # noqa: ANN401 - the same
        """See fastmcp's ``Middleware``."""
        _check_scopes(context.message.name, PromptError, read_only=False)
        return await call_next(context)

    def _count_call(self, error: type[FastMCPError]) -> None:
        try:
            self._quotas.count_call(CALLER.get().client)
        except CapacityReached as exc:
            raise error(str(exc)) from exc


def _check_scopes(target: object, error: type[FastMCPError], *, read_only: bool) -> None:
    if not CALLER.get().may_call(read_only=read_only):
        raise error(f"{target} needs a token with the scope {READ if read_only else EXECUTE}.")


def _identify_caller(context: MiddlewareContext[Any]) -> Caller:
    inner = context.fastmcp_context.request_context if context.fastmcp_context is not None else None
    meta: Any = inner.meta if inner is not None else None
    agent_name = meta.get(AGENT_META) if isinstance(meta, dict) else None
    # fastmcp raises RuntimeError where no HTTP request is served: over stdin and stdout.
    try:
        source, other_name = AGENT_HEADER, get_http_request().headers.get(AGENT_HEADER)
    except RuntimeError:
        source, other_name = AGENT_VARIABLE, os.environ.get(AGENT_VARIABLE)
    agent_name = _check_agent_name(agent_name, AGENT_META) or _check_agent_name(other_name, source)
    if agent_name is None and source == AGENT_VARIABLE:
        return ONLY_CLIENT
    token = get_access_token()
    if token is not None and not token.client_id:  # the provider's wrapper accepts such a token, for a message with the reason
        raise InvalidRequest(_NO_SUBJECT)
    agent: str | None = f"name {agent_name}"  # the prefix keeps a name apart from the connection that `session ...` stands for
    if agent_name is None:
        # A token without an agent name is an agent by itself; without both, only an older client's connection is left.
        agent = "" if token is not None else _find_legacy_session(context)
    if token is None:
        return Caller(agent=agent, title=agent_name or "")
    # An issuer's subjects are unique only there, and the client id of a proxy provider is the same for all users.
    authenticated = json.dumps([token.client_id, token.claims.get("iss"), token.claims.get("sub")])
    title = agent_name or str(token.claims.get("sub") or token.client_id)
    return Caller(authenticated, agent, scopes=frozenset(token.scopes), title=title)


def _name_program(context: MiddlewareContext[Any]) -> str:
    """Return name and version of the client's program, as stated by the client; empty if unknown."""
    inner = context.fastmcp_context.request_context if context.fastmcp_context is not None else None
    about = inner.session.client_params if inner is not None else None
    return "" if about is None else escape_line(f"{about.client_info.name} {about.client_info.version}")[:_PROGRAM_CHARS]


def _check_agent_name(name: object, source: str) -> str | None:
    """Return an agent's name, or None for an empty name; raise ``InvalidRequest`` for an invalid name."""
    if name is None or name == "":
        return None
    if not isinstance(name, str) or len(name) > _AGENT_CHARS or not name.isprintable():
        raise InvalidRequest(f"{source}: {name!r:.100} must be an agent name of 1 to {_AGENT_CHARS} printable characters.")
    return name


def _find_legacy_session(context: MiddlewareContext[Any]) -> str | None:
    """Return the id of a session of the older, stateful protocol: unique, and the same for all requests of a client."""
    inner = context.fastmcp_context
    if inner is None or inner.request_context is None or inner.session.protocol_version >= STATELESS_VERSION:
        return None
    return f"{_CONNECTION}{inner.session_id}"


@dataclass(eq=False, slots=True)
class _Connection:
    """Connection of an older client: number of open requests, last use (monotonic clock), executor's names of sessions."""

    requests: int = 0
    has_lost_stream: bool = False
    last_use: float = field(default_factory=time.monotonic)
    is_over: bool = False
    sessions: set[str] = field(default_factory=set)


class Connections:
    """The connections of older clients by id.

    Args:
        close_session: closes a session by the executor's name, if open.
        is_busy: returns whether a cell of a session runs or waits.
        silent_seconds: seconds for sessions to live while their connection has no open request; None for no limit.
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
        """Note the begin of a request; with ``is_stream`` the request is the connection's stream of events."""
        connection = self._connections.setdefault(connection_id, _Connection())
        connection.requests += 1  # so `make_room` and the deadline spare the connection
        connection.has_lost_stream &= not is_stream

    def end_request(self, connection_id: str, *, is_stream: bool = False) -> None:
        """Note the end of a request."""
        if (connection := self._connections.get(connection_id)) is not None:
            connection.requests -= 1
            # A client without its stream of events has probably gone without a DELETE, so a shorter limit holds.
            connection.has_lost_stream |= is_stream
            connection.last_use = time.monotonic()
            if not (connection.requests or connection.sessions):
                del self._connections[connection_id]
            self._changed.set()

    def end(self, connection_id: str) -> None:
        """Note the end of a connection by the client; ``run`` closes the sessions at once."""
        if (connection := self._connections.get(connection_id)) is not None:
            connection.is_over = True
            self._changed.set()

    def add_session(self, connection_id: str, session: str) -> None:
        """Add a session to a connection, also to an ended connection: calls may outlive their connection."""
        # A call in progress keeps its connection in the table, so an unknown connection has ended.
        self._connections.setdefault(connection_id, _Connection(is_over=True)).sessions.add(session)
        self._changed.set()

    async def run(self) -> None:
        """Close the sessions of ended and silent connections, until cancelled."""
        while True:
            self._changed = anyio.Event()  # before the look at the table: a change during the closing is not missed
            async with anyio.create_task_group() as tasks:
                for session in self._remove_ended():
                    tasks.start_soon(self._close_session, session)
            wait = min((self._find_deadline(connection) for connection in self._connections.values()), default=None)
            with anyio.move_on_after(None if wait is None else max(wait - time.monotonic(), 0.0)):
                await self._changed.wait()

    async def make_room(self) -> bool:
        """Close the sessions of the longest silent connection, if possible without a running cell; return False without any."""
        silent = [
            (self._is_any_busy(connection), connection.last_use, name)
            for name, connection in self._connections.items()
            if connection.sessions and not connection.requests
        ]
        if not silent:
            return False
        # Removed before the first await: a concurrent caller chooses another connection, and a new request of this client
        # begins with an entry without sessions.
        for session in self._connections.pop(min(silent)[2]).sessions:
            await self._close_session(session)
        return True

    def _remove_ended(self) -> list[str]:
        """Forget ended and silent connections and return their sessions; keep silent connections with busy sessions."""
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
        """Return the monotonic time for closing the sessions of a connection."""
        if connection.is_over:
            return 0.0
        if connection.requests or self._silent_seconds is None:
            return float("inf")
        seconds = min(self._silent_seconds, CLOSED_STREAM_SECONDS) if connection.has_lost_stream else self._silent_seconds
        return connection.last_use + seconds

    def _is_any_busy(self, connection: _Connection) -> bool:
        return any(map(self._is_busy, connection.sessions))
