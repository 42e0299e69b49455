"""What who is authenticated may do: look, or run code."""

from __future__ import annotations

#: ``read``: what changes nothing; ``execute``: that, and all that runs code or changes files.
READ, EXECUTE = "read", "execute"
SCOPES = (READ, EXECUTE)


def allows(scopes: frozenset[str] | None, *, reading: bool) -> bool:
    """Whether somebody with these scopes may call what only reads, or anything; None are all."""
    return scopes is None or EXECUTE in scopes or (reading and READ in scopes)
