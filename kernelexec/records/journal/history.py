"""The recorded cells of a session's last life, in order, with their ends."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kernelexec.recorded_history import History, RecordedCell, restore_call
from kernelexec.records.journal.reader import SECONDS_MAX, read, read_number
from kernelexec.results import Snapshot


@dataclass(slots=True)
class _SessionRun:
    """A life of a session: from its opening to its end, or to the end of its owner."""

    whole: bool = True
    """Whether its own replay was completed."""
    cells: dict[str, RecordedCell] = field(default_factory=dict)
    running: str | None = None
    kernel: object = None
    snapshot: Snapshot | None = None
    covered: int = 0
    replaced: list[int] = field(default_factory=list)

    def take(self, record: dict[str, Any]) -> None:
        """Add the next record of this life."""
        match record.get("event"):
            case "started":
                self.running, self.kernel = str(record.get("execution_id")), record.get("kernel")
                self.cells[self.running] = _start_cell(record)
            case "finished" if (execution_id := str(record.get("execution_id"))) in self.cells:
                self.cells[execution_id] = _finish_cell(self.cells[execution_id], record)
                self.running = None
            case "aborted" if self.running is not None and self.running == record.get("execution_id"):
                del self.cells[self.running]
                self.running = None
            case "kernel":
                self._kernel_changed(record)
            case "snapshot":
                with suppress(ValueError, TypeError):
                    self.snapshot, self.covered = Snapshot.from_dict(record["snapshot"]), len(self.cells)
            case "replayed":
                self.whole = True
                self._take_over(record)

    def _kernel_changed(self, record: dict[str, Any]) -> None:
        change, language = record.get("change"), record.get("language")
        if change == "started" and language == "python" and self.cells:
            self.replaced.append(len(self.cells))
        elif change == "died" and self.running is not None and language == self.kernel:
            self.cells[self.running] = replace(self.cells[self.running], ended_kernel=True)

    def _take_over(self, record: dict[str, Any]) -> None:
        """Replace the cells that a replay ran by those that its snapshot stood for."""
        carried, played = History.from_metadata(record), record.get("cells")
        if carried is None or not isinstance(played, list):
            return
        rest = {str(cell.get("execution_id")) for cell in played[carried.covered :] if isinstance(cell, dict)}
        cells = {f"covered {number}": cell for number, cell in enumerate(carried.cells)}
        self.cells = cells | {execution_id: cell for execution_id, cell in self.cells.items() if execution_id in rest}
        self.snapshot, self.covered = carried.snapshot, carried.covered
        self.replaced.clear()


def read_history(path: Path) -> History:
    """Return the cells of the newest life that has any; a life that ended during its own replay does not count.

    Cells that never ran are left out: nothing of them was lost.
    """
    life = newest = _SessionRun()
    for record in read(path):
        if record.get("event") == "opened":
            if life.cells and life.whole:
                newest = life
            life = _SessionRun(whole="replays" not in record)
        else:
            life.take(record)
    last = life if life.cells and life.whole else newest
    return History(tuple(last.cells.values()), last.snapshot, last.covered, tuple(last.replaced))


def _start_cell(record: dict[str, Any]) -> RecordedCell:
    cell = RecordedCell(str(record.get("code", "")), language=str(record.get("language", "python")), status="unfinished")
    return restore_call(cell, record) if record.get("lasts") is True else cell


def _finish_cell(cell: RecordedCell, record: dict[str, Any]) -> RecordedCell:
    status, error, interrupted = (record.get(name) for name in ("status", "error", "interrupted"))
    return replace(
        cell,
        status=status if status in ("ok", "error") else None,
        interrupted=interrupted if interrupted in ("timeout", "request") else None,
        seconds=read_number(record.get("seconds"), SECONDS_MAX),
        ename=str(error.get("ename")) if isinstance(error, dict) else None,
    )
