"""The replay of a result's outputs into a collector."""

from __future__ import annotations

from kernelexec.outputs.collector import Collector
from kernelexec.results import DisplayData, Error, ExecuteResult, ExecutionResult, Stream


def feed_result(collector: Collector, result: ExecutionResult) -> None:
    """Feed the outputs of a result to a collector as if their messages arrived now."""
    for output in result.outputs:
        match output:
            case Stream():
                collector.feed("stream", {"name": output.name, "text": output.text})
            case ExecuteResult() | DisplayData():
                display = {"data": dict(output.data), "metadata": dict(output.metadata)}
                display |= {"transient": {} if output.display_id is None else {"display_id": output.display_id}}
                count = getattr(output, "execution_count", None)
                kind = "execute_result" if isinstance(output, ExecuteResult) else "display_data"
                collector.feed(kind, {**display, "execution_count": count})
            case Error():
                content = {"ename": output.ename, "evalue": output.evalue, "traceback": list(output.traceback)}
                collector.feed("error", content)
