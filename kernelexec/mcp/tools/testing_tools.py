"""Tool that runs test cases in processes of their own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, cast

from fastmcp import Context

from kernelexec.mcp.answers import PREVIEW_CHARS, fit_answer, preview
from kernelexec.mcp.calls.sessions import SessionService
from kernelexec.mcp.tools.code_tools import report_errors
from kernelexec.results import SecurityError, TestCase, TestReport
from kernelexec.results.reports import CASE_SECONDS

_SHORTER_OUTPUT = "print less"


@dataclass(frozen=True, slots=True)
class CaseAnswer:
    """Result of a case: PASS, FAIL or ERROR, with a message; the line is of the case, or of the code if in_code."""

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
    """Results of all cases with a summary; error is set if the code itself failed and no case ran."""

    __test__ = False  # pytest would collect a class of this name

    ok: bool
    summary: str
    error: CaseAnswer | None
    output: str
    cases: list[CaseAnswer]


class TestingTools:
    """Tool that runs test cases."""

    __test__ = False  # as above

    def __init__(self, sessions: SessionService) -> None:
        self._sessions = sessions

    async def run_tests(
        self,
        context: Context,
        cases: Annotated[list[str], "Expressions that must be true, or statements with assert. 1 to 200."],
        code: Annotated[str, "Code to test; empty to test the session's variables."] = "",
        timeout: Annotated[float, "Seconds for the code and for each case."] = CASE_SECONDS,
        session: str = "default",
    ) -> TestsAnswer:
        """Run test cases."""
        elicitation = self._sessions.make_elicitation(context)
        with report_errors():
            opened = await self._sessions.get_session(session, elicitation)
            try:
                async with elicitation.report_while("the cases run", self._sessions.interval):
                    report = await opened.run_tests(code, cases, timeout=timeout, approver=elicitation)
                return fit_answer(partial(_make_answer, report), PREVIEW_CHARS)
            except SecurityError:
                if elicitation.input_required is None:
                    raise
        return cast("TestsAnswer", elicitation.input_required)  # fastmcp passes it on; the schema is for other answers


def _make_answer(report: TestReport, chars: int) -> TestsAnswer:
    error = None if report.error is None else _make_case(report.error, chars)
    output = preview(report.output, _SHORTER_OUTPUT, chars=chars)
    return TestsAnswer(report.ok, report.summary, error, output, [_make_case(case, chars) for case in report.cases])


def _make_case(case: TestCase, chars: int) -> CaseAnswer:
    source = preview(case.source, "the text as you sent it", chars=chars)
    message, output = (
        preview(case.message, "shorten the message", chars=chars),
        preview(case.output, _SHORTER_OUTPUT, chars=chars),
    )
    line_text = case.line_text and preview(case.line_text, "the text as you sent it", chars=chars)
    where = case.line, line_text, case.in_code
    return CaseAnswer(source, case.verdict, message, *where, output, round(case.duration, 3))
