"""The words of test cases: each verdict with what it rests on, and all of them together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from kernelexec.results.result import plain_json

TestVerdict = Literal["PASS", "FAIL", "ERROR"]


@dataclass(frozen=True, slots=True)
class TestCase:
    """One test case, and how it ended: ``FAIL`` if it does not hold, ``ERROR`` if that could not be told.

    ``message`` says why, cut after 2,000 characters. ``line`` and ``line_text`` are where it ended, in the case's own source
    or, with ``in_code``, in the code under test; ``output`` is the beginning of what it printed, 16 KiB at most;
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
class TestReport:
    """What came of some code's test cases.

    Where the code itself failed, ``error`` is its own ``ERROR``, and no case was run: each is one too. ``output`` is the
    beginning of what the code printed.
    """

    __test__ = False

    code: str
    cases: tuple[TestCase, ...] = ()
    error: TestCase | None = None
    output: str = ""

    def count(self, verdict: TestVerdict) -> int:
        """How many cases ended so."""
        return sum(case.verdict == verdict for case in self.cases)

    @property
    def ok(self) -> bool:
        """Whether all cases hold."""
        return self.error is None and self.count("PASS") == len(self.cases)

    @property
    def summary(self) -> str:
        """The counts, in words."""
        counts = ((verdict, self.count(verdict)) for verdict in ("PASS", "FAIL", "ERROR"))
        return ", ".join(f"{count} {verdict}" for verdict, count in counts if count or verdict == "PASS")

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON types only."""
        plain: dict[str, Any] = plain_json(self)
        return plain
