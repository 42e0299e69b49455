"""The collector, which folds the messages of a request, or a stored result, into outputs.

The semantics follow the Jupyter messaging specification as applied by nbclient. Streams of the same name are joined. An update
changes every display of an id and adds none. ``clear_output(wait)`` waits for the next output.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import groupby
from typing import Any, Protocol

from kernelexec.config import OutputLimits
from kernelexec.outputs.displays import (
    OVERHEAD_BYTES,
    Budget,
    Bundle,
    DisplayBudgets,
    DisplayEntry,
    Displays,
    WholeBundles,
    WidgetStates,
    read_bundle,
    read_widget_state,
)
from kernelexec.results import DisplayData, Error, ExecuteResult, ExecutionResult, Output, Stream, strip_ansi
from kernelexec.text import RUN_BYTES, TextBudget, TextRun, add_piece, clean, cut_middle, utf8_size

#: The size of the window of newest output for readers of a running cell, in multiples of ``stream_bytes``.
_WINDOW_BUDGETS = 4
#: Messages captured by an output widget, and the limit of output widgets kept apart in a cell.
_CAPTURED = frozenset({"stream", "display_data", "execute_result", "error", "clear_output"})
_CAPTURES_MAX = 64
_WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
#: A longer display id is replaced by its hash, since ids are kept for the life of a kernel.
_ID_CHARS = 256
_TRACEBACK_BYTES, _EVALUE_BYTES, _ENAME_BYTES = 256 * 1024, 64 * 1024, 1024
#: The cost of a piece of output in memory, in addition to its text, in bytes.
_PIECE_BYTES = 256


class Spill(Protocol):
    """A store for stream text too large for the result."""

    def write(self, text: str) -> None:
        """Store the next piece."""


class Collector:
    """Collector of the outputs of a request.

    ``displays`` and ``widgets`` belong to the kernel, so that updates reach displays and widgets of earlier cells.
    """

    def __init__(
        self,
        limits: OutputLimits,
        *,
        displays: Displays | None = None,
        widgets: WidgetStates | None = None,
        spill: Spill | None = None,
        on_output: Callable[[Output], None] | None = None,
        on_update: Callable[[str, Mapping[str, Any], Mapping[str, Any]], None] | None = None,
    ) -> None:
        self.total_bytes = 0
        self.dropped_bytes = 0
        self.dropped_displays = 0
        self.unread_outputs = 0
        """The number of outputs lost completely, even for records."""
        self.stream_bytes = 0
        self.spilled = False
        self._limits = limits
        self.uses_widgets = False
        """Whether the cell changed a widget."""
        self.updates_displays = False
        """Whether the cell changed a display, also of an earlier cell."""
        self.widgets = WidgetStates() if widgets is None else widgets
        self._displays = Displays() if displays is None else displays
        self._spill = spill
        self._on_output = on_output
        self._on_update = on_update
        self._entries: list[_Entry] = []
        self._captures: dict[str, Collector] = {}
        self._capturing: list[str] = []
        """The comm ids of capturing output widgets, the innermost last."""
        self._texts: dict[str, TextBudget] = {}
        self._display_budgets = _make_budgets(limits)
        self._error_budget = Budget(limits.stream_bytes)
        self._raw: list[str] = []
        self._clear_pending = False
        self._window = OutputWindow(limits.stream_bytes * _WINDOW_BUDGETS)

    @property
    def has_cuts(self) -> bool:
        """Whether some output of the cell is missing."""
        cuts = bool(self.dropped_bytes or self.dropped_displays or any(b.cut_bytes for b in self._texts.values()))
        return cuts or any(capture.has_cuts for capture in self._captures.values())

    @property
    def is_recorded_apart(self) -> bool:
        """Whether ``recorded_outputs`` may differ from ``outputs``."""
        return self.uses_widgets or self.has_cuts or any(isinstance(e, _ColouredError) for e in self._entries)

    @property
    def memory_bytes(self) -> int:
        """The approximate memory of the outputs."""
        kept = sum(min(budget.seen_bytes, budget.limit) for budget in self._texts.values())
        displays = self._display_budgets.result.spent + self._display_budgets.record.spent
        captured = sum(capture.memory_bytes for capture in self._captures.values())
        entries = RUN_BYTES * len(self._entries)
        return 2 * kept + 2 * displays + self._error_budget.spent + self._window.held_bytes + captured + entries

    @property
    def raw_text(self) -> str:
        """All stream text in order; empty after a spill."""
        return "".join(self._raw)

    def feed(self, msg_type: str, content: Mapping[str, Any]) -> None:
        """Handle an iopub message of the request; messages without output are ignored."""
        if self._capturing and msg_type in _CAPTURED:
            self._capture(self._capturing[-1], msg_type, content)
            return
        match msg_type:
            case "comm_open" | "comm_msg":
                self.uses_widgets = True
                if (widget := read_widget_state(content)) is not None:
                    self.widgets.update(*widget)
                    self._follow_capture(*widget)
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
        """Count a message too large to read, or other missing bytes."""
        self.total_bytes += size_bytes
        self.dropped_bytes += size_bytes
        self.unread_outputs += outputs

    @property
    def received_bytes(self) -> int:
        """The size of the received stream text in bytes."""
        return self.stream_bytes

    def flush(self, *, is_last: bool = False) -> None:
        """Release held-back text at the end of the request; this collector never holds text back."""

    def close(self) -> None:
        """Drop the callback after the cell's end: a callback with a reference to this collector would keep both in memory."""
        self._on_output = None
        self._display_budgets.finish()
        for capture in self._captures.values():
            capture.close()

    def outputs(self) -> tuple[Output, ...]:
        """Return the outputs so far, in order; consecutive streams of one name are joined."""
        return self._make_outputs(self._read_display, _read_capture, lambda error: error.output)

    def recorded_outputs(self) -> tuple[Output, ...]:
        """Return the outputs so far for records, in Jupyter's form.

        Displays cut in the result are whole, and tracebacks have colours. Captured output is left to its widget.
        """
        return self._make_outputs(lambda entry: entry.recorded or entry.output, lambda _: (), lambda error: error.recorded)

    def captured_outputs(self) -> dict[str, tuple[Output, ...]]:
        """Return the outputs captured by output widgets, by comm id."""
        return {comm_id: capture.recorded_outputs() for comm_id, capture in self._captures.items()}

    def _make_outputs(
        self,
        read: Callable[[DisplayEntry], Output | None],
        read_capture: Callable[[Collector], Iterable[Output]],
        read_error: Callable[[_ColouredError], Error],
    ) -> tuple[Output, ...]:
        outputs: list[Output] = []
        for entry in self._entries:
            match entry:
                case DisplayEntry():
                    if (display := read(entry)) is not None:
                        outputs.append(display)
                case Error():
                    outputs.append(entry)
                case _ColouredError():
                    outputs.append(read_error(entry))
                case Collector():
                    outputs.extend(read_capture(entry))
                case TextRun() if text := entry.text():
                    outputs.append(Stream(entry.name, text))
        return tuple(outputs)

    def _read_display(self, entry: DisplayEntry) -> Output | None:
        """Return a display of the result; a widget gets the plain text of its present state."""
        output = entry.output
        view = output.data.get(_WIDGET_VIEW) if output is not None and self.uses_widgets else None
        if output is None or not isinstance(view, dict) or not (text := self.widgets.describe(str(view.get("model_id")))):
            return output
        return replace(output, data={**output.data, "text/plain": text})

    def since(self, cursor: int) -> tuple[tuple[Output, ...], int, int]:
        """Return the outputs after ``cursor``, the new cursor, and the number of bytes no longer in memory."""
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
        """Keep the text until its size exceeds the result's limit; then write all text to the spill, from the first byte."""
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

    def _follow_capture(self, comm_id: str, state: Mapping[str, Any]) -> None:
        """Begin or end the capture for an output widget: a ``msg_id`` in the model's state begins, an empty text ends."""
        if "msg_id" not in state:
            return
        if comm_id in self._capturing:
            self._capturing.remove(comm_id)
        is_known = comm_id in self._captures or len(self._captures) < _CAPTURES_MAX
        if state["msg_id"] and is_known and len(self._capturing) < _CAPTURES_MAX:
            self._capturing.append(comm_id)

    def _capture(self, comm_id: str, msg_type: str, content: Mapping[str, Any]) -> None:
        """Collect output for an output widget; a ``clear_output`` in the capture clears only this widget."""
        capture = self._captures.get(comm_id)
        if capture is None:
            capture = Collector(self._limits.late, displays=self._displays, on_output=self._publish_captured)
            self._captures[comm_id] = capture
            self._append(capture)
        before = capture.total_bytes
        capture.feed(msg_type, content)
        self.total_bytes += capture.total_bytes - before

    def _publish_captured(self, output: Output) -> None:
        self._publish(output, utf8_size(output.text) if isinstance(output, Stream) else OVERHEAD_BYTES)

    def _append(self, entry: _Entry) -> None:
        if self._entries and isinstance(last := self._entries[-1], TextRun):
            last.end()
        self._entries.append(entry)

    def _prune(self) -> None:
        """Remove runs without kept text, so that alternating streams stay bounded too."""
        if len(self._entries) > 1000 and len(self._entries) % 500 == 0:  # noqa: PLR2004 - rarely enough to be cheap
            self._entries = [e for e in self._entries if not isinstance(e, TextRun) or not e.is_empty]

    def _display(self, msg_type: str, content: Mapping[str, Any]) -> None:
        self._apply_pending_clear()
        bundle, whole = read_bundle(content, self._limits.stream_bytes), WholeBundles(content)
        display_id = _display_id(content)
        if display_id is not None:  # as in nbclient, a new display of a known id updates the earlier displays too
            self._update_displays(display_id, bundle, whole)
        output: DisplayData | ExecuteResult
        if msg_type == "execute_result":
            count = read_execution_count(content)
            output = ExecuteResult(bundle.data, bundle.metadata, count, display_id)
        else:
            output = DisplayData(bundle.data, bundle.metadata, display_id)
        self.total_bytes += bundle.size
        self.dropped_bytes += bundle.dropped_bytes
        shown = DisplayEntry(output, self._display_budgets, bundle, whole)
        self.dropped_displays += shown.output is None
        if shown.is_kept:
            self._append(shown)
        if display_id is not None:
            self._displays.add(display_id, shown)
        self._publish(output, bundle.size)

    def _update(self, content: Mapping[str, Any]) -> None:
        display_id = _display_id(content)
        if display_id is not None and display_id in self._displays:
            bundle = read_bundle(content, self._limits.stream_bytes)
            self.dropped_bytes += bundle.dropped_bytes
            self._update_displays(display_id, bundle, WholeBundles(content))

    def _update_displays(self, display_id: str, bundle: Bundle, whole: WholeBundles) -> None:
        if display_id not in self._displays:
            return
        self.updates_displays = True
        self.dropped_displays += self._displays.update(display_id, bundle, whole)
        if self._on_update is not None:
            recorded = whole.within(self._limits.record_bytes) if bundle.dropped_bytes else bundle
            self._on_update(display_id, recorded.data, recorded.metadata)

    def _error(self, content: Mapping[str, Any]) -> None:
        self._apply_pending_clear()
        lines = content.get("traceback")
        traceback = tuple(_text(line) for line in (lines if isinstance(lines, list) else []))
        ename, evalue = _text(content.get("ename", "")), _text(content.get("evalue", ""))
        size = utf8_size(evalue) + sum(utf8_size(line) for line in traceback)
        error = recorded = Error(cut_middle(ename, _ENAME_BYTES), cut_middle(evalue, _EVALUE_BYTES), _cut_lines(traceback))
        if any("\x1b" in line for line in traceback):  # stripped before the cut, which could divide an escape sequence
            error = replace(recorded, traceback=_cut_lines(tuple(map(strip_ansi, traceback))))
        self.total_bytes += size
        # The size is that of the uncut text, so the first exception has room in any case.
        if self._error_budget.spend(size + OVERHEAD_BYTES, always=not self._error_budget.spent):
            self._append(error if error is recorded else _ColouredError(error, recorded))
        else:
            self.dropped_displays += 1
        self._publish(error, size)

    def _clear(self, *, wait: bool) -> None:
        self._clear_pending = wait
        if not wait:
            # The budgets start anew, so a loop of clear and draw is bounded by its newest picture. Text for the spill stays.
            self._entries.clear()
            self._captures.clear()
            self._texts.clear()
            self._display_budgets = _make_budgets(self._limits)
            self._error_budget = Budget(self._limits.stream_bytes)

    def _apply_pending_clear(self) -> None:
        if self._clear_pending:
            self._clear(wait=False)

    def _publish(self, output: Output, size: int) -> None:
        self._window.add(output, size)
        if self._on_output is not None:
            self._on_output(output)


