"""The recorded cells of a session's last life, in order, with their ends; and the cell running at its owner's death."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kernelexec import cells
from kernelexec.cells import Cell
from kernelexec.errors import InvalidCode
from kernelexec.records.journal.records import SECONDS_MAX, read, read_number
from kernelexec.results import Snapshot
from kernelexec.results.one_line import count_things
from kernelexec.rules.recorded_history import CellLineage, History, RecordedCell, restore_call

_DEPTH_MAX = 16
_OF_CELLS = frozenset({"started", "finished", "aborted", "restored", "promoted"})
_UNDONE = "{} had been undone before the session ended, and are left out."
#: The timeout of a running cell without a recorded timeout, in seconds.
_TIMEOUT = 60.0


@dataclass(frozen=True, slots=True)
class _Journals:
    """The journals beside the journal being read; journals named in them are read to a bounded depth."""

    directory: Path
    depth: int = _DEPTH_MAX

    def read(self, record: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the records of the journal named in a record; only the last part of the path counts."""
        name = Path(str(record.get("journal", ""))).name  # a changed record cannot make other files be read
        if self.depth and name:
            with suppress(OSError):
                yield from read(self.directory / name)


@dataclass(slots=True)
class _SessionRun:
    """A life of a session: from the opening to the end, or to the end of the owner."""

    sources: _Journals
    """The journals of branches, and of the session from which this life branched off."""
    whole: bool = True
    """Whether the life's own replay was completed."""
    cells: dict[str, RecordedCell] = field(default_factory=dict)
    running: str | None = None
    kernel: object = None
    snapshot: Snapshot | None = None
    covered: int = 0
    replaced: list[int] = field(default_factory=list)
    lineage: CellLineage = field(default_factory=CellLineage)
    began_after: str = ""
    """The last cell before the beginning of a branch, the furthest point for going back."""
    goes_on: bool = False
    """Whether the next kernel is a copy, with the state of the cells so far."""

    @property
    def history(self) -> History:
        """The cells without undone cells; and the snapshot, unless the snapshot covers an undone cell."""
        undone = [self.lineage.is_undone(execution_id) for execution_id in self.cells]
        cells = tuple(cell for cell, is_undone in zip(self.cells.values(), undone, strict=True) if not is_undone)
        replaced = tuple(number - sum(undone[:number]) for number in self.replaced)
        has_snapshot = not any(undone[: self.covered])
        notes = (_UNDONE.format(count_things("cell", sum(undone))),) if any(undone) else ()
        return History(
            cells, self.snapshot if has_snapshot else None, self.covered if has_snapshot else 0, replaced, notes=notes
        )

    def take(self, record: dict[str, Any]) -> None:
        """Add the next record of this life."""
        match record.get("event"):
            case "started":
                self.running, self.kernel = str(record.get("execution_id")), record.get("kernel")
                self.cells[self.running] = _start_cell(record)
                if self.kernel == "python":
                    self.lineage.add(self.running)
            case "finished" if (execution_id := str(record.get("execution_id"))) in self.cells:
                self.cells[execution_id] = _finish_cell(self.cells[execution_id], record)
                self.running = None
            case "aborted" if self.running is not None and self.running == record.get("execution_id"):
                del self.cells[self.running]
                self.running = None
            case "kernel":
                self._kernel_changed(record)
            case "restored" | "promoted":
                self._go_back(record)
            case "snapshot":
                with suppress(ValueError, TypeError):
                    self.snapshot, self.covered = Snapshot.from_dict(record["snapshot"]), len(self.cells)
            case "replayed":
                self.whole = True
                self._take_over(record)

    def _go_back(self, record: dict[str, Any]) -> None:
        """Go back to the state after a cell; a branch in the place of this life goes on with the branch's cells."""
        self.lineage.go_back(str(record.get("after") or self.began_after))
        if record.get("event") == "promoted":
            for follower in self.sources.read(record):
                # In a branch's journal "after nothing" means its beginning, which is a cell of this life.
                if follower.get("event") == "restored" and not follower.get("after"):
                    follower["after"] = record.get("after")
                if follower.get("event") in _OF_CELLS:
                    self.take(follower)
        elif self.replaced[-1:] == [len(self.cells)]:  # the kernel that goes on from the checkpoint has lost nothing
            self.replaced.pop()

    def _kernel_changed(self, record: dict[str, Any]) -> None:
        change, language = record.get("change"), record.get("language")
        if change == "started" and language == "python" and self.cells and not self.goes_on:
            self.replaced.append(len(self.cells))
        elif change == "started" and language == "python":
            self.goes_on = False
        elif change == "died" and self.running is not None and language == self.kernel:
            self.cells[self.running] = replace(self.cells[self.running], ended_kernel=True)

    def _take_over(self, record: dict[str, Any]) -> None:
        """Replace the cells run by a replay with the cells covered by its snapshot."""
        carried, played = History.from_metadata(record), record.get("cells")
        if carried is None or not isinstance(played, list):
            return
        rest = {str(cell.get("execution_id")) for cell in played[carried.covered :] if isinstance(cell, dict)}
        cells = {f"covered {number}": cell for number, cell in enumerate(carried.cells)}
        self.cells = cells | {execution_id: cell for execution_id, cell in self.cells.items() if execution_id in rest}
        self.snapshot, self.covered = carried.snapshot, carried.covered
        self.replaced.clear()


