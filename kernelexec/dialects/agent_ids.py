"""Names of agents in configuration files: printable, and usable in ``FILE#NAME``."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from kernelexec.config.messages import short_repr
from kernelexec.errors import InvalidConfig


def check_agent_id(agent: Mapping[str, Any], default: str, others: Container[str] = ()) -> str:
    """Check the ``id`` of an agent and return it, or the default.

    Raises:
        InvalidConfig: the id is not text, empty, contains ``#`` or unprintable characters, or is used twice.
    """
    name = agent.get("id", default)
    if not isinstance(name, str) or not name.strip():
        raise InvalidConfig(f"id: {short_repr(name)} must be a name, as in `id: analyst`.")
    if "#" in name:
        raise InvalidConfig(f"id: {short_repr(name)} must not contain '#', which separates file and name in FILE#NAME.")
    if not name.isprintable():
        raise InvalidConfig(f"id: {short_repr(name)} must contain printable characters only.")
    if name in others:
        raise InvalidConfig(f"agents: two agents have the id {short_repr(name)}: every id must be unique.")
    return name
