"""What is told of a server's cells elsewhere: spans of OpenTelemetry, under those of the clients that sent them."""

from __future__ import annotations

import importlib.util

from kernelexec.adapters.tracing import Tracing
from kernelexec.hooks import Hook


def observers() -> list[Hook]:
    """The hooks that a server has besides those that it is given."""
    return [] if importlib.util.find_spec("opentelemetry") is None else [Tracing(attributes=_agent)]


def _agent() -> dict[str, str]:
    from kernelexec.mcp.callers import CALLER  # noqa: PLC0415 - a second of imports, which whoever sends a cell has made

    client = CALLER.get().client
    return {"kernelexec.client": client} if client else {}
