"""The report of a replay, cell by cell."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

from kernelexec.results.json_values import to_plain_json
from kernelexec.results.model.notes import join_names

#: In order: run again and ended as before; run again and failed; not run, because it is not safe to repeat; not run, because
#: it had not ended by itself; not run, because it had never run; not run, because a snapshot has its variables; not run,
#: because the replay ended before it.
Outcome = Literal["repeated", "failed", "unsafe", "unfinished", "skipped", "restored", "not_reached"]
_RESTORED_OUTCOMES = frozenset({"repeated", "restored", "skipped"})
_DESCRIPTIONS: dict[Outcome, str] = {
    "repeated": "repeated",
    "restored": "restored from the snapshot",
    "failed": "failed",
    "unsafe": "not safe to repeat",
    "unfinished": "had not ended by themselves",
    "skipped": "had never run",
    "not_reached": "not reached",
}
_LISTED_CELLS, _LISTED_NAMES = 20, 40


@dataclass(frozen=True, slots=True)
class ReplayedCell:
    """One cell of a replay: its number from 1, the head of its source, and its outcome.

    If the cell was run, ``execution_id`` is its execution in the new session, and ``seconds`` its duration.
    """

    number: int
    head: str
    outcome: Outcome
    reason: str | None = None
    execution_id: str | None = None
    seconds: float | None = None

    def __str__(self) -> str:
        """Return the outcome in one line."""
        return f"cell {self.number} {self.outcome}: {self.reason or 'as before'} | {self.head}"


@dataclass(frozen=True, slots=True)
class Replay:
    """The report of the replay of an earlier session.

    ``names`` are its restored variables; ``missing`` those of cells that were not restored. ``state_lost`` says that a cell
    ended the kernel: the replay stopped there, and all state before it is gone.
    """

    source: str
    cells: tuple[ReplayedCell, ...]
    names: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    state_lost: bool = False
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every cell that had run was repeated, or its variables were restored."""
        return not self.state_lost and not self.missing and all(cell.outcome in _RESTORED_OUTCOMES for cell in self.cells)

    @property
    def counts(self) -> dict[Outcome, int]:
        """The number of cells of each outcome."""
        return dict(Counter(cell.outcome for cell in self.cells))

    def __str__(self) -> str:
        """Return a few lines for a person or a model: the counts, each cell with a reason, and the names."""
        counts = self.counts
        counts_text = [f"{counts[outcome]} {words}" for outcome, words in _DESCRIPTIONS.items() if outcome in counts]
        lines = [f"Replay of {self.source}: {len(self.cells)} cells: {', '.join(counts_text) or 'nothing to run'}."]
        explained = [cell for cell in self.cells if cell.reason is not None]
        lines += [str(cell) for cell in explained[:_LISTED_CELLS]]
        if len(explained) > _LISTED_CELLS:
            lines.append(f"... and {len(explained) - _LISTED_CELLS} cells more.")
        if self.state_lost:
            lines.append("The state was lost: the kernel is a new one, without any variable.")
        named = {"Back": self.names, "Missing": self.missing}
        lines += [f"{title}: {join_names(names, _LISTED_NAMES)}." for title, names in named.items() if names]
        return "\n".join([*lines, *self.notes])

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON types."""
        return {**to_plain_json(self), "ok": self.ok, "counts": self.counts}
