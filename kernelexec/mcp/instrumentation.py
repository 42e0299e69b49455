"""Instrumentation of a server: log lines, and OpenTelemetry spans below those of its clients."""

from __future__ import annotations

import importlib.util

from kernelexec.adapters.tracing import Tracing
from kernelexec.events import Hook
from kernelexec.mcp.current_client import get_current_client
from kernelexec.mcp.logs import log_event


def make_observers() -> list[Hook]:
    """Return the hooks of every server."""
    return (
        [log_event]
        if importlib.util.find_spec("opentelemetry") is None
        else [log_event, Tracing(attributes=_get_span_attributes)]
    )


def _get_span_attributes() -> dict[str, str]:
    return {f"kernelexec.{name}": value for name, value in get_current_client().items()}