def read_history(path: Path) -> History:
    """Return the cells of the newest life with cells; a life that ended during its own replay does not count.

    Cells that never ran are left out, since they had no state to lose.
    """
    return _read_last(_Journals(path.parent), read(path)).history


def _read_last(sources: _Journals, records: Iterable[dict[str, Any]], *, until: str | None = None) -> _SessionRun:
    """Return the newest life with cells; with ``until``, the life of this cell, up to the cell's end."""
    life = newest = _SessionRun(sources)
    for record in records:
        if record.get("event") == "opened":
            if life.cells and life.whole:
                newest = life
            life = _begin(sources, record)
        else:
            life.take(record)
            if until is not None and record.get("event") == "finished" and record.get("execution_id") == until:
                return life
    return life if life.cells and life.whole else newest


def _begin(sources: _Journals, opened: dict[str, Any]) -> _SessionRun:
    """Return a new life. A branch begins with the parent's cells up to the branch, if the parent's journal is there."""
    point = opened.get("branch")
    if not isinstance(point, dict):
        return _SessionRun(sources, whole="replays" not in opened)
    if not (after := point.get("after")):
        return _SessionRun(sources)
    below = replace(sources, depth=sources.depth - 1)
    parent = _read_last(below, sources.read(point), until=str(after))
    parent.sources, parent.began_after, parent.goes_on = sources, str(after), True
    return parent if str(after) in parent.cells else _SessionRun(sources)


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


@dataclass(frozen=True, slots=True)
class RunningCell:
    """A cell sent to a kernel, without a recorded end."""

    execution_id: str
    cell: Cell
    kernel_epoch: int
    request_id: str | None
    timeout: float
    """The timeout from the start of the cell, in seconds."""
    began: float
    """The time at which the cell was sent, in seconds of ``time.monotonic``."""


def running_cell(path: Path) -> RunningCell | None:
    """Return the running cell in the newest life of a session; None without. For a thread: a journal may be long."""
    running: dict[str, Any] | None = None
    for fields in read(path):
        match fields.get("event"):
            case "opened" | "closed":
                running = None
            case "started":
                running = fields
            case "finished" | "aborted" if running and running.get("execution_id") == fields.get("execution_id"):
                running = None
    with suppress(LookupError, TypeError, ValueError, InvalidCode):
        return None if running is None else _restore_running(running)
    return None


def _restore_running(fields: dict[str, Any]) -> RunningCell | None:
    """Return the cell of a record; None if the record does not fit the digest of its code or the request's fingerprint."""
    timeout, epoch, request_id, execution_id = (
        fields.get(name) for name in ("timeout", "kernel_epoch", "request_id", "execution_id")
    )
    cell = cells.from_record(fields)
    if not isinstance(execution_id, str) or not isinstance(epoch, int) or cells.source_digest(cell) != fields["sha256"]:
        return None
    if request_id is not None and (not isinstance(request_id, str) or cells.fingerprint(cell) != fields["fingerprint"]):
        return None
    # The record has the wall clock's time: a monotonic clock is not the same after a reboot. The clock may have been set back.
    elapsed = max(0.0, (datetime.now(UTC) - datetime.fromisoformat(fields["time"])).total_seconds())
    budget = float(timeout) if isinstance(timeout, int | float) and timeout > 0 else _TIMEOUT
    return RunningCell(execution_id, cell, epoch, request_id, budget, time.monotonic() - elapsed)
