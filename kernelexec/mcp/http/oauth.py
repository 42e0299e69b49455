"""Who calls, as a provider of the operator's says: OAuth by one of fastmcp's, which a Python module of theirs makes.

Its users are the clients: who has the same issuer and the same subject (``sub``) is one user, with whatever program they
come. Programs are no users: a provider in front of another has one ``client_id`` for all of them, so it tells nobody apart.
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
from kernelexec.mcp.http.guard import say
from kernelexec.mcp.scopes import EXECUTE, READ, SCOPES

logger = logging.getLogger("kernelexec")

_ERROR_CHARS = 300
_MODULE = "kernelexec_operators_auth"
#: Instead of a program's name, which nobody is told apart by.
_USER = "user"
_NOBODY = "The provider's token names no user, it has no `sub`: nobody could tell your sessions from another's."


@dataclass(frozen=True, slots=True)
class Provided:
    """A provider in a module of the operator's.

    Args:
        place: MODULE:NAME or FILE.py:NAME of an ``AuthProvider`` of fastmcp, or of a function without arguments that gives one.
        scopes: those of ours that everybody has whom it lets in, at most: a token that names fewer of ours has these. None are
            those that tokens name.
    """

    place: str
    scopes: tuple[str, ...] | None = None

    def provider(self, known: TokenVerifier | None = None) -> AuthProvider:
        """The provider, beside whom we know ourselves.

        Raises:
            InvalidConfig: there is none, or no such scope.
        """
        for scope in self.scopes or ():
            if scope not in SCOPES:
                raise InvalidConfig(f"--auth-scopes: {scope!r:.50} is no scope: there are {', '.join(SCOPES)}.")
        source, _, name = self.place.rpartition(":")
        if not source or not name:
            raise InvalidConfig(f"--auth {self.place!r:.200}: MODULE:NAME or FILE.py:NAME of a provider is expected.")
        return _Users(self._made(_module(source), name), self.scopes, known)

    def _made(self, module: ModuleType, name: str) -> AuthProvider:
        found = getattr(module, name, None)
        if found is None:
            raise InvalidConfig(f"--auth {self.place}: there is no {name!r:.100} in it.")
        if not isinstance(found, AuthProvider) and callable(found):
            try:
                found = found()
            except (Exception, SystemExit) as exc:
                raise InvalidConfig(f"--auth {self.place}: it failed: {_why(exc)}.") from exc
        if not isinstance(found, AuthProvider):
            message = (
                f"--auth {self.place}: it is of the class {type(found).__name__}: an AuthProvider of fastmcp is expected, or a "
                "function without arguments that gives one."
            )
            raise InvalidConfig(message)
        return found


class _Users(AuthProvider):
    """A provider whose tokens say who their users are, and what they may do here; its routes are its own."""

    def __init__(self, provider: AuthProvider, scopes: tuple[str, ...] | None, known: TokenVerifier | None) -> None:
        super().__init__(provider.base_url, provider.required_scopes, provider.resource_base_url)
        self._provider = provider
        self._scopes = scopes
        self._known = known

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
        return [*super().get_middleware(), Middleware(_Named)]

    async def verify_token(self, token: str) -> AccessToken | None:
        """Whose a token is. A token of a user whom nobody can name is good for nothing, and has no ``client_id``."""
        if self._known is not None and (ours := await self._known.verify_token(token)) is not None:
            needed = [scope for scope in self.required_scopes if scope not in SCOPES]  # which are for its own tokens
            return ours.model_copy(update={"scopes": [*ours.scopes, *needed]})
        found = await self._provider.verify_token(token)
        if found is None or (found.expires_at is not None and found.expires_at < time.time()):
            return None
        claims = found.claims or {}
        subject = found.subject or claims.get("sub")
        if not isinstance(subject, str) or not subject.strip():
            logger.warning("kernelexec.token_without_subject", extra={"provider": type(self._provider).__name__})
            return AccessToken(token=token, client_id="", scopes=[], expires_at=found.expires_at)
        return AccessToken(
            token=token,
            client_id=self._namespace(found),
            scopes=[*(scope for scope in found.scopes if scope not in SCOPES), *self._granted(found.scopes)],
            expires_at=found.expires_at,
            subject=subject,
            claims={name: value for name, value in claims.items() if name == "iss"} | {"sub": subject},
        )

    def _granted(self, named: list[str]) -> list[str]:
        ours = [scope for scope in SCOPES if scope in named]
        if self._scopes is None:
            return ours
        most = {*self._scopes, *([READ] if EXECUTE in self._scopes else ())}
        return [scope for scope in ours if scope in most] or list(self._scopes)

    @staticmethod
    def _namespace(found: PlainToken) -> str:
        """Within what a subject names one user, besides its issuer: a provider may ask several, and not all name themselves."""
        sources: list[str] = []
        client, original = found.client_id, getattr(found, "original_client_id", None)
        while original is not None and client != original:  # so MultiAuth says who knew a token, one within another
            source, client, *_ = json.loads(client)
            sources.append(source)
        asserted = (found.claims or {}).get("assertion_iss")  # whose word a proxy took, when ``iss`` is the proxy
        if asserted is not None:
            sources.append(str(asserted))
        return json.dumps(sources) if sources else _USER


class _Named:
    """ASGI middleware: tells whom a token names nobody for that it is so, before anything else is answered."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        user = scope.get("user")
        if scope["type"] == "http" and isinstance(user, AuthenticatedUser) and not user.access_token.client_id:
            # In the form that clients of MCP show to who uses them.
            await say(send, 403, {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": _NOBODY}})
            return
        await self._app(scope, receive, send)


def _module(source: str) -> ModuleType:
    """The operator's module. A directory's modules are found by their names where Python has it on its path, never here."""
    path = Path(source).expanduser().absolute()
    is_file = source.endswith(".py")
    if is_file and not path.is_file():
        raise InvalidConfig(f"--auth {source}: there is no such file.")
    try:
        return _read(path) if is_file else importlib.import_module(source)
    except (Exception, SystemExit) as exc:
        if isinstance(exc, ModuleNotFoundError) and exc.name is not None and f"{source}.".startswith(f"{exc.name}."):
            message = f"--auth {source}: there is no such module for {sys.executable}. A file is named as FILE.py:NAME."
            raise InvalidConfig(message) from exc
        raise InvalidConfig(f"--auth {source}: it cannot be imported: {_why(exc)}.") from exc


def _read(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(_MODULE, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[_MODULE] = importlib.util.module_from_spec(spec)  # where its own classes look for it
    spec.loader.exec_module(module)
    return module


def _why(exc: BaseException) -> str:
    said: Any = str(exc).strip().rstrip(".")
    return f"{type(exc).__name__}: {said:.{_ERROR_CHARS}}"
