"""Who is calling: each agent has sessions of its own, and cannot tell another's from none.

A client over stdin and stdout is one agent, which has the process. Over HTTP the protocol has no lasting session any more,
so an agent is, first of all that a request tells of: a handle that was made for it, the name that it gives itself, the one
who is authenticated, or a session of the older protocol. All of these count within who is authenticated, if anybody is.
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
from kernelexec.mcp.quotas import Allotment
from kernelexec.mcp.scopes import EXECUTE, READ, allows
from kernelexec.workspace.directory import check_name

#: How a request names its agent: in its ``_meta``, or as a header; and for a process, in its environment.
AGENT_META, AGENT_HEADER, AGENT_VARIABLE = "kernelexec/agent", "x-kernelexec-agent", "KERNELEXEC_AGENT"
_AGENT_CHARS = 200
#: How much of a digest stands before a session's name, and how much is left for that.
_OWNER_CHARS, _NAME_CHARS = 20, 43
#: From this revision on requests are each for themselves: revisions are dates.
_STATELESS = "2026-07-28"
_NOBODY = (
    "This server cannot tell whose session {name!r} is: call create_session, and pass the handle that it gives as `session`. "
    f"Or have your client send the header {AGENT_HEADER} with a name for this agent, the same each time."
)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who made a request: the one who is ``authenticated``, and the ``agent`` of theirs, where that can be told.

    The ``whole`` process is one agent's if nobody else can speak to it. Who has ``scopes`` may do nothing else.
    """

    authenticated: str = ""
    agent: str | None = None
    whole: bool = False
    scopes: frozenset[str] | None = None

    def session(self, name: str) -> str:
        """The executor's name for what this caller calls a session: by a name, or a handle.

        Raises:
            InvalidRequest: no such name can be; or nobody can know whose session that is.
        """
        if self.is_handle(name):
            return f"h-{self._digest('handle', name)[: 2 * _OWNER_CHARS]}"
        check_name(name)
        if self.whole:
            return name
        if self.agent is None:
            raise InvalidRequest(_NOBODY.format(name=name))
        if len(name) > _NAME_CHARS:
            message = f"session name {name!r}: {_NAME_CHARS} characters are the most here."
            raise InvalidRequest(message)
        return f"{self._owner}{name}"

    @property
    def client(self) -> str:
        """Whose quota counts: names that somebody who is authenticated gives to agents make no more of it."""
        return f"authenticated {self.authenticated}" if self.authenticated else f"agent {self.agent}" * (self.agent is not None)

    def owns(self, session: str) -> bool:
        """Whether a session, by the executor's name, is this caller's by its name, and not by a handle."""
        return self.whole or (self.agent is not None and session.startswith(self._owner))

    def shown(self, session: str) -> str:
        """What this caller calls a session that is its own by its name."""
        return session if self.whole else session.removeprefix(self._owner)

    @staticmethod
    def is_handle(name: str) -> bool:
        """Whether that can be a handle."""
        return HANDLE.fullmatch(name) is not None

    @staticmethod
    def new_handle() -> str:
        """A new one. It is kept nowhere: who has it, and is the one whom it was made for, has the session."""
        return f"ks-{secrets.token_hex(16)}"

    @property
    def _owner(self) -> str:
        return f"{self._digest('agent', self.agent or '')[:_OWNER_CHARS]}-"

    def _digest(self, kind: str, word: str) -> str:
        return hashlib.sha256(json.dumps([kind, self.authenticated, word]).encode()).hexdigest()


#: The client of a process that serves no other.
PROCESS = Caller(whole=True)
#: Whose request it is that is answered now.
CALLER: ContextVar[Caller] = ContextVar("kernelexec_caller", default=PROCESS)


class Callers(Middleware):
    """Finds out whose each request is, before anything answers it, and whether they may make it."""

    def __init__(self, allotment: Allotment) -> None:
        self._allotment = allotment
        self.reading: set[str] = set()
        """The tools that change nothing."""

    async def on_request(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:  # noqa: ANN401 - fastmcp's
        """See fastmcp's ``Middleware``."""
        try:
            token = CALLER.set(_caller(context))
        except InvalidRequest as exc:
            raise MCPError(INVALID_PARAMS, str(exc)) from exc
        try:
            return await call_next(context)
        finally:
            CALLER.reset(token)

    async def on_call_tool(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:  # noqa: ANN401 - the same
        """See fastmcp's ``Middleware``."""
        if not allows(CALLER.get().scopes, reading=context.message.name in self.reading):
            raise ToolError(f"{context.message.name} needs a token with the scope {EXECUTE}.")
        try:
            self._allotment.call(CALLER.get().client)
        except CapacityReached as exc:
            raise ToolError(str(exc)) from exc
        return await call_next(context)

    async def on_read_resource(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:  # noqa: ANN401 - the same
        """See fastmcp's ``Middleware``."""
        if not allows(CALLER.get().scopes, reading=True):
            raise ResourceError(f"{context.message.uri} needs a token with the scope {READ}.")
        try:
            self._allotment.call(CALLER.get().client)
        except CapacityReached as exc:
            raise ResourceError(str(exc)) from exc
        return await call_next(context)

    async def on_get_prompt(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:  # noqa: ANN401 - the same
        """See fastmcp's ``Middleware``."""
        if not allows(CALLER.get().scopes, reading=False):
            raise PromptError(f"{context.message.name} needs a token with the scope {EXECUTE}.")
        return await call_next(context)


def _caller(context: MiddlewareContext[Any]) -> Caller:
    inner = context.fastmcp_context.request_context if context.fastmcp_context is not None else None
    meta: Any = inner.meta if inner is not None else None
    named = meta.get(AGENT_META) if isinstance(meta, dict) else None
    try:
        request = get_http_request()
    except RuntimeError:
        named = _checked(named, AGENT_META) or _checked(os.environ.get(AGENT_VARIABLE), AGENT_VARIABLE)
        return PROCESS if named is None else Caller(agent=f"name {named}")
    token = get_access_token()
    authenticated, scopes = "", None
    if token is not None:
        claims = token.claims
        authenticated = json.dumps([token.client_id, claims.get("iss"), claims.get("sub")])
        scopes = frozenset(token.scopes)
    agent = "" if token is not None else _old_session(context)
    if (named := _checked(named, AGENT_META) or _checked(request.headers.get(AGENT_HEADER), AGENT_HEADER)) is not None:
        agent = f"name {named}"
    return Caller(authenticated, agent, scopes=scopes)


def _checked(named: object, where: str) -> str | None:
    """An agent's name as it was given.

    Raises:
        InvalidRequest: it is none.
    """
    if named is None or named == "":
        return None
    if not isinstance(named, str) or len(named) > _AGENT_CHARS or not named.isprintable():
        message = f"{where}: {named!r:.100} names no agent: 1 to {_AGENT_CHARS} printable characters are expected."
        raise InvalidRequest(message)
    return named


def _old_session(context: MiddlewareContext[Any]) -> str | None:
    """A session of the protocol before it was stateless: its id is new, and the same for all requests of one client."""
    inner = context.fastmcp_context
    if inner is None or inner.request_context is None or inner.session.protocol_version >= _STATELESS:
        return None
    return f"session {inner.session_id}"
