"""The outcomes of test cases, and their report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kernelexec.results.json_values import JsonConvertible

#: The seconds that one case may take by default.
CASE_SECONDS = 10.0
TestVerdict = Literal["PASS", "FAIL", "ERROR"]


@dataclass(frozen=True, slots=True)
class TestCase:
    """One test case with its verdict: ``FAIL`` if an assertion does not hold, ``ERROR`` if the case could not be decided.

    ``message`` is the reason, at most 2,000 characters. ``line`` and ``line_text`` are the last line that ran, in the case's
    own source or, with ``in_code``, in the code under test; ``output`` is the head of its output, at most 16 KiB;
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

    If the code itself failed, ``error`` is its ``ERROR``, no case was run, and each case is an ``ERROR`` too. ``output`` is
    the head of the code's output.
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
