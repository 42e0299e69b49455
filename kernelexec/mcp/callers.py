"""Identity of the caller of each request. Each agent has its own sessions and cannot detect those of other agents.

A client over stdin and stdout is one agent, which owns the whole process. Over HTTP the protocol has no lasting session, so
an agent is identified by the first of these that a request has: a session handle, an agent name, the authenticated client,
or a session of the older protocol. Handles and names are scoped to the authenticated client, if there is one.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from fastmcp.exceptions import PromptError, ResourceError, ToolError
from fastmcp.server.dependencies import get_access_token, get_http_request
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS

from kernelexec.errors import CapacityReached, InvalidRequest
from kernelexec.mcp.current_client import HANDLE
from kernelexec.mcp.quotas import QuotaTracker
from kernelexec.mcp.scopes import EXECUTE, READ, is_allowed
from kernelexec.workspace.directory import check_name

#: Where an agent name is read: the request's ``_meta``, an HTTP header, or the environment of a process.
AGENT_META, AGENT_HEADER, AGENT_VARIABLE = "kernelexec/agent", "x-kernelexec-agent", "KERNELEXEC_AGENT"
_AGENT_CHARS = 200
#: Characters of the owner's digest before a session's name, and characters left for the name.
_OWNER_CHARS, _NAME_CHARS = 20, 43
#: The first protocol revision with stateless requests; revisions are dates.
_STATELESS_VERSION = "2026-07-28"
_UNKNOWN_AGENT = (
    "This server cannot identify the owner of session {name!r}. Call create_session and pass its handle as `session`. "
    f"Or let your client send the header {AGENT_HEADER} with a name for this agent, the same in each request."
)


@dataclass(frozen=True, slots=True)
class Caller:
    """Identity of a request: the ``authenticated`` client, and its ``agent`` if known.

    With ``is_only_client`` the process serves one agent. With ``scopes`` the caller may do only what these allow.
    """

    authenticated: str = ""
    agent: str | None = None
    is_only_client: bool = False
    scopes: frozenset[str] | None = None

    def resolve_session(self, name: str) -> str:
        """Return the executor's name of a session that this caller knows by a name or handle.

        Raises:
            InvalidRequest: the name is invalid, or the owner of the session cannot be identified.
        """
        if self.is_handle(name):
            return f"h-{self._hash('handle', name)[: 2 * _OWNER_CHARS]}"
        check_name(name)
        if self.is_only_client:
            return name
        if self.agent is None:
            raise InvalidRequest(_UNKNOWN_AGENT.format(name=name))
        if len(name) > _NAME_CHARS:
            message = f"session name {name!r} must have at most {_NAME_CHARS} characters on this server."
            raise InvalidRequest(message)
        return f"{self._owner_prefix}{name}"

    @property
    def client(self) -> str:
        """Return the client to charge quotas to; agent names do not multiply an authenticated client's quota."""
        return f"authenticated {self.authenticated}" if self.authenticated else f"agent {self.agent}" * (self.agent is not None)

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
        """Return a new handle. It is not stored: a caller that has it, with the same authentication, has the session."""
        return f"ks-{secrets.token_hex(16)}"

    @property
    def _owner_prefix(self) -> str:
        return f"{self._hash('agent', self.agent or '')[:_OWNER_CHARS]}-"

    def _hash(self, kind: str, name: str) -> str:
        return hashlib.sha256(json.dumps([kind, self.authenticated, name]).encode()).hexdigest()


#: The caller in a process that serves a single client.
ONLY_CLIENT = Caller(is_only_client=True)
#: The caller of the current request.
CALLER: ContextVar[Caller] = ContextVar("kernelexec_caller", default=ONLY_CLIENT)


class CallerMiddleware(Middleware):
    """Middleware that identifies the caller of each request and checks its scopes and quota."""

    def __init__(self, quotas: QuotaTracker) -> None:
        self._quotas = quotas
        self.read_only_tools: set[str] = set()
        """Names of tools that change nothing."""

    async def on_request(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:  # noqa: ANN401 - fastmcp's
        """See fastmcp's ``Middleware``."""
        try:
            token = CALLER.set(_identify_caller(context))
        except InvalidRequest as exc:
            raise MCPError(INVALID_PARAMS, str(exc)) from exc
        try:
            return await call_next(context)
        finally:
            CALLER.reset(token)

    async def on_call_tool(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:  # noqa: ANN401 - the same
        """See fastmcp's ``Middleware``."""
        if not is_allowed(CALLER.get().scopes, read_only=context.message.name in self.read_only_tools):
            raise ToolError(f"{context.message.name} needs a token with the scope {EXECUTE}.")
        try:
            self._quotas.count_call(CALLER.get().client)
        except CapacityReached as exc:
            raise ToolError(str(exc)) from exc
        return await call_next(context)

    async def on_read_resource(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:  # noqa: ANN401 - the same
        """See fastmcp's ``Middleware``."""
        if not is_allowed(CALLER.get().scopes, read_only=True):
            raise ResourceError(f"{context.message.uri} needs a token with the scope {READ}.")
        try:
            self._quotas.count_call(CALLER.get().client)
        except CapacityReached as exc:
            raise ResourceError(str(exc)) from exc
        return await call_next(context)

    async def on_get_prompt(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:  # noqa: ANN401 - the same
        """See fastmcp's ``Middleware``."""
        if not is_allowed(CALLER.get().scopes, read_only=False):
            raise PromptError(f"{context.message.name} needs a token with the scope {EXECUTE}.")
        return await call_next(context)


def _identify_caller(context: MiddlewareContext[Any]) -> Caller:
    inner = context.fastmcp_context.request_context if context.fastmcp_context is not None else None
    meta: Any = inner.meta if inner is not None else None
    agent_name = meta.get(AGENT_META) if isinstance(meta, dict) else None
    try:
        request = get_http_request()
    except RuntimeError:
        agent_name = _check_agent_name(agent_name, AGENT_META) or _check_agent_name(
            os.environ.get(AGENT_VARIABLE), AGENT_VARIABLE
        )
        return ONLY_CLIENT if agent_name is None else Caller(agent=f"name {agent_name}")
    token = get_access_token()
    authenticated, scopes = "", None
    if token is not None:
        claims = token.claims
        authenticated = json.dumps([token.client_id, claims.get("iss"), claims.get("sub")])
        scopes = frozenset(token.scopes)
    agent = "" if token is not None else _find_legacy_session(context)
    if (
        agent_name := _check_agent_name(agent_name, AGENT_META)
        or _check_agent_name(request.headers.get(AGENT_HEADER), AGENT_HEADER)
    ) is not None:
        agent = f"name {agent_name}"
    return Caller(authenticated, agent, scopes=scopes)


def _check_agent_name(name: object, source: str) -> str | None:
    """Return an agent's name, or None if it is empty.

    Raises:
        InvalidRequest: the name is invalid.
    """
    if name is None or name == "":
        return None
    if not isinstance(name, str) or len(name) > _AGENT_CHARS or not name.isprintable():
        message = f"{source}: {name!r:.100} must be an agent name of 1 to {_AGENT_CHARS} printable characters."
        raise InvalidRequest(message)
    return name


def _find_legacy_session(context: MiddlewareContext[Any]) -> str | None:
    """Return the id of a session of the older, stateful protocol: unique, and the same for all requests of one client."""
    inner = context.fastmcp_context
    if inner is None or inner.request_context is None or inner.session.protocol_version >= _STATELESS_VERSION:
        return None
    return f"session {inner.session_id}"
