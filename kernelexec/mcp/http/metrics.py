"""What a server does in figures, as Prometheus reads them: cells, kernels, sessions, calls, and the process itself."""

from __future__ import annotations

import time
from typing import Any

from fastmcp.server.auth import AuthProvider
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from kernelexec import events
from kernelexec.cells import ShellCell
from kernelexec.mcp.scopes import ADMIN

PATH = "/metrics"
#: Seconds; a cell may take a millisecond or an hour.
_BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3600.0)
_UNKNOWN_TOOL = "unknown"


class Metrics(Middleware):
    """Counts what happens: a hook of all sessions, and of all calls a middleware. Nothing of it is of one agent alone."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        self._running: set[str] = set()
        self._open: set[str] = set()
        Gauge("kernelexec_sessions", "Open sessions.", registry=registry).set_function(lambda: len(self._open))
        Gauge("kernelexec_cells_running", "Cells that run.", registry=registry).set_function(lambda: len(self._running))
        self._cells = Counter("kernelexec_cells", "Cells that ended.", ("kind", "status", "state"), registry=registry)
        self._cell_seconds = Histogram(
            "kernelexec_cell_seconds", "How long they ran.", ("kind",), buckets=_BUCKETS, registry=registry
        )
        self._refused = Counter("kernelexec_cells_refused", "Cells that were not taken.", ("kind", "error"), registry=registry)
        self._aborted = Counter("kernelexec_cells_aborted", "Cells that were taken and never ran.", registry=registry)
        self._output = Counter("kernelexec_output_bytes", "What cells put out.", registry=registry)
        self._kernels = Counter("kernelexec_kernels", "Kernels that came or went.", ("change", "cause"), registry=registry)
        self._memory = Counter("kernelexec_memory_high", "Kernels that used 80 % of their memory.", registry=registry)
        self._calls = Counter("kernelexec_calls", "Tool calls.", ("tool", "outcome"), registry=registry)
        self._call_seconds = Histogram(
            "kernelexec_call_seconds", "How long they took, cells included.", ("tool",), buckets=_BUCKETS, registry=registry
        )

    def observe(self, event: events.Event) -> None:
        """Take notice of an event: a hook."""
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
            case _:
                pass

    async def on_call_tool(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:  # noqa: ANN401 - fastmcp's
        """See fastmcp's ``Middleware``."""
        began, outcome, tool = time.monotonic(), "cancelled", context.message.name
        if context.fastmcp_context is None or await context.fastmcp_context.fastmcp.get_tool(tool) is None:
            tool = _UNKNOWN_TOOL  # a client may call anything: there is no figure for each
        try:
            answer = await call_next(context)
            outcome = "error" if getattr(answer, "is_error", False) else "ok"
        except Exception:
            outcome = "error"
            raise
        finally:
            self._calls.labels(tool, outcome).inc()
            self._call_seconds.labels(tool).observe(time.monotonic() - began)
        return answer

    async def answer(self, request: Request, auth: AuthProvider | None) -> Response:
        """All figures, for whom the operator lets see them: 401 and 403 where tokens are asked for and none is good."""
        if auth is not None:
            scheme, _, token = request.headers.get("authorization", "").partition(" ")
            known = await auth.verify_token(token.strip()) if scheme.lower() == "bearer" else None
            if known is None:
                return PlainTextResponse("A bearer token is needed.\n", 401, {"WWW-Authenticate": "Bearer"})
            if ADMIN not in known.scopes:
                return PlainTextResponse(f"A token with the scope {ADMIN} is needed.\n", 403)
        return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)