@dataclass(frozen=True, slots=True)
class _ColouredError:
    """An exception with a coloured traceback, which records have and results do not."""

    output: Error
    recorded: Error


_Entry = TextRun | DisplayEntry | Error | _ColouredError | Collector


def _cut_lines(traceback: tuple[str, ...]) -> tuple[str, ...]:
    """Return a traceback, without its middle above 256 KiB."""
    if sum(map(utf8_size, traceback)) <= _TRACEBACK_BYTES:
        return traceback
    return tuple(cut_middle("\n".join(traceback), _TRACEBACK_BYTES).split("\n"))


def _read_capture(capture: Collector) -> Iterable[Output]:
    """Yield captured output; an exception becomes text, since the cell went on."""
    for output in capture.outputs():
        yield Stream("stderr", "\n".join((*output.traceback, ""))) if isinstance(output, Error) else output


def _make_budgets(limits: OutputLimits) -> DisplayBudgets:
    return DisplayBudgets(Budget(limits.display_bytes), Budget(limits.record_bytes))


def read_execution_count(content: Mapping[str, Any]) -> int | None:
    """Return the execution count of a message; None for an invalid count."""
    count = content.get("execution_count")
    return count if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else None


def _text(value: object) -> str:
    text: str = clean(value if isinstance(value, str) else str(value))
    return text


