"""A span for each cell, under that of its sender: by the facades, and over MCP under the client's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastmcp import Client
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from kernelexec import AsyncExecutor, Executor
from kernelexec.adapters.tracing import NAME, Tracing
from kernelexec.config import Config
from kernelexec.mcp.callers import CALLER
from kernelexec.mcp.logs import make_observers
from kernelexec.mcp.server import make_server
from kernelexec.mcp.sessions import SessionService
from tests.support.pace import until


class Traces:
    """Spans as they are exported, and what makes more."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("tests")

    def cells(self) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == NAME]

    def named(self, name: str) -> ReadableSpan:
        (actual,) = [span for span in self._exporter.get_finished_spans() if span.name == name]
        return actual


@pytest.fixture
def traces() -> Iterator[Traces]:
    traces = Traces()
    yield traces
    traces.provider.shutdown()


def test_a_cell_is_a_span_under_that_of_its_caller(traces: Traces, tmp_path: Path) -> None:
    tracing = Tracing(traces.provider, attributes=lambda: {"of": "tests"})
    with Executor("local", workspace=tmp_path, hooks=[tracing], config={"checkpoints": "named"}) as executor:
        session = executor.session("a")
        with traces.tracer.start_as_current_span("caller"):
            session.execute("password = 'hunter2'; print(password)")
        result = session.execute("1 / 0")
        session.execute_command("exit 7")
        session.execute("import os; os._exit(3)")
        session.execute("while True: pass", timeout=0.3)
    ended = time.time_ns()
    first, failed, command, died, late = traces.cells()
    caller = traces.named("caller")
    assert first.parent is not None
    assert (first.parent.span_id, first.context.trace_id) == (caller.context.span_id, caller.context.trace_id)
    answer = dict(first.attributes or {})
    assert (answer["kernelexec.session"], answer["kernelexec.kind"], answer["kernelexec.language"]) == ("a", "code", "python")
    assert (answer["kernelexec.status"], answer["kernelexec.state"], answer["kernelexec.output_bytes"]) == ("ok", "kept", 8)
    assert answer["of"] == "tests"
    assert first.status.is_unset
    assert "hunter2" not in first.to_json()
    assert failed.parent is None
    assert (failed.attributes or {})["kernelexec.execution_id"] == result.execution_id
    assert (failed.status.is_ok, failed.status.description) == (False, "ZeroDivisionError")
    assert ((command.attributes or {})["kernelexec.kind"], (command.attributes or {})["kernelexec.exit_code"]) == ("command", 7)
    assert ((died.attributes or {})["kernelexec.cause"], [event.name for event in died.events]) == ("exited", ["kernel died"])
    assert (late.attributes or {})["kernelexec.interrupted"] == "timeout"
    assert late.end_time is not None
    assert late.start_time is not None
    assert late.start_time + 0.3e9 < late.end_time < ended


def test_over_mcp_a_cell_is_under_the_clients_span_and_says_whose_it_is(
    traces: Traces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: traces.provider)  # it can be set once in a process

    async def work() -> None:
        executor = AsyncExecutor(config=Config(isolation="local", workspace=tmp_path), hooks=make_observers())
        async with executor, Client(make_server(SessionService(executor, interval=5.0))) as client:
            with traces.tracer.start_as_current_span("agent's turn"):
                await client.call_tool("execute_code", {"code": "1"})
            with traces.tracer.start_as_current_span("detached"):
                code = "import os, time\nopen('begun', 'w').close()\nwhile not os.path.exists('go'): time.sleep(0.01)"
                begun = await client.call_tool("execute_code", {"code": code, "wait": 0})
            await asyncio.to_thread(until, lambda: list(tmp_path.glob("*/begun")))
            for marker in tmp_path.glob("*/begun"):  # noqa: ASYNC240 - nothing else runs
                marker.with_name("go").touch()
            await client.call_tool("wait_execution", {"execution_id": begun.meta["kernelexec/result"]["execution_id"]})

    asyncio.run(work())
    for cell, name in zip(traces.cells(), ("agent's turn", "detached"), strict=True):
        client = traces.named(name)
        assert cell.context.trace_id == client.context.trace_id
        assert cell.parent is not None
        assert cell.start_time is not None
        assert client.start_time is not None
        assert cell.start_time > client.start_time
    assert traces.cells()[1].end_time > traces.named("detached").end_time  # type: ignore[operator] # the cell outlives its call
    assert CALLER.get().is_only_client
