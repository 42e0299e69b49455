"""Authentication over HTTP: by tokens of the operator's file, JWTs of an authorization server, or an OAuth provider.

A line of the file has a client name, scopes separated by commas, and the SHA-256 of a token in hexadecimal. Tokens are 256
random bits, too many to guess, so a plain hash is enough.

The operator's OAuth provider is an ``AuthProvider`` of fastmcp from a Python module of the operator. A user is an issuer and a
subject (``sub``), with any program. The ``client_id`` does not identify users: a proxy provider has the same for all users.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import logging
import os
import re
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from fastmcp.server.auth import AccessToken, AuthProvider, MultiAuth, RemoteAuthProvider, TokenVerifier
from fastmcp.server.auth.providers.jwt import JWTVerifier
from pydantic import AnyHttpUrl

from kernelexec.errors import InvalidConfig
from kernelexec.mcp.callers import EXECUTE, READ, SCOPES
from kernelexec.mcp.server_options import read_host

logger = logging.getLogger("kernelexec")
#: Algorithms with a private key that only the authorization server has.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
_KEY_BYTES = 64 * 1024
_ERROR_CHARS = 300
_MODULE = "kernelexec_operators_auth"
#: Client id of all users of a provider; the subject identifies the user.
_USER = "user"
_NAME = re.compile(r"[\w.@-]{1,64}")
_LINE = re.compile(rf"(?P<name>{_NAME.pattern})\s+(?P<scopes>\S+)\s+(?P<hash>[0-9a-f]{{64}})")
_FILE_BYTES = 1024 * 1024
_OTHERS = 0o077


def make_auth_provider(
    tokens: Path | None,
    jwt: JwtOptions | None,
    operator_provider: OperatorProvider | None = None,
    public_url: str | None = None,
) -> AuthProvider | None:
    """Return the provider for the authentication of callers; None for a server without authentication.

    With ``public_url``, the address of this server, clients learn to get tokens from the issuer of ``jwt`` (RFC 9728).

    Raises:
        InvalidConfig: see ``TokenFile``, ``JwtOptions`` and ``OperatorProvider``; or both ``jwt`` and ``operator_provider`` are
            set; or the issuer has no HTTP address to publish.
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
    """Options for JWTs (RFC 7519) with our scopes in the claim ``scope`` or ``scp``.

    Args:
        keys: address of the signer's JWKS, the source of later keys too, or a file with a public key in PEM.
        issuer: the required ``iss``.
        audience: the required value of ``aud``, or an item of the list there; tokens for other servers are rejected.
        algorithm: algorithm of the signature.
    """

    keys: str
    issuer: str
    audience: str
    algorithm: str = "RS256"

    def make_verifier(self) -> TokenVerifier:
        """Return the verifier of tokens with these options.

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
    """Verifier of JWTs that must have ``exp``, and a subject in ``sub``, ``client_id`` or ``azp``."""

    async def verify_token(self, token: str) -> AccessToken | None:
        """See fastmcp's ``TokenVerifier``."""
        # fastmcp's verifier accepts a JWT without `exp`: such a token would be valid forever.
        access_token = await super().verify_token(token)
        if access_token is None or access_token.expires_at is None:
            return None
        return access_token if any(access_token.claims.get(name) for name in ("sub", "client_id", "azp")) else None


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


@dataclass(frozen=True, slots=True)
class OperatorProvider:
    """Provider of fastmcp in a module of the operator.

    Args:
        reference: MODULE:NAME or FILE.py:NAME of an ``AuthProvider`` of fastmcp, or of a function without arguments for one.
        scopes: limit on our scopes for users, ``execute`` including ``read``; tokens without any of these scopes get all of
            them. None means exactly the token's scopes.
    """

    reference: str
    scopes: tuple[str, ...] | None = None

    def load(self, own_verifier: TokenVerifier | None = None) -> AuthProvider:
        """Load the provider; ``own_verifier`` first accepts tokens of the operator's file.

        Raises:
            InvalidConfig: the provider cannot be loaded, or a scope is unknown.
        """
        _check_scopes("--auth-scopes", self.scopes or ())
        source, _, name = self.reference.rpartition(":")
        if not source or not name:
            raise InvalidConfig(f"--auth {self.reference!r:.200} must be MODULE:NAME or FILE.py:NAME of a provider.")
        with _explain_failure(f"--auth {source} cannot be imported"):
            module = _load_file(source) if source.endswith(".py") else importlib.import_module(source)
        with _explain_failure(f"--auth {self.reference} failed"):
            provider = getattr(module, name)
            # The type is checked first: a provider may be callable itself.
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
    """Provider for our users and scopes by the tokens of the operator's provider."""

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
        # A provider may return an expired token, for instance out of a cache.
        if access_token is None or (access_token.expires_at is not None and access_token.expires_at < time.time()):
            return None
        claims = access_token.claims or {}
        subject = access_token.subject or claims.get("sub")
        if not isinstance(subject, str) or not subject.strip():
            logger.warning("kernelexec.token_without_subject", extra={"provider": type(self._provider).__name__})
            # None would be a 401 and send the client to the login again; `callers` answers this token with the reason.
            return AccessToken(token=token, client_id="", scopes=[], expires_at=access_token.expires_at)
        # Scopes that are not ours stay, since the provider may require some of its own.
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
    """Return the namespace of a subject, besides the issuer: a provider may combine sources without an issuer."""
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
    except (Exception, SystemExit) as exc:  # SystemExit: a script that ends with sys.exit
        reason = str(exc).strip().rstrip(".")
        raise InvalidConfig(f"{failure}: {type(exc).__name__}: {reason:.{_ERROR_CHARS}}.") from exc


