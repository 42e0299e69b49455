"""Where the engine is asked for."""

from __future__ import annotations

import os


def host() -> str:
    """Its address, as ``DOCKER_HOST`` says it."""
    return os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"


def socket_at(address: str) -> str | None:
    """The path of the unix socket at which an engine is asked; None where it is asked otherwise."""
    return "/" + address.removeprefix("unix://").lstrip("/") if address.startswith("unix://") else None
