"""Authentication over HTTP: by tokens of the operator's file, JWTs of an authorization server, or an OAuth provider."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fastmcp.server.auth import AccessToken, AuthProvider, RemoteAuthProvider, TokenVerifier
from fastmcp.server.auth.providers.jwt import JWTVerifier
from pydantic import AnyHttpUrl

from kernelexec.errors import InvalidConfig
from kernelexec.mcp.callers import SCOPES
from kernelexec.mcp.http.guard import parse_host
from kernelexec.mcp.http.oauth import OperatorProvider
from kernelexec.mcp.http.tokens import TokenFile

#: Algorithms with a private key that only the authorization server has.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
_KEY_BYTES = 64 * 1024


def make_auth_provider(
    tokens: Path | None,
    jwt: JwtOptions | None,
    operator_provider: OperatorProvider | None = None,
    public_url: str | None = None,
) -> AuthProvider | None:
    """Return the provider that authenticates callers; None if everybody may call.

    With the ``public_url`` of this server, clients learn that the issuer of ``jwt`` gives tokens (RFC 9728).

    Raises:
        InvalidConfig: see ``TokenFile``, ``JwtOptions`` and ``OperatorProvider``; or both of the last two are set.
    """
    if operator_provider is not None and jwt is not None:
        raise InvalidConfig("--auth and --jwt-keys cannot be combined; fastmcp's MultiAuth combines providers into one.")
    verifier = None if jwt is None else jwt.make_verifier()
    if tokens is not None:
        verifier = TokenFile(tokens, verifier)
    if operator_provider is not None:
        return operator_provider.load(verifier)
    if jwt is None or public_url is None or verifier is None:
        return verifier
    if read_host(jwt.issuer) is None:
        raise InvalidConfig(f"--jwt-issuer {jwt.issuer!r:.200} must be an address like https://example.org with --public-url.")
    return RemoteAuthProvider(verifier, [AnyHttpUrl(jwt.issuer)], public_url, scopes_supported=list(SCOPES))


@dataclass(frozen=True, slots=True)
class JwtOptions:
    """Options for JWTs (RFC 7519) whose claim ``scope`` or ``scp`` has our scopes.

    Args:
        keys: address of the signer's JWKS, which also provides its new keys, or a file with one public key in PEM.
        issuer: the required ``iss``.
        audience: a value that ``aud`` must have or contain; tokens for other servers are rejected.
        algorithm: algorithm of the signature.
    """

    keys: str
    issuer: str
    audience: str
    algorithm: str = "RS256"

    def make_verifier(self) -> TokenVerifier:
        """Return the verifier of these tokens.

        Raises:
            InvalidConfig: an option is invalid, or the key cannot be read.
        """
        if self.algorithm not in ALGORITHMS:
            raise InvalidConfig(f"--jwt-algorithm {self.algorithm!r:.50} must be one of {', '.join(ALGORITHMS)}.")
        for name, value in (("jwt-issuer", self.issuer), ("jwt-audience", self.audience)):
            if not value.strip():
                raise InvalidConfig(f"--{name} must not be empty; without it the server would accept tokens for other servers.")
        jwks, key = (self.keys, None) if read_host(self.keys) is not None else (None, _read_key(Path(self.keys)))
        return _ExpiringTokenVerifier(
            public_key=key, jwks_uri=jwks, issuer=self.issuer, audience=self.audience, algorithm=self.algorithm
        )


class _ExpiringTokenVerifier(JWTVerifier):
    """Verifier that rejects tokens without ``exp`` or without a subject."""

    async def verify_token(self, token: str) -> AccessToken | None:
        """See fastmcp's ``TokenVerifier``."""
        access_token = await super().verify_token(token)
        if access_token is None or access_token.expires_at is None:
            return None
        return access_token if any(access_token.claims.get(name) for name in ("sub", "client_id", "azp")) else None


def read_host(url: str) -> str | None:
    """Return the host of an address of HTTP; None if it is none."""
    return parse_host(url) if url.lower().startswith(("http://", "https://")) else None


def _read_key(path: Path) -> str:
    try:
        with path.open("rb") as file:
            text = file.read(_KEY_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        reason = getattr(exc, "strerror", None) or "it must be UTF-8 text"
        raise InvalidConfig(f"--jwt-keys {path} cannot be read: {reason}.") from exc
    if "-----BEGIN " not in text or "PRIVATE KEY" in text:
        raise InvalidConfig(f"--jwt-keys {path} must hold a public key in PEM; or use the address of a JWKS.")
    return text
