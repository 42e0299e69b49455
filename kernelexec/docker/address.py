"""The address of the engine."""

from __future__ import annotations

import os


def host() -> str:
    """Return the engine's address from ``DOCKER_HOST``, or its default."""
    return os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"


def socket_at(address: str) -> str | None:
    """Return the path of the unix socket of an address; None for other kinds of addresses."""
    return "/" + address.removeprefix("unix://").lstrip("/") if address.startswith("unix://") else None
