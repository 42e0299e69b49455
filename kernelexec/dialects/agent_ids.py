"""Names of agents in configuration files: printable, and usable in ``FILE#NAME``."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from kernelexec.config.messages import short_repr
from kernelexec.errors import InvalidConfig


def agent_id(agent: Mapping[str, Any], default: str, others: Container[str] = ()) -> str:
    """Return the ``id`` of an agent, or the default.

    Raises:
        InvalidConfig: it is no text, empty, holds ``#`` or what cannot be printed, or another one has it.
    """
    name = agent.get("id", default)
    if not isinstance(name, str) or not name.strip():
        raise InvalidConfig(f"id: {short_repr(name)} is no name: some text is expected, as in `id: analyst`.")
    if "#" in name:
        raise InvalidConfig(f"id: {short_repr(name)} holds '#', which stands between file and name in FILE#NAME: leave it out.")
    if not name.isprintable():
        raise InvalidConfig(f"id: {short_repr(name)} holds characters that cannot be printed: leave them out.")
    if name in others:
        raise InvalidConfig(f"agents: two have the id {short_repr(name)}: give each its own.")
    return name
