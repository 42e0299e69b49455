"""The report of a replay: cell by cell, what came back, what failed, and what was not safe to repeat."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

from kernelexec.results.result import plain_json

#: What became of a cell: run again and ended as before; run again and failed; not run, since it is not safe to repeat;
#: not run, since it had not ended by itself; not run, since it never was; not run, its variables come from a snapshot;
#: not run, since the replay ended before it.
Outcome = Literal["repeated", "failed", "unsafe", "unfinished", "skipped", "restored", "not_reached"]
_GOOD = frozenset({"repeated", "restored", "skipped"})
_WORDS: dict[Outcome, str] = {
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
    """One cell of the replay: its number from 1 on, the beginning of its source, and what became of it.

    ``execution_id`` is that of its execution in the new session, where it was run; ``seconds`` is how long that took.
    """

    number: int
    head: str
    outcome: Outcome
    why: str | None = None
    execution_id: str | None = None
    seconds: float | None = None

    def __str__(self) -> str:
        """One line for a reader."""
        return f"cell {self.number} {self.outcome}: {self.why or 'as before'} | {self.head}"


@dataclass(frozen=True, slots=True)
class Replay:
    """What came back of an earlier session.

    ``names`` are those of its variables that are there again; ``missing`` those that cells which did not come back would
    have made. ``state_lost`` says that a cell ended the kernel: it stopped the replay, and nothing from before it is left.
    """

    source: str
    cells: tuple[ReplayedCell, ...]
    names: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    state_lost: bool = False
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether all came back: every cell that had run was repeated, or its variables were restored."""
        return not self.state_lost and not self.missing and all(cell.outcome in _GOOD for cell in self.cells)

    @property
    def counts(self) -> dict[Outcome, int]:
        """How many cells there are of each outcome."""
        return dict(Counter(cell.outcome for cell in self.cells))

    def __str__(self) -> str:
        """A few lines for a person or a model: the sum, each cell that did not come back as it was, the names."""
        counts = self.counts
        parts = [f"{counts[outcome]} {words}" for outcome, words in _WORDS.items() if outcome in counts]
        lines = [f"Replay of {self.source}: {len(self.cells)} cells: {', '.join(parts) or 'nothing to run'}."]
        told = [cell for cell in self.cells if cell.why is not None]
        lines += [str(cell) for cell in told[:_LISTED_CELLS]]
        if len(told) > _LISTED_CELLS:
            lines.append(f"... and {len(told) - _LISTED_CELLS} cells more.")
        if self.state_lost:
            lines.append("The state was lost: the kernel is a new one, without any variable.")
        lines += [f"{title}: {_list(names)}." for title, names in (("Back", self.names), ("Missing", self.missing)) if names]
        return "\n".join([*lines, *self.notes])

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON types only."""
        return {**plain_json(self), "ok": self.ok, "counts": dict(self.counts)}


def _list(names: tuple[str, ...]) -> str:
    more = len(names) - _LISTED_NAMES
    return ", ".join(names[:_LISTED_NAMES]) + (f" and {more} more" if more > 0 else "")
