"""Metrics for Prometheus; its client library comes with the extra ``metrics``."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastmcp.server.auth import AuthProvider
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from kernelexec import events
from kernelexec.cells import ShellCell
from kernelexec.mcp.callers import ADMIN
from kernelexec.mcp.middleware import measure

#: Seconds; a cell may take a millisecond or an hour.
_BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3600.0)
_UNKNOWN_TOOL = "unknown"


class Metrics(Middleware):
    """Metrics over all sessions and calls, as a hook and a middleware. No label names an agent."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        self._running: set[str] = set()
        self._open: set[str] = set()
        Gauge("kernelexec_sessions", "Open sessions.", registry=registry).set_function(lambda: len(self._open))
        Gauge("kernelexec_cells_running", "Running cells.", registry=registry).set_function(lambda: len(self._running))
        self._cells = Counter("kernelexec_cells", "Cells that ended.", ("kind", "status", "state"), registry=registry)
        seconds = partial(Histogram, buckets=_BUCKETS, registry=registry)
        self._cell_seconds = seconds("kernelexec_cell_seconds", "Run time of cells in seconds.", ("kind",))
        self._refused = Counter("kernelexec_cells_refused", "Cells that were refused.", ("kind", "error"), registry=registry)
        self._aborted = Counter("kernelexec_cells_aborted", "Cells that were accepted and never ran.", registry=registry)
        self._output = Counter("kernelexec_output_bytes", "Output of cells in bytes.", registry=registry)
        changes = "Starts, restarts and ends of kernels."
        self._kernels = Counter("kernelexec_kernels", changes, ("change", "cause"), registry=registry)
        self._memory = Counter("kernelexec_memory_high", "Kernels that used 80 % of their memory.", registry=registry)
        self._calls = Counter("kernelexec_calls", "Tool calls.", ("tool", "outcome"), registry=registry)
        self._call_seconds = seconds("kernelexec_call_seconds", "Time of tool calls in seconds, cells included.", ("tool",))

    def observe(self, event: events.Event) -> None:
        """Count an event."""
        match event:
            case events.SessionOpened() | events.SessionAdopted():
                self._open.add(event.session)
            case events.SessionClosed():
                self._open.discard(event.session)
            case events.CellStarted():
                self._running.add(event.execution_id)
            case events.CellExecuted():
                result, kind = event.result, "command" if isinstance(event.cell, ShellCell) else "code"
                self._running.discard(result.execution_id)
                self._cells.labels(kind, result.status, result.state).inc()
                self._cell_seconds.labels(kind).observe(result.timing.run)
                self._output.inc(result.total_bytes)
            case events.CellAborted():
                self._running.discard(event.result.execution_id)
                self._aborted.inc()
            case events.CellRefused():
                self._refused.labels(event.kind, type(event.error).__name__).inc()
            case events.KernelChanged():
                self._kernels.labels(event.change, event.cause or "").inc()
            case events.MemoryHigh():
                self._memory.inc()

    async def on_call_tool(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:  # noqa: ANN401 - fastmcp's
        """See fastmcp's ``Middleware``."""
        tool = context.message.name
        if context.fastmcp_context is None or await context.fastmcp_context.fastmcp.get_tool(tool) is None:
            tool = _UNKNOWN_TOOL  # a client may send any name, so unknown tools share one label

        def count(outcome: str, seconds: float) -> None:
            self._calls.labels(tool, outcome).inc()
            self._call_seconds.labels(tool).observe(seconds)

        return await measure(call_next(context), count)

    async def respond(self, request: Request, auth: AuthProvider | None) -> Response:
        """Respond with all metrics. If tokens are required: 401 without a valid token, 403 without the scope ``admin``."""
        if auth is not None:
            scheme, _, token = request.headers.get("authorization", "").partition(" ")
            access_token = await auth.verify_token(token.strip()) if scheme.lower() == "bearer" else None
            if access_token is None:
                return PlainTextResponse("A bearer token is required.\n", 401, {"WWW-Authenticate": "Bearer"})
            if ADMIN not in access_token.scopes:
                return PlainTextResponse(f"A token with the scope {ADMIN} is required.\n", 403)
        return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)
