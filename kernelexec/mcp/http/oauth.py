"""Authentication by the operator's OAuth provider: a provider of fastmcp, created by a Python module of the operator.

Its users are clients: one issuer and subject (``sub``) is one user, with any program. The ``client_id`` does not identify
users, because a proxy provider has one for all of them.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from fastmcp.server.auth import AccessToken, AuthProvider, MultiAuth, TokenVerifier

from kernelexec.errors import InvalidConfig
from kernelexec.mcp.callers import EXECUTE, READ, SCOPES

logger = logging.getLogger("kernelexec")

_ERROR_CHARS = 300
_MODULE = "kernelexec_operators_auth"
#: Client id of all users of a provider; the subject identifies the user.
_USER = "user"


@dataclass(frozen=True, slots=True)
class OperatorProvider:
    """Provider of fastmcp in a module of the operator.

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
        with _explain_failure(f"--auth {source} cannot be imported"):
            module = _load_file(source) if source.endswith(".py") else importlib.import_module(source)
        with _explain_failure(f"--auth {self.reference} failed"):
            provider = getattr(module, name)
            if not isinstance(provider, AuthProvider) and callable(provider):
                provider = provider()
        if not isinstance(provider, AuthProvider):
            message = (
                f"--auth {self.reference} is of the class {type(provider).__name__}; it must be an AuthProvider of fastmcp, "
                "or a function without arguments that returns one."
            )
            raise InvalidConfig(message)
        return _UserProvider(provider, self.scopes, own_verifier)


class _UserProvider(MultiAuth):
    """Provider that maps the tokens of the operator's provider to our users and scopes."""

    def __init__(self, provider: AuthProvider, scopes: tuple[str, ...] | None, own_verifier: TokenVerifier | None) -> None:
        super().__init__(server=provider)
        self._provider = provider
        self._scopes = scopes
        self._own_verifier = own_verifier

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
        others = [scope for scope in access_token.scopes if scope not in SCOPES]
        return AccessToken(
            token=token,
            client_id=_make_namespace(access_token),
            scopes=[*others, *self._limit_scopes(access_token.scopes)],
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


def _make_namespace(access_token: AccessToken) -> str:
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


@contextmanager
def _explain_failure(failure: str) -> Iterator[None]:
    """Turn any failure of the operator's module into ``InvalidConfig``."""
    try:
        yield
    except (Exception, SystemExit) as exc:
        reason = str(exc).strip().rstrip(".")
        raise InvalidConfig(f"{failure}: {type(exc).__name__}: {reason:.{_ERROR_CHARS}}.") from exc


def _load_file(source: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(_MODULE, Path(source).expanduser().absolute())
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[_MODULE] = importlib.util.module_from_spec(spec)  # the module's classes look it up there
    spec.loader.exec_module(module)
    return module
