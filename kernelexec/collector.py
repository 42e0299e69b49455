"""Folds the messages of one request into outputs, within fixed bounds, as they come. No await, socket, clock or logger.

The semantics are those of the Jupyter messaging spec as nbclient applies them: streams of one name are joined, an update
changes every display of its id and adds none, ``clear_output(wait)`` waits for the next output.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from kernelexec.config import OutputLimits
from kernelexec.results import DisplayData, Error, ExecuteResult, Output, Stream
from kernelexec.text import TextBudget, TextRun, clean, cut_middle, utf8_size

_OVERHEAD_BYTES = 256
_HELD_EVENTS = 4
_DISPLAY_IDS = 1000


class Spill(Protocol):
    """Where stream text goes once it no longer fits into the result."""

    def write(self, text: str) -> None:
        """Take one more piece, in order."""


class Collector:
    """The outputs of one request.

    ``displays`` is shared by all collectors of a kernel: it maps a display_id to the entries that show it, so that an
    update reaches the displays of earlier cells.
    """

    def __init__(
        self,
        limits: OutputLimits,
        *,
        displays: dict[str, list[list[Output]]] | None = None,
        spill: Spill | None = None,
        on_output: Callable[[Output], None] | None = None,
        on_update: Callable[[str, Mapping[str, Any], Mapping[str, Any]], None] | None = None,
    ) -> None:
        self.total_bytes = 0
        self.dropped_bytes = 0
        self.dropped_displays = 0
        self._limits = limits
        self._displays = {} if displays is None else displays
        self._spill = spill
        self._spilling = False
        self._on_output = on_output
        self._on_update = on_update
        self._entries: list[TextRun | list[Output]] = []
        self._budgets: dict[str, TextBudget] = {}
        self._raw: list[str] = []
        self._display_bytes = 0
        self._clear_pending = False
        self._events: deque[tuple[Output, int]] = deque()
        self._events_bytes = 0
        self._cursor = 0
        self._stream_bytes = 0
        self._evicted_bytes = 0

    @property
    def truncated(self) -> bool:
        """Whether the outputs lack something that the cell made."""
        return bool(self.dropped_bytes or self.dropped_displays or any(b.cut_bytes for b in self._budgets.values()))

    @property
    def spilled(self) -> bool:
        """Whether the stream text went to the spill."""
        return self._spilling

    @property
    def stream_bytes(self) -> int:
        """How much the cell wrote to its streams."""
        return self._stream_bytes

    @property
    def held_bytes(self) -> int:
        """About how much memory the outputs take."""
        kept = sum(min(budget.seen_bytes, budget.limit) for budget in self._budgets.values())
        return 2 * kept + 2 * self._display_bytes + self._events_bytes

    @property
    def raw_text(self) -> str:
        """All stream text in order, as long as nothing was spilled."""
        return "".join(self._raw)

    def feed(self, msg_type: str, content: Mapping[str, Any]) -> None:
        """Take one iopub message of the request; types that bear no output are passed over."""
        match msg_type:
            case "stream":
                self._stream("stderr" if content.get("name") == "stderr" else "stdout", clean(str(content.get("text", ""))))
            case "display_data" | "execute_result":
                self._display(msg_type, content)
            case "update_display_data":
                self._update(content)
            case "error":
                self._error(content)
            case "clear_output":
                self._clear(wait=bool(content.get("wait")))

    def drop(self, size_bytes: int) -> None:
        """Count a message that was too large to be read."""
        self.total_bytes += size_bytes
        self.dropped_bytes += size_bytes

    def outputs(self) -> tuple[Output, ...]:
        """The outputs so far, in order; streams of one name that follow each other are one."""
        found: list[Output] = []
        for entry in self._entries:
            if isinstance(entry, list):
                found.append(entry[0])
            elif text := entry.text():
                found.append(Stream(entry.name, text))
        return tuple(found)

    def since(self, cursor: int) -> tuple[tuple[Output, ...], int, int]:
        """Output pieces after ``cursor``, the new cursor, and the bytes of those that are no longer held."""
        first = self._cursor - len(self._events)
        skip = max(0, cursor - first)
        found = [output for output, _ in list(self._events)[skip:]]
        missed = self._evicted_bytes if cursor < first else 0
        return tuple(_joined(found)), self._cursor, missed

    def _stream(self, name: str, text: str) -> None:
        if not text:
            return
        self._make_room()
        last = self._entries[-1] if self._entries else None
        if not isinstance(last, TextRun) or last.name != name:
            budget = self._budgets.setdefault(name, TextBudget(self._limits.stream_bytes))
            self._prune()
            last = TextRun(name, budget)
            self._entries.append(last)
        size = utf8_size(text)
        self.total_bytes += size
        self._stream_bytes += size
        last.append(text)
        self._keep_raw(text)
        self._tell(Stream(name, text), size)

    def _keep_raw(self, text: str) -> None:
        if self._spilling and self._spill is not None:
            self._spill.write(text)
            return
        self._raw.append(text)
        if self._spill is not None and any(budget.seen_bytes > budget.limit for budget in self._budgets.values()):
            self._spilling = True
            for piece in self._raw:
                self._spill.write(piece)
            self._raw.clear()
        elif self._spill is None:
            self._raw.clear()

    def _prune(self) -> None:
        """Forget runs of which nothing is kept, so that alternating streams stay bounded too."""
        if len(self._entries) > 1000 and len(self._entries) % 500 == 0:  # noqa: PLR2004 - rarely enough to be cheap
            self._entries = [e for e in self._entries if isinstance(e, list) or not e.empty]

    def _display(self, msg_type: str, content: Mapping[str, Any]) -> None:
        self._make_room()
        data, metadata, size = self._bundle(content)
        self.total_bytes += size
        transient = content.get("transient")
        found = transient.get("display_id") if isinstance(transient, dict) else None
        display_id = found if isinstance(found, str) else None
        if display_id is not None:
            self._apply(display_id, data, metadata)
        output: Output
        if msg_type == "execute_result":
            count = content.get("execution_count")
            output = ExecuteResult(data, metadata, count if isinstance(count, int) else None, display_id)
        else:
            output = DisplayData(data, metadata, display_id)
        if self._display_bytes + size + _OVERHEAD_BYTES > self._limits.display_bytes:
            self.dropped_displays += 1
        else:
            self._display_bytes += size + _OVERHEAD_BYTES
            entry: list[Output] = [output]
            self._entries.append(entry)
            if display_id is not None:
                self._displays.setdefault(display_id, []).append(entry)
                while len(self._displays) > _DISPLAY_IDS:
                    del self._displays[next(iter(self._displays))]
        self._tell(output, size)

    def _update(self, content: Mapping[str, Any]) -> None:
        transient = content.get("transient")
        display_id = transient.get("display_id") if isinstance(transient, dict) else None
        if isinstance(display_id, str):
            data, metadata, _ = self._bundle(content)
            self._apply(display_id, data, metadata)

    def _apply(self, display_id: str, data: dict[str, Any], metadata: dict[str, Any]) -> None:
        entries = self._displays.get(display_id)
        for entry in entries or ():
            shown = entry[0]
            if isinstance(shown, DisplayData | ExecuteResult):
                entry[0] = replace(shown, data=data, metadata=metadata)
        if entries and self._on_update is not None:
            self._on_update(display_id, data, metadata)

    def _bundle(self, content: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], int]:
        data, size = {}, 0
        found = content.get("data")
        for mime, value in (found if isinstance(found, dict) else {}).items():
            kept = clean(value)
            whole = utf8_size(kept) if isinstance(kept, str) else _json_size(kept)
            size += whole
            if isinstance(kept, str) and mime.startswith("text/") and whole > self._limits.text_bytes:
                kept = cut_middle(kept, self._limits.text_bytes)
                self.dropped_bytes += whole - utf8_size(kept)
            data[clean(str(mime))] = kept
        metadata = content.get("metadata")
        return data, clean(metadata) if isinstance(metadata, dict) else {}, size

    def _error(self, content: Mapping[str, Any]) -> None:
        self._make_room()
        lines = content.get("traceback")
        traceback = tuple(cut_middle(clean(str(line)), 64 * 1024) for line in (lines if isinstance(lines, list) else ())[:500])
        ename, evalue = clean(str(content.get("ename", ""))), clean(str(content.get("evalue", "")))
        output = Error(cut_middle(ename, 1024), cut_middle(evalue, 64 * 1024), traceback)
        size = sum(utf8_size(line) for line in traceback) + utf8_size(output.evalue)
        self.total_bytes += size
        if self._display_bytes + size + _OVERHEAD_BYTES <= self._limits.display_bytes + self._limits.stream_bytes:
            self._display_bytes += size + _OVERHEAD_BYTES
            self._entries.append([output])
        else:
            self.dropped_displays += 1
        self._tell(output, size)

    def _clear(self, *, wait: bool) -> None:
        if wait:
            self._clear_pending = True
            return
        self._clear_pending = False
        gone = {id(entry) for entry in self._entries if isinstance(entry, list)}
        for entries in self._displays.values():
            entries[:] = [entry for entry in entries if id(entry) not in gone]
        self._entries.clear()
        self._budgets.clear()
        self._display_bytes = 0

    def _make_room(self) -> None:
        if self._clear_pending:
            self._clear(wait=False)

    def _tell(self, output: Output, size: int) -> None:
        self._cursor += 1
        self._events.append((output, size))
        self._events_bytes += size + _OVERHEAD_BYTES
        while self._events_bytes > self._limits.stream_bytes * _HELD_EVENTS and len(self._events) > 1:
            _, gone = self._events.popleft()
            self._events_bytes -= gone + _OVERHEAD_BYTES
            self._evicted_bytes += gone
        if self._on_output is not None:
            self._on_output(output)


def _json_size(value: object) -> int:
    match value:
        case dict():
            return sum(_json_size(key) + _json_size(item) for key, item in value.items())
        case list():
            return sum(_json_size(item) for item in value)
        case str():
            return utf8_size(value)
        case _:
            return 8


def _joined(outputs: list[Output]) -> list[Output]:
    found: list[Output] = []
    for output in outputs:
        last = found[-1] if found else None
        if isinstance(output, Stream) and isinstance(last, Stream) and output.name == last.name:
            found[-1] = Stream(last.name, last.text + output.text)
        else:
            found.append(output)
    return found