def _display_id(content: Mapping[str, Any]) -> str | None:
    transient = content.get("transient")
    display_id = transient.get("display_id") if isinstance(transient, dict) else None
    if not isinstance(display_id, str) or len(display_id) <= _ID_CHARS:
        return _text(display_id) if isinstance(display_id, str) else None
    return f"sha256:{sha256(display_id.encode('utf-8', 'backslashreplace')).hexdigest()}"


def feed_result(collector: Collector, result: ExecutionResult) -> None:
    """Feed the outputs of a result to a collector as new messages."""
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


class OutputWindow:
    """The newest outputs. A position counts bytes of text since the start; an output without text counts as 1 byte."""

    def __init__(self, limit_bytes: int) -> None:
        self.held_bytes = 0
        self.end = 0
        self._limit = limit_bytes
        self._outputs: deque[tuple[Output, int]] = deque()

    def add(self, output: Output, size: int) -> None:
        """Add an output; above the limit remove the oldest outputs."""
        self.end += max(1, size)
        self._outputs.append((output, max(1, size)))
        self.held_bytes += size + _PIECE_BYTES
        while self.held_bytes > self._limit and len(self._outputs) > 1:
            _, gone = self._outputs.popleft()
            self.held_bytes -= gone + _PIECE_BYTES

    def since(self, position: int) -> tuple[tuple[Output, ...], int]:
        """Return the outputs after a position, streams joined, and the number of bytes no longer in memory."""
        outputs: deque[Output] = deque()
        # Backwards from the end: a reader that follows closely sees few outputs, however many are held.
        start = self.end
        for output, size in reversed(self._outputs):
            if start <= position:
                break
            start -= size
            outputs.appendleft(output)
        return tuple(_join_streams(outputs)), max(0, start - position)


def _join_streams(outputs: Iterable[Output]) -> Iterator[Output]:
    for name, pieces in groupby(outputs, lambda output: output.name if isinstance(output, Stream) else None):
        if name is None:
            yield from pieces
        else:
            yield Stream(name, "".join(piece.text for piece in pieces if isinstance(piece, Stream)))
