"""Folds the messages of one request into outputs, as they come.

The semantics are those of the Jupyter messaging spec as nbclient applies them: streams of one name are joined, an update
changes every display of its id and adds none, ``clear_output(wait)`` waits for the next output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from kernelexec.config import OutputLimits
from kernelexec.outputs.bundles import OVERHEAD_BYTES, Bundle, read
from kernelexec.outputs.displays import Budget, Displays, Shown
from kernelexec.outputs.output_window import Tape
from kernelexec.results import DisplayData, Error, ExecuteResult, Output, Stream
from kernelexec.text import TextBudget, TextRun, add_piece, clean, cut_middle, utf8_size

#: How much of the newest output is held for those who follow the cell, in ``stream_bytes``.
_TAPE_BUDGETS = 4
_TRACEBACK_BYTES, _EVALUE_BYTES, _ENAME_BYTES = 256 * 1024, 64 * 1024, 1024


class Spill(Protocol):
    """Where stream text goes once it no longer fits into the result."""

    def write(self, text: str) -> None:
        """Take one more piece, in order."""


class Collector:
    """The outputs of one request. ``displays`` are the kernel's, so that an update reaches those of earlier cells."""

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
        self._entries: list[TextRun | Shown | Error] = []
        self._texts: dict[str, TextBudget] = {}
        self._shown = Budget(limits.display_bytes)
        self._errors = Budget(limits.stream_bytes)
        self._raw: list[str] = []
        self._clear_pending = False
        self._tape = Tape(limits.stream_bytes * _TAPE_BUDGETS)

    @property
    def truncated(self) -> bool:
        """Whether the outputs lack something that the cell made."""
        return bool(self.dropped_bytes or self.dropped_displays or any(b.cut_bytes for b in self._texts.values()))

    @property
    def lost_outputs(self) -> int:
        """How many outputs nothing is kept of."""
        return self.dropped_displays + self._unread

    @property
    def held_bytes(self) -> int:
        """About how much memory the outputs take."""
        kept = sum(min(budget.seen_bytes, budget.limit) for budget in self._texts.values())
        return 2 * kept + 2 * self._shown.spent + self._errors.spent + self._tape.held_bytes

    @property
    def raw_text(self) -> str:
        """All stream text in order, as long as nothing was spilled."""
        return "".join(self._raw)

    def feed(self, msg_type: str, content: Mapping[str, Any]) -> None:
        """Take one iopub message of the request; types that bear no output are passed over."""
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

    def drop(self, size_bytes: int, *, outputs: int = 1) -> None:
        """Count a message that was too large to be read, or other bytes that never came."""
        self.total_bytes += size_bytes
        self.dropped_bytes += size_bytes
        self._unread += outputs

    @property
    def received_bytes(self) -> int:
        """How much text of streams came, in bytes."""
        return self.stream_bytes

    def settle(self) -> None:
        """Keep nothing back: the request has ended. This collector never does."""

    def end(self) -> None:
        """Tell nobody any more: who is told may hold this collector, and the memory of both would stay until it is searched."""
        self._on_output = None

    def outputs(self) -> tuple[Output, ...]:
        """The outputs so far, in order; streams of one name that follow each other are one."""
        found: list[Output] = []
        for entry in self._entries:
            match entry:
                case Shown():
                    found.append(entry.output)
                case Error():
                    found.append(entry)
                case TextRun() if text := entry.text():
                    found.append(Stream(entry.name, text))
        return tuple(found)

    def since(self, cursor: int) -> tuple[tuple[Output, ...], int, int]:
        """Output pieces after ``cursor``, the new cursor, and the bytes of those that are no longer held."""
        found, missed = self._tape.since(cursor)
        return found, self._tape.end, missed

    def _stream(self, name: str, text: str) -> None:
        if not text:
            return
        self._make_room()
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
        self._tell(Stream(name, text), size)

    def _keep_raw(self, text: str) -> None:
        """Hold the text until it is too much for the result; from then on it goes to the spill, from its first byte."""
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

    def _append(self, entry: TextRun | Shown | Error) -> None:
        if self._entries and isinstance(last := self._entries[-1], TextRun):
            last.end()
        self._entries.append(entry)

    def _prune(self) -> None:
        """Forget runs of which nothing is kept, so that alternating streams stay bounded too."""
        if len(self._entries) > 1000 and len(self._entries) % 500 == 0:  # noqa: PLR2004 - rarely enough to be cheap
            self._entries = [e for e in self._entries if not isinstance(e, TextRun) or not e.empty]

    def _display(self, msg_type: str, content: Mapping[str, Any]) -> None:
        self._make_room()
        bundle = read(content, self._limits.text_bytes)
        display_id = _display_id(content)
        if display_id is not None:
            self._show_again(display_id, bundle)
        output: DisplayData | ExecuteResult
        if msg_type == "execute_result":
            count = execution_count(content)
            output = ExecuteResult(bundle.data, bundle.metadata, count, display_id)
        else:
            output = DisplayData(bundle.data, bundle.metadata, display_id)
        self.total_bytes += bundle.size
        self.dropped_bytes += bundle.dropped_bytes
        shown = Shown(output, self._shown, bundle.cost) if self._shown.spend(bundle.cost) else None
        if shown is None:
            self.dropped_displays += 1
        else:
            self._append(shown)
        if display_id is not None:
            self._displays.add(display_id, shown)
        self._tell(output, bundle.size)

    def _update(self, content: Mapping[str, Any]) -> None:
        display_id = _display_id(content)
        if display_id is not None and display_id in self._displays:
            bundle = read(content, self._limits.text_bytes)
            self.dropped_bytes += bundle.dropped_bytes
            self._show_again(display_id, bundle)

    def _show_again(self, display_id: str, bundle: Bundle) -> None:
        if display_id not in self._displays:
            return
        self.dropped_displays += self._displays.update(display_id, bundle.data, bundle.metadata, bundle.cost)
        if self._on_update is not None:
            self._on_update(display_id, bundle.data, bundle.metadata)

    def _error(self, content: Mapping[str, Any]) -> None:
        self._make_room()
        lines = content.get("traceback")
        traceback = tuple(_text(line) for line in (lines if isinstance(lines, list) else []))
        ename, evalue = _text(content.get("ename", "")), _text(content.get("evalue", ""))
        size = utf8_size(evalue) + sum(utf8_size(line) for line in traceback)
        if size > _TRACEBACK_BYTES:
            traceback = tuple(cut_middle("\n".join(traceback), _TRACEBACK_BYTES).split("\n"))
        error = Error(cut_middle(ename, _ENAME_BYTES), cut_middle(evalue, _EVALUE_BYTES), traceback)
        self.total_bytes += size
        if self._errors.spend(size + OVERHEAD_BYTES, always=not self._errors.spent):
            self._append(error)
        else:
            self.dropped_displays += 1
        self._tell(error, size)

    def _clear(self, *, wait: bool) -> None:
        self._clear_pending = wait
        if not wait:
            self._entries.clear()
            self._texts.clear()
            self._shown = Budget(self._limits.display_bytes)
            self._errors = Budget(self._limits.stream_bytes)

    def _make_room(self) -> None:
        if self._clear_pending:
            self._clear(wait=False)

    def _tell(self, output: Output, size: int) -> None:
        self._tape.add(output, size)
        if self._on_output is not None:
            self._on_output(output)


def execution_count(content: Mapping[str, Any]) -> int | None:
    """The number of a cell as a message says it, if it is one."""
    count = content.get("execution_count")
    return count if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else None


def _text(value: object) -> str:
    text: str = clean(value if isinstance(value, str) else str(value))
    return text


def _display_id(content: Mapping[str, Any]) -> str | None:
    transient = content.get("transient")
    found = transient.get("display_id") if isinstance(transient, dict) else None
    return _text(found) if isinstance(found, str) else None
