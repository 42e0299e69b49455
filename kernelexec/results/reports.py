"""Reports on several runs: the cells of a replay, the attempts of ``execute_with_retry``, the cases of a test."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

from kernelexec.results.json_values import JsonConvertible, to_plain_json
from kernelexec.results.one_line import join_names
from kernelexec.results.result import ExecutionResult

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
#: The default timeout of a case, in seconds.
CASE_SECONDS = 10.0
TestVerdict = Literal["PASS", "FAIL", "ERROR"]


@dataclass(frozen=True, slots=True)
class ReplayedCell:
    """A cell of a replay: number from 1, head of the source, and outcome.

    If the cell was run, ``execution_id`` is the execution in the new session, and ``seconds`` the duration.
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

    ``names`` are the restored variables; ``missing`` are variables of cells without a successful replay. ``state_lost`` means
    that a cell ended the kernel: the replay stopped there, and all earlier state is gone.
    """

    source: str
    cells: tuple[ReplayedCell, ...]
    names: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    state_lost: bool = False
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every cell that ran before was repeated, or has its variables restored."""
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


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt, counted from 1. ``kernel_restarted`` means that the attempt had a new kernel, or its kernel was replaced."""

    attempt: int
    code: str
    result: ExecutionResult
    kernel_restarted: bool = False

    @property
    def success(self) -> bool:
        """Whether the cell's status is ``ok``."""
        return self.result.ok

    @property
    def error(self) -> str | None:
        """The failure in one line; None after a success."""
        diagnosis = self.result.diagnosis
        if self.success:
            return None
        return self.result.status if diagnosis is None else f"{diagnosis.kind}: {diagnosis.message}"

    def to_dict(self) -> dict[str, Any]:
        """Return the attempt as JSON types, with the output as text (``result``) or the failure (``error``)."""
        outcome = {"result": self.result.text} if self.success else {"error": self.error}
        diagnosis = to_plain_json(self.result.diagnosis)
        fields = {"attempt": self.attempt, "success": self.success, **outcome, "code": self.code, "diagnosis": diagnosis}
        return {**fields, "duration": self.result.timing.wall, "kernel_restarted": self.kernel_restarted}


@dataclass(frozen=True, slots=True)
class Attempts:
    """All attempts of an ``execute_with_retry`` in order, at least one."""

    attempts: tuple[Attempt, ...]

    @property
    def result(self) -> ExecutionResult:
        """The result of the last attempt."""
        return self.attempts[-1].result

    @property
    def success(self) -> bool:
        """Whether the last attempt succeeded."""
        return self.attempts[-1].success

    @property
    def history(self) -> list[dict[str, Any]]:
        """All attempts as JSON types."""
        return [attempt.to_dict() for attempt in self.attempts]


@dataclass(frozen=True, slots=True)
class TestCase:
    """A test case with its verdict: ``FAIL`` if an assertion does not hold, ``ERROR`` if the case could not be decided.

    ``message`` is the reason, at most 2,000 characters. ``line`` and ``line_text`` are the last executed line, in the case's
    own source or, with ``in_code``, in the code under test. ``output`` is the head of the output, at most 16 KiB.
    ``duration`` is in seconds.
    """

    __test__ = False  # pytest looks for classes of such a name

    source: str
    verdict: TestVerdict
    message: str = ""
    line: int | None = None
    line_text: str | None = None
    in_code: bool = False
    output: str = ""
    duration: float = 0.0


@dataclass(frozen=True, slots=True)
class TestReport(JsonConvertible):
    """The report of the test cases of some code.

    If the code itself failed, ``error`` is the code's ``ERROR``, no case was run, and each case is an ``ERROR`` too. ``output``
    is the head of the code's output.
    """

    __test__ = False

    code: str
    cases: tuple[TestCase, ...] = ()
    error: TestCase | None = None
    output: str = ""

    def count(self, verdict: TestVerdict) -> int:
        """Return the number of cases with a verdict."""
        return sum(case.verdict == verdict for case in self.cases)

    @property
    def ok(self) -> bool:
        """Whether all cases passed."""
        return self.error is None and self.count("PASS") == len(self.cases)

    @property
    def summary(self) -> str:
        """The counts as text."""
        counts = ((verdict, self.count(verdict)) for verdict in ("PASS", "FAIL", "ERROR"))
        return ", ".join(f"{count} {verdict}" for verdict, count in counts if count or verdict == "PASS")
