"""What who is authenticated may do: look, run code, or see what the whole server does."""

from __future__ import annotations

#: ``read``: what changes nothing; ``execute``: that, and all that runs code or changes files; ``admin``: the server's figures,
#: and none of the sessions.
READ, EXECUTE, ADMIN = "read", "execute", "admin"
SCOPES = (READ, EXECUTE, ADMIN)


def allows(scopes: frozenset[str] | None, *, reading: bool) -> bool:
    """Whether somebody with these scopes may call what only reads, or anything; None are all."""
    return scopes is None or EXECUTE in scopes or (reading and READ in scopes)
