"""Outputs of a result, given to a collector as if their messages came now."""

from __future__ import annotations

from kernelexec.outputs.collector import Collector
from kernelexec.results import DisplayData, Error, ExecuteResult, ExecutionResult, Stream


def feed(collector: Collector, result: ExecutionResult) -> None:
    """Have a collector, and who follows it, take the outputs of a result as if they came now."""
    for output in result.outputs:
        match output:
            case Stream():
                collector.feed("stream", {"name": output.name, "text": output.text})
            case ExecuteResult() | DisplayData():
                shown = {"data": dict(output.data), "metadata": dict(output.metadata)}
                shown |= {"transient": {} if output.display_id is None else {"display_id": output.display_id}}
                count = getattr(output, "execution_count", None)
                kind = "execute_result" if isinstance(output, ExecuteResult) else "display_data"
                collector.feed(kind, {**shown, "execution_count": count})
            case Error():
                content = {"ename": output.ename, "evalue": output.evalue, "traceback": list(output.traceback)}
                collector.feed("error", content)
