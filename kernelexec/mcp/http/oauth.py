"""Authentication by the operator's OAuth provider: a provider of fastmcp, created by a Python module of the operator.

Users are the clients: one issuer and subject (``sub``) is one user, with any program. The ``client_id`` does not identify
users, because a proxy provider has one for all of them.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from fastmcp.server.auth import AccessToken, AuthProvider, TokenVerifier
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken as PlainToken
from starlette.middleware import Middleware
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from kernelexec.errors import InvalidConfig
from kernelexec.mcp.http.guard import respond
from kernelexec.mcp.scopes import EXECUTE, READ, SCOPES

logger = logging.getLogger("kernelexec")

_ERROR_CHARS = 300
_MODULE = "kernelexec_operators_auth"
#: Client id of all users of a provider; the subject identifies the user.
_USER = "user"
_NO_SUBJECT = (
    "The provider's token must have a `sub`: without it the server cannot tell your sessions from those of other users."
)


@dataclass(frozen=True, slots=True)
class OperatorProvider:
    """Provider in a module of the operator.

    Args:
        reference: MODULE:NAME or FILE.py:NAME of an ``AuthProvider`` of fastmcp, or of a function without arguments for one.
        scopes: the most of our scopes that a user gets; a token without any of them gets all of them. None means the scopes
            of the token.
    """

    reference: str
    scopes: tuple[str, ...] | None = None

    def load(self, own_verifier: TokenVerifier | None = None) -> AuthProvider:
        """Load the provider; ``own_verifier`` accepts tokens of the operator's file.

        Raises:
            InvalidConfig: the provider cannot be loaded, or a scope is unknown.
        """
        for scope in self.scopes or ():
            if scope not in SCOPES:
                raise InvalidConfig(f"--auth-scopes: {scope!r:.50} must be one of {', '.join(SCOPES)}.")
        source, _, name = self.reference.rpartition(":")
        if not source or not name:
            raise InvalidConfig(f"--auth {self.reference!r:.200} must be MODULE:NAME or FILE.py:NAME of a provider.")
        return _UserProvider(self._create(_load_module(source), name), self.scopes, own_verifier)

    def _create(self, module: ModuleType, name: str) -> AuthProvider:
        provider = getattr(module, name, None)
        if provider is None:
            raise InvalidConfig(f"--auth {self.reference}: the module has no {name!r:.100}.")
        if not isinstance(provider, AuthProvider) and callable(provider):
            try:
                provider = provider()
            except (Exception, SystemExit) as exc:
                raise InvalidConfig(f"--auth {self.reference} failed: {_describe_error(exc)}.") from exc
        if not isinstance(provider, AuthProvider):
            message = (
                f"--auth {self.reference} is of the class {type(provider).__name__}; it must be an AuthProvider of fastmcp, "
                "or a function without arguments that returns one."
            )
            raise InvalidConfig(message)
        return provider


class _UserProvider(AuthProvider):
    """Wrapper of the operator's provider that maps its tokens to our users and scopes; the routes are the provider's."""

    def __init__(self, provider: AuthProvider, scopes: tuple[str, ...] | None, own_verifier: TokenVerifier | None) -> None:
        super().__init__(provider.base_url, provider.required_scopes, provider.resource_base_url)
        self._provider = provider
        self._scopes = scopes
        self._own_verifier = own_verifier

    @property
    def scopes_supported(self) -> list[str]:
        """See fastmcp's ``AuthProvider``."""
        return self._provider.scopes_supported

    def get_challenge_scopes(self, required_scopes: list[str] | None = None) -> list[str]:
        """See fastmcp's ``AuthProvider``."""
        return self._provider.get_challenge_scopes(required_scopes)

    def get_routes(self, mcp_path: str | None = None) -> list[Route]:
        """See fastmcp's ``AuthProvider``."""
        self.set_mcp_path(mcp_path)
        return self._provider.get_routes(mcp_path)

    def get_middleware(self) -> list[Middleware]:
        """See fastmcp's ``AuthProvider``."""
        return [*super().get_middleware(), Middleware(_UnnamedUserGuard)]

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return the user and scopes of a token; a token without a subject gets no scopes and no ``client_id``."""
        if self._own_verifier is not None and (own_token := await self._own_verifier.verify_token(token)) is not None:
            needed = [scope for scope in self.required_scopes if scope not in SCOPES]  # required of the provider's own tokens
            return own_token.model_copy(update={"scopes": [*own_token.scopes, *needed]})
        access_token = await self._provider.verify_token(token)
        if access_token is None or (access_token.expires_at is not None and access_token.expires_at < time.time()):
            return None
        claims = access_token.claims or {}
        subject = access_token.subject or claims.get("sub")
        if not isinstance(subject, str) or not subject.strip():
            logger.warning("kernelexec.token_without_subject", extra={"provider": type(self._provider).__name__})
            return AccessToken(token=token, client_id="", scopes=[], expires_at=access_token.expires_at)
        return AccessToken(
            token=token,
            client_id=self._make_namespace(access_token),
            scopes=[*(scope for scope in access_token.scopes if scope not in SCOPES), *self._limit_scopes(access_token.scopes)],
            expires_at=access_token.expires_at,
            subject=subject,
            claims={name: value for name, value in claims.items() if name == "iss"} | {"sub": subject},
        )

    def _limit_scopes(self, token_scopes: list[str]) -> list[str]:
        ours = [scope for scope in SCOPES if scope in token_scopes]
        if self._scopes is None:
            return ours
        most = {*self._scopes, *([READ] if EXECUTE in self._scopes else ())}
        return [scope for scope in ours if scope in most] or list(self._scopes)

    @staticmethod
    def _make_namespace(access_token: PlainToken) -> str:
        """Return the namespace of a subject, besides its issuer: a provider may combine sources that set no issuer."""
        sources: list[str] = []
        client, original = access_token.client_id, getattr(access_token, "original_client_id", None)
        while original is not None and client != original:  # MultiAuth nests the names of its sources
            source, client, *_ = json.loads(client)
            sources.append(source)
        asserted = (access_token.claims or {}).get("assertion_iss")  # the issuer that a proxy trusted, if ``iss`` is the proxy
        if asserted is not None:
            sources.append(str(asserted))
        return json.dumps(sources) if sources else _USER


class _UnnamedUserGuard:
    """ASGI middleware that refuses requests whose token has no subject."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        user = scope.get("user")
        if scope["type"] == "http" and isinstance(user, AuthenticatedUser) and not user.access_token.client_id:
            # MCP clients show errors of this form to their users.
            await respond(send, 403, {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": _NO_SUBJECT}})
            return
        await self._app(scope, receive, send)


def _load_module(source: str) -> ModuleType:
    """Load the operator's module; a name is searched on Python's path only, not in the current directory."""
    path = Path(source).expanduser().absolute()
    is_file = source.endswith(".py")
    if is_file and not path.is_file():
        raise InvalidConfig(f"--auth {source}: no such file.")
    try:
        return _load_file(path) if is_file else importlib.import_module(source)
    except (Exception, SystemExit) as exc:
        if isinstance(exc, ModuleNotFoundError) and exc.name is not None and f"{source}.".startswith(f"{exc.name}."):
            message = f"--auth {source}: {sys.executable} has no such module. For a file use FILE.py:NAME."
            raise InvalidConfig(message) from exc
        raise InvalidConfig(f"--auth {source} cannot be imported: {_describe_error(exc)}.") from exc


def _load_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(_MODULE, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[_MODULE] = importlib.util.module_from_spec(spec)  # the module's classes look it up there
    spec.loader.exec_module(module)
    return module


def _describe_error(exc: BaseException) -> str:
    text: Any = str(exc).strip().rstrip(".")
    return f"{type(exc).__name__}: {text:.{_ERROR_CHARS}}"
