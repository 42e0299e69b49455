"""Scopes of authenticated clients: read, run code, or see the server's metrics."""

from __future__ import annotations

#: ``read``: tools that change nothing; ``execute``: also tools that run code or change files; ``admin``: the server's
#: metrics, but no sessions.
READ, EXECUTE, ADMIN = "read", "execute", "admin"
SCOPES = (READ, EXECUTE, ADMIN)


def is_allowed(scopes: frozenset[str] | None, *, read_only: bool) -> bool:
    """Return whether these scopes allow a call that only reads, or any call; None allows all."""
    return scopes is None or EXECUTE in scopes or (read_only and READ in scopes)
