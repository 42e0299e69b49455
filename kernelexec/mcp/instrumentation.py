"""What a server tells of its cells elsewhere: lines of its log, and spans of OpenTelemetry under its clients'."""

from __future__ import annotations

import importlib.util

from kernelexec.adapters.tracing import Tracing
from kernelexec.events import Hook
from kernelexec.mcp.current_client import client
from kernelexec.mcp.logs import log_event


def observers() -> list[Hook]:
    """The hooks that every server has."""
    return [log_event] if importlib.util.find_spec("opentelemetry") is None else [log_event, Tracing(attributes=_client)]


def _client() -> dict[str, str]:
    return {f"kernelexec.{name}": said for name, said in client().items()}
