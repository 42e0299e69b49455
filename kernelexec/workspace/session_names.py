"""Names of sessions with their owners: ``alice.0f3k1q8mr2tc5v7b-default`` is the session ``default`` of ``alice``.

The MCP server makes them, since each of its agents has its own sessions.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable

#: The characters of an owner that a person reads, and those of a digest (80 bits).
_LABEL_CHARS, _DIGEST_CHARS = 8, 16
#: The most characters of the name behind them.
OWNED_NAME_CHARS = 38
_OWNED = re.compile(rf"([A-Za-z0-9-]{{1,{_LABEL_CHARS}}})\.[0-9a-v]{{{_DIGEST_CHARS}}}-(?=.)")
_NO_LABEL = re.compile(r"[^A-Za-z0-9]+")


def make_owner_prefix(title: str, digest: bytes) -> str:
    """Return what stands before the names of an owner's sessions; the digest tells owners of one title apart."""
    label = _NO_LABEL.sub("-", title).strip("-")[:_LABEL_CHARS].strip("-")
    return f"{label or 'client'}.{base64.b32hexencode(digest).decode().lower()[:_DIGEST_CHARS]}-"


def has_owner(session: str) -> bool:
    """Return whether a name has an owner."""
    return _OWNED.match(session) is not None


def read_owner(session: str) -> str:
    """Return a session's name for people: ``alice/default``; a name without an owner as it is."""
    return _OWNED.sub(r"\1/", session, count=1) if has_owner(session) else session


def find_names(name: str, known: Iterable[str]) -> list[str]:
    """Return the sessions of a name: in full, as ``read_owner`` returns it, or without its owner."""
    names = list(known)
    if name in names:
        return [name]
    return [each for each in names if has_owner(each) and name in (read_owner(each), read_owner(each).partition("/")[2])]
