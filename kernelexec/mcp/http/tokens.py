"""Token file: hashes of bearer tokens, with their clients and scopes.

A line has a client name, scopes separated by commas, and the SHA-256 of a token in hexadecimal. Tokens are 256 random bits, too
many to guess, so a plain hash is enough.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
from pathlib import Path

from fastmcp.server.auth import AccessToken, TokenVerifier

from kernelexec.errors import InvalidConfig
from kernelexec.mcp.callers import SCOPES

logger = logging.getLogger("kernelexec")

_NAME = re.compile(r"[\w.@-]{1,64}")
_LINE = re.compile(rf"(?P<name>{_NAME.pattern})\s+(?P<scopes>\S+)\s+(?P<hash>[0-9a-f]{{64}})")
_FILE_BYTES = 1024 * 1024
_OTHERS = 0o077


class TokenFile(TokenVerifier):
    """Verifier of the tokens in a file, which is read again when it changes, and of the tokens of another verifier.

    Args:
        path: the file, accessible to this user only.
        other: verifies tokens that are not in the file.

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
            logger.exception("kernelexec.tokens_unreadable", extra={"tokens": str(self._path)})
            self._entries, self._version = {}, ()
        entry = self._entries.get(hash_token(token))
        if entry is not None:
            return AccessToken(token=token, client_id=entry[0], scopes=list(entry[1]))
        return None if self._other is None else await self._other.verify_token(token)

    def _read(self) -> None:
        """Read the file if it has changed; removed tokens become invalid."""
        try:
            with self._path.open("rb") as file:
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
    _parse(path, f"{line}{hash_token(token)}\n".encode())
    if path.exists():
        TokenFile(path)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(f"{line}{hash_token(token)}\n")
    return token


def _parse(path: Path, text: bytes) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return clients and scopes by the hashes of their tokens; an error has the number of the line but not its text."""
    if len(text) > _FILE_BYTES:
        raise InvalidConfig(f"tokens: {path} must have at most {_FILE_BYTES} bytes.")
    entries: dict[str, tuple[str, tuple[str, ...]]] = {}
    for number, line in enumerate(text.decode("utf-8", "replace").splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None:
            raise InvalidConfig(f"tokens: {path}, line {number} must have a client name, scopes and a hash.")
        scopes = tuple(match["scopes"].split(","))
        for scope in scopes:
            if scope not in SCOPES:
                raise InvalidConfig(f"tokens: {path}, line {number}: {scope!r:.50} must be one of {', '.join(SCOPES)}.")
        entries[match["hash"]] = match["name"], scopes
    return entries
