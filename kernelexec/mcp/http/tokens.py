"""Bearer tokens in a file, of which it holds the hashes: who has which, and what they may do.

A line for each: a name, the scopes with commas between them, and the SHA-256 of the token in hexadecimal. Tokens are 256
random bits, which no search finds, so a plain hash keeps them. The file is read again when it has changed.
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
from kernelexec.mcp.scopes import SCOPES

logger = logging.getLogger("kernelexec")

_NAME = re.compile(r"[\w.@-]{1,64}")
_HASH = re.compile(r"[0-9a-f]{64}", re.ASCII)
_FILE_BYTES = 1024 * 1024
_OTHERS = 0o077
_FIELDS = 3


class Tokens(TokenVerifier):
    """Knows who has a token.

    Args:
        path: the file; this user's alone.

    Raises:
        InvalidConfig: it cannot be read, others could read or write it, or a line is none.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._seen: tuple[int, ...] = ()
        self._known: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._read()

    async def verify_token(self, token: str) -> AccessToken | None:
        """Who has a token; None where nobody has, or the file is no good any more. See fastmcp's ``TokenVerifier``."""
        try:
            self._read()
        except InvalidConfig:
            logger.exception("kernelexec.tokens_unread", extra={"tokens": str(self._path)})
            self._known, self._seen = {}, ()
        found = self._known.get(hashed(token))
        return None if found is None else AccessToken(token=token, client_id=found[0], scopes=list(found[1]))

    def _read(self) -> None:
        """Read the file, if it is another one than the last time: a token that was taken out is none from then on."""
        try:
            with self._path.open("rb") as file:
                about = os.fstat(file.fileno())
                seen = (about.st_ino, about.st_mtime_ns, about.st_ctime_ns, about.st_size)
                if seen == self._seen:
                    return
                if about.st_mode & _OTHERS:
                    raise InvalidConfig(f"tokens: {self._path} is not this user's alone: chmod 600.")
                text = file.read(_FILE_BYTES + 1)
        except OSError as exc:
            raise InvalidConfig(f"tokens: {self._path} cannot be read: {exc.strerror}.") from exc
        self._known = _parsed(self._path, text)
        self._seen = seen


def hashed(token: str) -> str:
    """What the file holds of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def add_token(path: Path, name: str, scopes: tuple[str, ...]) -> str:
    """Make a new token for a name, add its hash to the file, which is made if need be, and return the token.

    Raises:
        InvalidConfig: no such name or scope; or see ``Tokens``.
        OSError: the file cannot be written.
    """
    if not _NAME.fullmatch(name):
        raise InvalidConfig(f"{name!r:.100} is no name of a client: 1 to 64 letters, digits, dots, dashes, underscores, @.")
    line = f"{name} {','.join(scopes)} "
    token = secrets.token_urlsafe(32)
    _parsed(path, f"{line}{hashed(token)}\n".encode())
    if path.exists():
        Tokens(path)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(f"{line}{hashed(token)}\n")
    return token


def _parsed(path: Path, text: bytes) -> dict[str, tuple[str, tuple[str, ...]]]:
    """The names and scopes by the hashes of their tokens.

    Raises:
        InvalidConfig: a line is none; the message has its number, and nothing of it.
    """
    if len(text) > _FILE_BYTES:
        raise InvalidConfig(f"tokens: {path} is larger than {_FILE_BYTES} bytes.")
    found: dict[str, tuple[str, tuple[str, ...]]] = {}
    for number, line in enumerate(text.decode("utf-8", "replace").splitlines(), 1):
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        scopes = tuple(fields[1].split(",")) if len(fields) == _FIELDS else ()
        if len(fields) != _FIELDS or not _NAME.fullmatch(fields[0]) or not _HASH.fullmatch(fields[2]):
            message = f"tokens: {path}, line {number}: it is no token: a name, scopes and a hash are expected."
            raise InvalidConfig(message)
        unknown = [scope for scope in scopes if scope not in SCOPES]
        if unknown:
            message = f"tokens: {path}, line {number}: {unknown[0]!r:.50} is no scope: there are {', '.join(SCOPES)}."
            raise InvalidConfig(message)
        found[fields[2]] = fields[0], scopes
    return found
