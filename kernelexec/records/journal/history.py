"""What a session did before, as its journal tells it: the cells of its last life, in order, with their ends."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kernelexec.recorded_history import Past, PastCell, called
from kernelexec.records.journal.reader import read
from kernelexec.results import Snapshot

#: What took longer, in seconds, did not take as long as its record says.
_LONGEST = 1e9


@dataclass(slots=True)
class _Life:
    """A session from its opening to its end, or to that of its owner."""

    whole: bool = True
    """Whether what it was to replay first was replayed to its end."""
    cells: dict[str, PastCell] = field(default_factory=dict)
    running: str | None = None
    kernel: object = None
    snapshot: Snapshot | None = None
    covered: int = 0
    replaced: list[int] = field(default_factory=list)

    def take(self, said: dict[str, Any]) -> None:
        """Take the next record of this life."""
        match said.get("event"):
            case "started":
                self.running, self.kernel = str(said.get("execution_id")), said.get("kernel")
                self.cells[self.running] = _started(said)
            case "finished" if (found := str(said.get("execution_id"))) in self.cells:
                self.cells[found] = _finished(self.cells[found], said)
                self.running = None
            case "aborted" if self.running is not None and self.running == said.get("execution_id"):
                del self.cells[self.running]
                self.running = None
            case "kernel":
                self._kernel_changed(said)
            case "snapshot":
                with suppress(ValueError, TypeError):
                    self.snapshot, self.covered = Snapshot.from_dict(said["snapshot"]), len(self.cells)
            case "replayed":
                self.whole = True
                self._take_over(said)

    def _kernel_changed(self, said: dict[str, Any]) -> None:
        change, language = said.get("change"), said.get("language")
        if change == "started" and language == "python" and self.cells:
            self.replaced.append(len(self.cells))
        elif change == "died" and self.running is not None and language == self.kernel:
            self.cells[self.running] = replace(self.cells[self.running], ended_kernel=True)

    def _take_over(self, said: dict[str, Any]) -> None:
        """Put the cells that a snapshot stood for in the place of what was run instead of them."""
        carried, played = Past.of_carried(said), said.get("cells")
        if carried is None or not isinstance(played, list):
            return
        rest = {str(cell.get("execution_id")) for cell in played[carried.covered :] if isinstance(cell, dict)}
        cells = {f"covered {number}": cell for number, cell in enumerate(carried.cells)}
        self.cells = cells | {found: cell for found, cell in self.cells.items() if found in rest}
        self.snapshot, self.covered = carried.snapshot, carried.covered
        self.replaced.clear()


def past(path: Path) -> Past:
    """The cells of the newest life that has any; one that was cut off amid its own replay counts for nothing.

    A cell that never ran is not among them: nothing of it was lost.
    """
    life = newest = _Life()
    for said in read(path):
        if said.get("event") == "opened":
            if life.cells and life.whole:
                newest = life
            life = _Life(whole="replays" not in said)
        else:
            life.take(said)
    found = life if life.cells and life.whole else newest
    return Past(tuple(found.cells.values()), found.snapshot, found.covered, tuple(found.replaced))


def _started(said: dict[str, Any]) -> PastCell:
    cell = PastCell(str(said.get("code", "")), language=str(said.get("language", "python")), status="unfinished")
    return called(cell, said) if said.get("lasts") is True else cell


def _finished(cell: PastCell, said: dict[str, Any]) -> PastCell:
    status, error, took, interrupted = (said.get(name) for name in ("status", "error", "seconds", "interrupted"))
    return replace(
        cell,
        status=status if status in ("ok", "error") else None,
        interrupted=interrupted if interrupted in ("timeout", "request") else None,
        seconds=float(took) if isinstance(took, int | float) and 0 <= took < _LONGEST else None,
        ename=str(error.get("ename")) if isinstance(error, dict) else None,
    )
