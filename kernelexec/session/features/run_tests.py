"""Test cases of a session's code, each in a process of its own: the session's variables stay as they are."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from kernelexec import cells
from kernelexec.cells import CodeCell
from kernelexec.config import seconds
from kernelexec.errors import InvalidRequest
from kernelexec.events import TestsRun
from kernelexec.launcher import protocol
from kernelexec.policy.decisions import Approver
from kernelexec.results import TestCase, TestReport
from kernelexec.session.cells.cell_run import Turn
from kernelexec.session.context import SessionContext
from kernelexec.text import clean_text

CASES_MAX = 200
#: The seconds that one case may take by default.
CASE_SECONDS = 10.0
#: The seconds that starting and ending one case may take beside its limit.
_SLACK_SECONDS = 6.0
_TEXT_CHARS, _OUTPUT_CHARS = 4000, 16 * 1024


class CodeTests:
    """The tests of one session's code."""

    def __init__(self, context: SessionContext) -> None:
        self._context = context

    async def run_tests(
        self, code: str, cases: Iterable[str], *, timeout: float = CASE_SECONDS, approver: Approver | None = None
    ) -> TestReport:
        """Run Python code, then each test case behind it, apart from the session: its variables can be used, and stay.

        The code and each case have a process of their own, forked from the kernel, and end with all processes that they
        started. Apart from variables they share the session's state: files that they write remain, open files have one
        position for all, shared memory is shared. They take the session's turn like a cell; no notebook has them.

        A case is source text. One that is a single expression must be true; None is not, but for a call of a function named
        ``assert...``, ``check...``, ``expect...``, ``test...`` or ``verify...`` (the last part of its name counts), which is
        taken to assert by itself, and for a magic. Of several statements none may fail an assertion, and an expression at the
        end must not be False. A command at the end (``!``) must exit with 0. Whatever else it does, nothing false may be in
        ``test_results``, a list that each case finds empty: a single expression may just append to it. Exiting is an error.

        Args:
            code: defines the tested names; may be empty, to test the session's own.
            cases: 1 to 200 of them.
            timeout: seconds that the code, and each case, may take.
            approver: as of ``execute``.

        Raises:
            InvalidCode, InvalidRequest, InvalidTimeout, QueueFull, Closed: before anything ran.
            SecurityError: it was refused; nothing ran.
            ExecutionFailed: it was interrupted, or the kernel ended, before it was done.
        """
        context = self._context
        context.scope.check_open()
        limit = seconds(timeout, "timeout")
        texts = _texts(code, cases, context.config.capacity.code_bytes)
        parts = [Turn(CodeCell(text), timeout=limit, isolation=context.isolation) for text in texts if text.strip()]
        whole = Turn(CodeCell("\n\n".join(texts)), timeout=limit, isolation=context.isolation, approver=approver)
        whole.shown = context.masking.cell(whole.cell)
        if (reason := await context.approval.check(whole, parts)) is not None:
            raise context.masking.security_error(whole, context.kernels.python.epoch, reason)
        code, *sources = [*([] if texts[0].strip() else [""]), *(part.cell.source for part in parts)]
        call = protocol.run_tests_source(code, sources, limit)
        answer = (await context.call_launcher(call, (limit + _SLACK_SECONDS) * len(texts))).get("tests")
        report = self._report(code, sources, answer if isinstance(answer, dict) else {})
        context.dispatch(TestsRun(context.name, report))
        return report

    def _report(self, code: str, sources: list[str], answer: dict[str, Any]) -> TestReport:
        """Return a report from the launcher's answer, of which every type is checked."""
        listed, error = answer.get("cases"), answer.get("error")
        entries = [entry if isinstance(entry, dict) else {} for entry in (listed if isinstance(listed, list) else [])]
        cases = (self._case(source, entry) for source, entry in zip(sources, [*entries, *[{}] * len(sources)], strict=False))
        failed = None if error is None else self._case(code, error if isinstance(error, dict) else {})
        return TestReport(self._context.masking.text(code), tuple(cases), failed, _text(answer.get("output"), _OUTPUT_CHARS))

    def _case(self, source: str, entry: dict[str, Any]) -> TestCase:
        verdict, line, duration = entry.get("verdict"), entry.get("line"), entry.get("seconds")
        return TestCase(
            self._context.masking.text(source),
            verdict if verdict in ("PASS", "FAIL", "ERROR") else "ERROR",
            _text(entry.get("message")),
            line if isinstance(line, int) and 0 < line < 2**31 else None,
            _text(entry.get("line_text")) or None,
            entry.get("in_code") is True,
            _text(entry.get("output"), _OUTPUT_CHARS),
            float(duration) if isinstance(duration, int | float) and math.isfinite(duration) and duration >= 0 else 0.0,
        )


def _texts(code: object, cases: object, limit_bytes: int) -> list[str]:
    """Return the code and the cases.

    Raises:
        InvalidCode, InvalidRequest: one of them is none.
    """
    texts = list(cases) if isinstance(cases, Iterable) and not isinstance(cases, str | bytes) else []
    if not 0 < len(texts) <= CASES_MAX:
        message = f"cases={cases!r:.100} must be a list of 1 to {CASES_MAX} texts."
        raise InvalidRequest(message)
    if not isinstance(code, str) or code.strip():
        cells.check(code, limit_bytes=limit_bytes)
    for number, case in enumerate(texts, 1):
        cells.check(case, limit_bytes=limit_bytes, what=f"case {number}")
    return [code, *texts] if isinstance(code, str) else texts


def _text(value: object, limit: int = _TEXT_CHARS) -> str:
    return clean_text(value)[:limit] if isinstance(value, str) else ""
