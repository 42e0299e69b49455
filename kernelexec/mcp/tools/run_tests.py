"""The tool that tests code apart from its session."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, cast

from fastmcp import Context

from kernelexec.mcp.calls.sessions import Calls
from kernelexec.mcp.content.answers import fitted, preview
from kernelexec.mcp.tools.code import SessionName, refusing
from kernelexec.mcp.tools.descriptions import PREVIEW_CHARS
from kernelexec.results import SecurityError, TestCase, TestReport
from kernelexec.session.features.run_tests import CASE_SECONDS

_SHOWN = "print less"


@dataclass(frozen=True, slots=True)
class CaseAnswer:
    """One case: PASS, FAIL or ERROR, and why; the line is one of the case, or of the code where in_code says so."""

    case: str
    verdict: str
    message: str
    line: int | None
    line_text: str | None
    in_code: bool
    output: str
    duration: float


@dataclass(frozen=True, slots=True)
class TestsAnswer:
    """All cases, and how many ended how; error is the code's own, where it failed and no case was run."""

    __test__ = False  # pytest looks for classes of such a name

    ok: bool
    summary: str
    error: CaseAnswer | None
    output: str
    cases: list[CaseAnswer]


class Testing:
    """The tool, for one executor's sessions."""

    __test__ = False

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def run_tests(
        self,
        context: Context,
        cases: Annotated[list[str], "Expressions that must be true, or statements with assert. 1 to 200."],
        code: Annotated[str, "Code that defines what is tested; empty to test what the session has."] = "",
        timeout: Annotated[float, "Seconds that the code, and each case, may take."] = CASE_SECONDS,
        session: SessionName = "default",
    ) -> TestsAnswer:
        """Test something."""
        asking = self._calls.asking(context)
        with refusing():
            opened = await self._calls.session(session)
            try:
                report = await opened.run_tests(code, cases, timeout=timeout, approver=asking)
                return fitted(partial(_answer, report), PREVIEW_CHARS)
            except SecurityError:
                if asking.needed is None:
                    raise
        return cast("TestsAnswer", asking.needed)  # fastmcp hands it on as it is; the schema is of the other answers


def _answer(report: TestReport, chars: int) -> TestsAnswer:
    error = None if report.error is None else _case(report.error, chars)
    output = preview(report.output, _SHOWN, chars=chars)
    return TestsAnswer(report.ok, report.summary, error, output, [_case(case, chars) for case in report.cases])


def _case(case: TestCase, chars: int) -> CaseAnswer:
    source = preview(case.source, "as it was sent", chars=chars)
    message, output = preview(case.message, "say less", chars=chars), preview(case.output, _SHOWN, chars=chars)
    line_text = case.line_text and preview(case.line_text, "as it was sent", chars=chars)
    where = case.line, line_text, case.in_code
    return CaseAnswer(source, case.verdict, message, *where, output, round(case.duration, 3))
