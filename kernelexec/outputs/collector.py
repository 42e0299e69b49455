"""The collector that folds the messages of one request, or a stored result, into outputs.

The semantics are those of the Jupyter messaging specification as nbclient applies them: streams of one name are joined, an
update changes every display of its id and adds none, ``clear_output(wait)`` waits for the next output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from kernelexec.config import OutputLimits
from kernelexec.outputs.bundles import OVERHEAD_BYTES, Bundle, read_bundle
from kernelexec.outputs.displays import Budget, DisplayEntry, Displays
from kernelexec.outputs.output_window import OutputWindow
from kernelexec.results import DisplayData, Error, ExecuteResult, ExecutionResult, Output, Stream
from kernelexec.text import TextBudget, TextRun, add_piece, clean, cut_middle, utf8_size

#: The size of the window of newest output for readers of a running cell, in multiples of ``stream_bytes``.
_WINDOW_BUDGETS = 4
_TRACEBACK_BYTES, _EVALUE_BYTES, _ENAME_BYTES = 256 * 1024, 64 * 1024, 1024


class Spill(Protocol):
    """A store for stream text that does not fit into the result."""

    def write(self, text: str) -> None:
        """Store the next piece."""


class Collector:
    """Collector of the outputs of one request. ``displays`` are the kernel's, so that updates reach earlier cells."""

    def __init__(
        self,
        limits: OutputLimits,
        *,
        displays: Displays | None = None,
        spill: Spill | None = None,
        on_output: Callable[[Output], None] | None = None,
        on_update: Callable[[str, Mapping[str, Any], Mapping[str, Any]], None] | None = None,
    ) -> None:
        self.total_bytes = 0
        self.dropped_bytes = 0
        self.dropped_displays = 0
        self._unread = 0
        self.stream_bytes = 0
        self.spilled = False
        self._limits = limits
        self._displays = Displays() if displays is None else displays
        self._spill = spill
        self._on_output = on_output
        self._on_update = on_update
        self._entries: list[TextRun | DisplayEntry | Error] = []
        self._texts: dict[str, TextBudget] = {}
        self._display_budget = Budget(limits.display_bytes)
        self._error_budget = Budget(limits.stream_bytes)
        self._raw: list[str] = []
        self._clear_pending = False
        self._window = OutputWindow(limits.stream_bytes * _WINDOW_BUDGETS)

    @property
    def has_cuts(self) -> bool:
        """Whether some output of the cell is not kept."""
        return bool(self.dropped_bytes or self.dropped_displays or any(b.cut_bytes for b in self._texts.values()))

    @property
    def lost_outputs(self) -> int:
        """The number of outputs of which nothing is kept."""
        return self.dropped_displays + self._unread

    @property
    def memory_bytes(self) -> int:
        """The approximate memory of the outputs."""
        kept = sum(min(budget.seen_bytes, budget.limit) for budget in self._texts.values())
        return 2 * kept + 2 * self._display_budget.spent + self._error_budget.spent + self._window.held_bytes

    @property
    def raw_text(self) -> str:
        """All stream text in order, until it is spilled."""
        return "".join(self._raw)

    def feed(self, msg_type: str, content: Mapping[str, Any]) -> None:
        """Handle one iopub message of the request; messages without output are ignored."""
        match msg_type:
            case "stream":
                self._stream("stderr" if content.get("name") == "stderr" else "stdout", _text(content.get("text", "")))
            case "display_data" | "execute_result":
                self._display(msg_type, content)
            case "update_display_data":
                self._update(content)
            case "error":
                self._error(content)
            case "clear_output":
                self._clear(wait=bool(content.get("wait")))

    def count_missing(self, size_bytes: int, *, outputs: int = 1) -> None:
        """Count a message that was too large to read, or other bytes that never arrived."""
        self.total_bytes += size_bytes
        self.dropped_bytes += size_bytes
        self._unread += outputs

    @property
    def received_bytes(self) -> int:
        """The size of the received stream text in bytes."""
        return self.stream_bytes

    def flush(self) -> None:
        """Release text that is held back when the request ends; this collector holds none."""

    def close(self) -> None:
        """Drop the callback: it may refer to this collector, and the cycle would keep both in memory."""
        self._on_output = None

    def outputs(self) -> tuple[Output, ...]:
        """Return the outputs so far, in order; consecutive streams of one name are joined."""
        outputs: list[Output] = []
        for entry in self._entries:
            match entry:
                case DisplayEntry():
                    outputs.append(entry.output)
                case Error():
                    outputs.append(entry)
                case TextRun() if text := entry.text():
                    outputs.append(Stream(entry.name, text))
        return tuple(outputs)

    def since(self, cursor: int) -> tuple[tuple[Output, ...], int, int]:
        """Return the outputs after ``cursor``, the new cursor, and the bytes that are no longer in memory."""
        outputs, missed = self._window.since(cursor)
        return outputs, self._window.end, missed

    def _stream(self, name: str, text: str) -> None:
        if not text:
            return
        self._apply_pending_clear()
        last = self._entries[-1] if self._entries else None
        if not isinstance(last, TextRun) or last.name != name:
            self._prune()
            last = TextRun(name, self._texts.setdefault(name, TextBudget(self._limits.stream_bytes)))
            self._append(last)
        size = utf8_size(text)
        self.total_bytes += size
        self.stream_bytes += size
        last.append(text)
        self._keep_raw(text)
        self._publish(Stream(name, text), size)

    def _keep_raw(self, text: str) -> None:
        """Keep the text until it is too large for the result; then write all of it to the spill, from its first byte."""
        if self._spill is None:
            return
        if self.spilled:
            self._spill.write(text)
            return
        add_piece(self._raw, text)
        limit = self._limits.stream_bytes
        if self.stream_bytes > 2 * limit or any(budget.seen_bytes > limit for budget in self._texts.values()):
            self.spilled = True
            for piece in self._raw:
                self._spill.write(piece)
            self._raw.clear()

    def _append(self, entry: TextRun | DisplayEntry | Error) -> None:
        if self._entries and isinstance(last := self._entries[-1], TextRun):
            last.end()
        self._entries.append(entry)

    def _prune(self) -> None:
        """Remove runs of which nothing is kept, so that alternating streams stay bounded too."""
        if len(self._entries) > 1000 and len(self._entries) % 500 == 0:  # noqa: PLR2004 - rarely enough to be cheap
            self._entries = [e for e in self._entries if not isinstance(e, TextRun) or not e.is_empty]

    def _display(self, msg_type: str, content: Mapping[str, Any]) -> None:
        self._apply_pending_clear()
        bundle = read_bundle(content, self._limits.text_bytes)
        display_id = _display_id(content)
        if display_id is not None:
            self._update_displays(display_id, bundle)
        output: DisplayData | ExecuteResult
        if msg_type == "execute_result":
            count = read_execution_count(content)
            output = ExecuteResult(bundle.data, bundle.metadata, count, display_id)
        else:
            output = DisplayData(bundle.data, bundle.metadata, display_id)
        self.total_bytes += bundle.size
        self.dropped_bytes += bundle.dropped_bytes
        shown = DisplayEntry(output, self._display_budget, bundle.cost) if self._display_budget.spend(bundle.cost) else None
        if shown is None:
            self.dropped_displays += 1
        else:
            self._append(shown)
        if display_id is not None:
            self._displays.add(display_id, shown)
        self._publish(output, bundle.size)

    def _update(self, content: Mapping[str, Any]) -> None:
        display_id = _display_id(content)
        if display_id is not None and display_id in self._displays:
            bundle = read_bundle(content, self._limits.text_bytes)
            self.dropped_bytes += bundle.dropped_bytes
            self._update_displays(display_id, bundle)

    def _update_displays(self, display_id: str, bundle: Bundle) -> None:
        if display_id not in self._displays:
            return
        self.dropped_displays += self._displays.update(display_id, bundle)
        if self._on_update is not None:
            self._on_update(display_id, bundle.data, bundle.metadata)

    def _error(self, content: Mapping[str, Any]) -> None:
        self._apply_pending_clear()
        lines = content.get("traceback")
        traceback = tuple(_text(line) for line in (lines if isinstance(lines, list) else []))
        ename, evalue = _text(content.get("ename", "")), _text(content.get("evalue", ""))
        size = utf8_size(evalue) + sum(utf8_size(line) for line in traceback)
        if size > _TRACEBACK_BYTES:
            traceback = tuple(cut_middle("\n".join(traceback), _TRACEBACK_BYTES).split("\n"))
        error = Error(cut_middle(ename, _ENAME_BYTES), cut_middle(evalue, _EVALUE_BYTES), traceback)
        self.total_bytes += size
        if self._error_budget.spend(size + OVERHEAD_BYTES, always=not self._error_budget.spent):
            self._append(error)
        else:
            self.dropped_displays += 1
        self._publish(error, size)

    def _clear(self, *, wait: bool) -> None:
        self._clear_pending = wait
        if not wait:
            self._entries.clear()
            self._texts.clear()
            self._display_budget = Budget(self._limits.display_bytes)
            self._error_budget = Budget(self._limits.stream_bytes)

    def _apply_pending_clear(self) -> None:
        if self._clear_pending:
            self._clear(wait=False)

    def _publish(self, output: Output, size: int) -> None:
        self._window.add(output, size)
        if self._on_output is not None:
            self._on_output(output)


def read_execution_count(content: Mapping[str, Any]) -> int | None:
    """Return the execution count of a message; None if it is invalid."""
    count = content.get("execution_count")
    return count if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else None


def _text(value: object) -> str:
    text: str = clean(value if isinstance(value, str) else str(value))
    return text


def _display_id(content: Mapping[str, Any]) -> str | None:
    transient = content.get("transient")
    display_id = transient.get("display_id") if isinstance(transient, dict) else None
    return _text(display_id) if isinstance(display_id, str) else None


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
