"""Test cases of a session's code, each in a process of its own: what they do, the session's variables do not see."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from kernelexec import cells
from kernelexec.cells import CodeCell
from kernelexec.config import Config, seconds
from kernelexec.errors import InvalidRequest
from kernelexec.events import Event, TestsRun
from kernelexec.launcher import protocol
from kernelexec.policy.decisions import Approver
from kernelexec.results import TestCase, TestReport
from kernelexec.session.cells.approval import Permission
from kernelexec.session.cells.cell_run import Turn
from kernelexec.session.cells.masking import Secrecy
from kernelexec.session.kernels.supervisor import Keeper
from kernelexec.session.lifecycle import Life
from kernelexec.text import clean_text

CASES_MAX = 200
#: What one may take by default, in seconds.
CASE_SECONDS = 10.0
#: What starting and ending one case may take beside its limit, in seconds.
_SLACK_SECONDS = 6.0
#: Whatever the session's cells call so by now.
_TEXT_CHARS, _OUTPUT_CHARS = 4000, 16 * 1024


class Testing(Secrecy):
    """The part of a session that tests code."""

    __test__ = False  # pytest looks for classes of such a name

    name: str
    isolation: str
    life: Life
    _config: Config
    _keeper: Keeper
    _permission: Permission
    _have: Callable[[str, float | None], Any]
    _tell: Callable[[Event], None]

    async def run_tests(
        self, code: str, cases: Iterable[str], *, timeout: float = CASE_SECONDS, approver: Approver | None = None
    ) -> TestReport:
        """Run Python code, then each test case behind it, apart from the session: its variables can be used, and stay.

        The code and each case have a process of their own, forked from the kernel, and end with all that they started. What
        is not a variable is the session's own: files that they write remain, open files have one position for all, and memory
        that is shared between processes is. They take the session's turn like a cell; no notebook has them.

        A case is source text. One that is a single expression must be true; None is not, but for a call of what is named
        ``assert...``, ``check...``, ``expect...``, ``test...`` or ``verify...`` (the last part of its name counts), which is
        taken to assert by itself, and for a magic. Of several statements none may fail an assertion, and an expression at the
        end must not be False. A command at the end (``!``) must exit with 0. Whatever else it does, nothing false may be in
        ``test_results``, a list that each case finds empty: a single expression may just append to it. Exiting is an error.

        Args:
            code: defines what is tested; may be empty, to test what the session has.
            cases: 1 to 200 of them.
            timeout: seconds that the code, and each case, may take.
            approver: as of ``execute``.

        Raises:
            InvalidCode, InvalidRequest, InvalidTimeout, QueueFull, Closed: before anything ran.
            SecurityError: it was refused; nothing ran.
            ExecutionFailed: it was interrupted, or the kernel ended, before it was done.
        """
        self.life.check_open()
        limit = seconds(timeout, "timeout")
        texts = _texts(code, cases, self._config.capacity.code_bytes)
        parts = [Turn(CodeCell(text), timeout=limit, isolation=self.isolation) for text in texts if text.strip()]
        whole = Turn(CodeCell("\n\n".join(texts)), timeout=limit, isolation=self.isolation, approver=approver)
        whole.shown = self._masked_cell(whole.cell)
        if (why := await self._permission.refused_together(whole, parts)) is not None:
            raise self._denied(whole, self._keeper.epoch, why)
        code, *chosen = [*([] if texts[0].strip() else [""]), *(part.cell.source for part in parts)]
        request = protocol.run_tests_source(code, chosen, limit)
        answer = (await self._have(request, (limit + _SLACK_SECONDS) * len(texts))).get("tests")
        report = self._report(code, chosen, answer if isinstance(answer, dict) else {})
        self._tell(TestsRun(self.name, report))
        return report

    def _report(self, code: str, cases: list[str], answer: dict[str, Any]) -> TestReport:
        """What the launcher said, of which nothing is believed but its types."""
        told, error = answer.get("cases"), answer.get("error")
        found = [one if isinstance(one, dict) else {} for one in (told if isinstance(told, list) else [])]
        tested = (self._case(case, said) for case, said in zip(cases, [*found, *[{}] * len(cases)], strict=False))
        failed = None if error is None else self._case(code, error if isinstance(error, dict) else {})
        return TestReport(self.mask(code), tuple(tested), failed, _text(answer.get("output"), _OUTPUT_CHARS))

    def _case(self, source: str, said: dict[str, Any]) -> TestCase:
        verdict, line, took = said.get("verdict"), said.get("line"), said.get("seconds")
        return TestCase(
            self.mask(source),
            verdict if verdict in ("PASS", "FAIL", "ERROR") else "ERROR",
            _text(said.get("message")),
            line if isinstance(line, int) and 0 < line < 2**31 else None,
            _text(said.get("line_text")) or None,
            said.get("in_code") is True,
            _text(said.get("output"), _OUTPUT_CHARS),
            float(took) if isinstance(took, int | float) and math.isfinite(took) and took >= 0 else 0.0,
        )


def _texts(code: object, cases: object, limit_bytes: int) -> list[str]:
    """The code, and the cases.

    Raises:
        InvalidCode, InvalidRequest: one of them is none.
    """
    found = list(cases) if isinstance(cases, Iterable) and not isinstance(cases, str | bytes) else []
    if not 0 < len(found) <= CASES_MAX:
        message = f"cases={cases!r:.100}: a list of 1 to {CASES_MAX} texts."
        raise InvalidRequest(message)
    if not isinstance(code, str) or code.strip():
        cells.check(code, limit_bytes=limit_bytes)
    for number, case in enumerate(found, 1):
        cells.check(case, limit_bytes=limit_bytes, what=f"case {number}")
    return [code, *found] if isinstance(code, str) else found


def _text(said: object, limit: int = _TEXT_CHARS) -> str:
    return clean_text(said)[:limit] if isinstance(said, str) else ""
