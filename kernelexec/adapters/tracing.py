"""OpenTelemetry spans for cells, as children of the caller's span: ``Executor(hooks=[Tracing()])``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kernelexec.cells import ShellCell
from kernelexec.events import CellExecuted, CellStarted, Event, KernelChanged, MemoryHigh

NAME = "kernelexec.cell"
_OPEN_MAX = 10_000


class Tracing:
    """A hook for spans ``kernelexec.cell`` of kind ``INTERNAL``, without code and output.

    The attributes begin with ``kernelexec.``: ``session``, ``execution_id``, ``kernel_epoch``, ``kind`` (code, command),
    ``language``, and at the end ``status``, ``state``, ``exit_code``, ``interrupted``, ``cause``, ``output_bytes``,
    ``isolation``, and seconds: ``queue_seconds``, ``start_seconds``, ``cpu_seconds``. The span of a failed cell has the status
    ERROR, with the name of the exception. Changes of the kernel during the cell are events of the span.

    Args:
        provider: the tracer provider; None for OpenTelemetry's global provider, which records nothing until configured.
        attributes: a function for further attributes, called at the beginning of a span, in the context of the caller.
    """

    def __init__(self, provider: Any = None, attributes: Callable[[], Mapping[str, str]] = dict) -> None:  # noqa: ANN401 - TracerProvider
        from opentelemetry import trace  # noqa: PLC0415 - optional dependency

        self._trace = trace
        self._tracer = trace.get_tracer("kernelexec", tracer_provider=provider)
        self._attributes = attributes
        self._spans: dict[str, tuple[str, Any]] = {}

    def __call__(self, event: Event, /) -> None:
        """Record an event."""
        match event:
            case CellStarted():
                self._begin(event)
            case CellExecuted():
                self._end(event)
            case KernelChanged():
                self._add_event(event.session, f"kernel {event.change}", {"kernelexec.cause": event.cause or ""})
            case MemoryHigh():
                self._add_event(event.session, "memory high", {"kernelexec.used_bytes": event.used_bytes})
            case _:
                pass

    def _begin(self, event: CellStarted) -> None:
        about: dict[str, str | int] = {
            "kernelexec.session": event.session,
            "kernelexec.execution_id": event.execution_id,
            "kernelexec.kernel_epoch": event.kernel_epoch,
            "kernelexec.kind": "command" if isinstance(event.cell, ShellCell) else "code",
            "kernelexec.language": "bash" if isinstance(event.cell, ShellCell) else event.cell.language,
        }
        span = self._tracer.start_span(NAME, attributes={**self._attributes(), **about})
        self._spans[event.execution_id] = event.session, span
        # Spans whose CellExecuted never comes would fill the memory: the oldest end.
        while len(self._spans) > _OPEN_MAX:
            self._spans.pop(next(iter(self._spans)))[1].end()

    def _end(self, event: CellExecuted) -> None:
        result = event.result
        _, span = self._spans.pop(result.execution_id, (None, None))
        if span is None:
            return  # another owner sent it
        attributes = {
            "status": result.status,
            "state": result.state,
            "exit_code": result.exit_code,
            "interrupted": result.interrupted,
            "cause": result.cause,
            "output_bytes": result.total_bytes,
            "isolation": result.isolation,
            "queue_seconds": result.timing.queue,
            "start_seconds": result.timing.start,
            "cpu_seconds": result.timing.cpu_seconds,
        }
        span.set_attributes({f"kernelexec.{name}": value for name, value in attributes.items() if value is not None})
        if result.status != "ok":
            reason = result.error.ename if result.error is not None else result.interrupted or result.status
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, reason))
        span.end()

    def _add_event(self, session: str, name: str, attributes: Mapping[str, str | int]) -> None:
        for of_session, span in self._spans.values():
            if of_session == session:
                span.add_event(name, attributes)