def _load_file(source: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(_MODULE, Path(source).expanduser().absolute())
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[_MODULE] = importlib.util.module_from_spec(spec)  # the module's classes look it up there
    spec.loader.exec_module(module)
    return module


class TokenFile(TokenVerifier):
    """Verifier of the tokens in a file and of another verifier's tokens. A changed file is read again at the next request.

    Args:
        path: the file, accessible to this user only.
        other: verifies tokens missing in the file.

    Raises:
        InvalidConfig: the file is unreadable, accessible to other users, or has an invalid line.
    """

    def __init__(self, path: Path, other: TokenVerifier | None = None) -> None:
        super().__init__()
        self._path = path
        self._other = other
        self._version: tuple[int, ...] = ()
        self._entries: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._read()

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return the client of a token; None for an unknown token. See fastmcp's ``TokenVerifier``."""
        try:
            self._read()
        except InvalidConfig:
            # No token of the file is valid until the file can be read again: the operator may have wanted to revoke one.
            logger.exception("kernelexec.tokens_unreadable", extra={"tokens": str(self._path)})
            self._entries, self._version = {}, ()
        # Hashes are compared, not tokens, so the time of the look-up tells nothing about a token.
        entry = self._entries.get(hash_token(token))
        if entry is not None:
            return AccessToken(token=token, client_id=entry[0], scopes=list(entry[1]))
        return None if self._other is None else await self._other.verify_token(token)

    def _read(self) -> None:
        """Read a changed file; removed tokens become invalid."""
        try:
            with self._path.open("rb") as file:
                # Of the open file, which the path may no longer name. Inode and ctime show a replacement with the old mtime.
                status = os.fstat(file.fileno())
                version = (status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)
                if version == self._version:
                    return
                if status.st_mode & _OTHERS:
                    raise InvalidConfig(f"tokens: {self._path} must be accessible to this user only: chmod 600.")
                text = file.read(_FILE_BYTES + 1)
        except OSError as exc:
            raise InvalidConfig(f"tokens: {self._path} cannot be read: {exc.strerror}.") from exc
        self._entries = _parse(self._path, text)
        self._version = version


def hash_token(token: str) -> str:
    """Return the hash of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def add_token(path: Path, name: str, scopes: tuple[str, ...]) -> str:
    """Create a token for a client, add its hash to the file, created if missing, and return the token.

    Raises:
        InvalidConfig: the name or a scope is invalid; or see ``TokenFile``.
        OSError: the file cannot be written.
    """
    if not _NAME.fullmatch(name):
        raise InvalidConfig(f"{name!r:.100} must be a client name of 1 to 64 letters, digits, dots, dashes, underscores or @.")
    line = f"{name} {','.join(scopes)} "
    token = secrets.token_urlsafe(32)
    _parse(path, f"{line}{hash_token(token)}\n".encode())  # checks the new line, before anything is written
    is_whole = True
    if path.exists():
        TokenFile(path)
        is_whole = path.read_bytes()[-1:] in (b"", b"\n")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        # a line of its own, also behind the last one of an editor that ends files without a newline
        file.write(f"{'' if is_whole else chr(10)}{line}{hash_token(token)}\n")
    return token


def _parse(path: Path, text: bytes) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return clients and scopes by the hashes of their tokens; errors have the line's number but not its text."""
    if len(text) > _FILE_BYTES:
        raise InvalidConfig(f"tokens: {path} must have at most {_FILE_BYTES} bytes.")
    entries: dict[str, tuple[str, tuple[str, ...]]] = {}
    for number, line in enumerate(text.decode("utf-8", "replace").splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        # The line may hold a token instead of its hash, so its text is in no error.
        if match is None:
            raise InvalidConfig(f"tokens: {path}, line {number} must have a client name, scopes and a hash.")
        scopes = tuple(match["scopes"].split(","))
        _check_scopes(f"tokens: {path}, line {number}", scopes)
        entries[match["hash"]] = match["name"], scopes
    return entries


def _check_scopes(source: str, scopes: Sequence[str]) -> None:
    for scope in scopes:
        if scope not in SCOPES:
            raise InvalidConfig(f"{source}: {scope!r:.50} must be one of {', '.join(SCOPES)}.")
