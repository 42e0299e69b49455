"""Who may call over HTTP: who has a token of the operator's file, or one of an authorization server's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from fastmcp.server.auth import AccessToken, AuthProvider, RemoteAuthProvider, TokenVerifier
from fastmcp.server.auth.providers.jwt import JWTVerifier
from pydantic import AnyHttpUrl

from kernelexec.errors import InvalidConfig
from kernelexec.mcp.http.oauth import Provided
from kernelexec.mcp.http.tokens import Tokens
from kernelexec.mcp.scopes import SCOPES

#: What is signed by a key that nobody but the authorization server has.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
_KEY_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Signed:
    """Tokens in the form of JWT (RFC 7519), whose claims ``scope`` or ``scp`` name our scopes.

    Args:
        keys: the address of the signer's JWKS, where new keys are found when they come, or a file with one public key in PEM.
        issuer: what ``iss`` has to be.
        audience: what ``aud`` has to be, or name among others: tokens for other servers are none here.
        algorithm: of the signature.
        public_url: this server's address for clients; with it they are told where tokens are had: at the issuer (RFC 9728).
    """

    keys: str
    issuer: str
    audience: str
    algorithm: str = "RS256"
    public_url: str | None = None

    def verifier(self) -> TokenVerifier:
        """Who verifies them.

        Raises:
            InvalidConfig: the options fit nothing, or the key cannot be read.
        """
        if self.algorithm not in ALGORITHMS:
            raise InvalidConfig(f"--jwt-algorithm {self.algorithm!r:.50}: it is one of {', '.join(ALGORITHMS)}.")
        for name, value in (("jwt-issuer", self.issuer), ("jwt-audience", self.audience)):
            if not value.strip():
                raise InvalidConfig(f"--{name} is empty: without it tokens for anybody would count here.")
        for name, said in (("public-url", self.public_url), ("jwt-issuer", self.issuer)):
            if self.public_url is not None and not _is_url(said or ""):
                message = f"--{name} {said!r:.200}: it is an address, as https://example.org, where clients are told of it."
                raise InvalidConfig(message)
        if _is_url(self.keys):
            return _Lasting(jwks_uri=self.keys, issuer=self.issuer, audience=self.audience, algorithm=self.algorithm)
        key = _read(Path(self.keys))
        return _Lasting(public_key=key, issuer=self.issuer, audience=self.audience, algorithm=self.algorithm)


class _Lasting(JWTVerifier):
    """One that takes no token for ever, and none of nobody's: each has to say when it ends, and whose it is."""

    async def verify_token(self, token: str) -> AccessToken | None:
        """See fastmcp's ``TokenVerifier``."""
        found = await super().verify_token(token)
        if found is None or found.expires_at is None:
            return None
        return found if any(found.claims.get(name) for name in ("sub", "client_id", "azp")) else None


class _Either(TokenVerifier):
    """Takes a token that one of two takes."""

    def __init__(self, first: TokenVerifier, second: TokenVerifier) -> None:
        super().__init__()
        self._both = first, second

    async def verify_token(self, token: str) -> AccessToken | None:
        """See fastmcp's ``TokenVerifier``."""
        for one in self._both:
            if (found := await one.verify_token(token)) is not None:
                return found
        return None


def authentication(tokens: Path | None, signed: Signed | None, provided: Provided | None = None) -> AuthProvider | None:
    """Who says who calls; None where everybody may.

    Raises:
        InvalidConfig: see ``Tokens``, ``Signed`` and ``Provided``; or the last two are both there.
    """
    known = None if tokens is None else Tokens(tokens)
    if provided is not None:
        if signed is not None:
            message = "--auth and --jwt-keys: one of them; fastmcp's MultiAuth makes one provider of several."
            raise InvalidConfig(message)
        return provided.provider(known)
    if signed is None:
        return known
    verifier = signed.verifier()
    verifier = verifier if known is None else _Either(known, verifier)
    if signed.public_url is None:
        return verifier
    servers = [AnyHttpUrl(signed.issuer)]
    return RemoteAuthProvider(verifier, servers, signed.public_url, scopes_supported=list(SCOPES))


def _is_url(given: str) -> bool:
    try:
        parts = urlsplit(given)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            text = file.read(_KEY_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        why = getattr(exc, "strerror", None) or "it is no text"
        raise InvalidConfig(f"--jwt-keys {path}: it cannot be read: {why}.") from exc
    if "-----BEGIN " not in text or "PRIVATE KEY" in text:
        message = f"--jwt-keys {path}: it holds no public key in PEM. Give one, or the address of a JWKS."
        raise InvalidConfig(message)
    return text
