"""Trials of code: repeated runs of a cell until it succeeds, and test cases in processes of their own.

Between two tries the caller fixes the code, and the session's variables can be restored. Test cases do not change them.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal

import anyio.to_thread

from kernelexec import cells
from kernelexec.cells import CodeCell
from kernelexec.config import check_seconds
from kernelexec.errors import InvalidRequest, did_you_mean
from kernelexec.events import TestsRun
from kernelexec.launcher import protocol
from kernelexec.results import Attempt, Attempts, ExecutionResult, TestCase, TestReport
from kernelexec.results.json_values import is_count, read_list, read_seconds, read_text
from kernelexec.results.reports import CASE_SECONDS
from kernelexec.rules.policy.decisions import Approver
from kernelexec.session.context import SessionContext, check_whole_number
from kernelexec.session.features.saved_state.snapshots import VariableSnapshots

#: A function that returns the code of the next try from all tries so far, or None to give up.
Fix = Callable[[Attempts], str | Awaitable[str | None] | None]
Between = Literal["keep", "restore", "restart"]

_BETWEEN = ("keep", "restore", "restart")
RETRIES, RETRIES_MAX = 3, 100
CASES_MAX = 200
#: The seconds in addition to its limit that the start and end of one case may take.
_SLACK_SECONDS = 6.0
_TEXT_CHARS, _OUTPUT_CHARS = 4000, 16 * 1024


async def run_with_retry(
    run: Callable[[str], Awaitable[ExecutionResult]],
    restart: Callable[[], Awaitable[None]],
    snapshots: VariableSnapshots,
    code: str,
    fix: Fix | None,
    max_retries: int,
    between: Between,
) -> Attempts:
    """Run a cell until it succeeds; see ``AsyncSession.execute_with_retry``. ``restart`` replaces the session's kernels."""
    if fix is not None and not callable(fix):
        raise InvalidRequest(f"fix={fix!r:.100} must be a function of the attempts so far.")
    check_whole_number(max_retries, "max_retries", "the number of all tries", 1, RETRIES_MAX)
    if between not in _BETWEEN:
        near = did_you_mean(str(between), _BETWEEN)
        raise InvalidRequest(f"between={between!r:.100}{near} must be one of {', '.join(_BETWEEN)}.")
    before = await snapshots.snapshot() if between == "restore" else None
    attempts: list[Attempt] = []
    while True:
        result = await run(code)
        is_other_kernel = bool(attempts and attempts[-1].result.kernel_epoch != result.kernel_epoch)
        restarted = result.state == "lost" or (is_other_kernel and result.state != "restored")
        attempts.append(Attempt(len(attempts) + 1, code, result, restarted))
        report = Attempts(tuple(attempts))
        if result.ok or len(attempts) == max_retries:
            return report
        next_code = code if fix is None else await _call_fix(fix, report)
        if next_code is None:
            return report
        code = next_code
        if between == "restart":
            await restart()
        elif before is not None:
            await snapshots.restore(before)


async def _call_fix(fix: Fix, attempts: Attempts) -> str | None:
    """Return the next try's code from the caller's function; raise ``InvalidRequest`` unless it is text or None."""
    code: Any = fix(attempts) if inspect.iscoroutinefunction(fix) else await anyio.to_thread.run_sync(fix, attempts)
    code = await code if inspect.isawaitable(code) else code
    if code is None or isinstance(code, str):
        return code
    raise InvalidRequest(f"fix returned {code!r:.100}: it must return the source of the next try, or None to give up.")


class CodeTests:
    """The tests of a session's code."""

    def __init__(self, context: SessionContext) -> None:
        self._context = context

    async def run_tests(
        self, code: str, cases: Iterable[str], *, timeout: float = CASE_SECONDS, approver: Approver | None = None
    ) -> TestReport:
        """Run Python code, then each test case after it, in forked processes: they can use the session's variables.

        The code and each case have their own process, forked from the kernel, and end with all their child processes.
        Changes of variables are not kept. All other state is shared: written files remain, open files have a common
        position, shared memory is shared. The tests wait in the queue like a cell; no notebook records them.

        A case is source text. A single expression must be true; None is not, except from a magic or a call of a function whose
        name begins with assert, check, expect, test or verify. In several statements no assertion may fail, and an expression
        at the end must not be False. A command at the end (``!``) must exit with 0. Nothing false may be in
        ``test_results``, a list that is empty at the start of each case; a single expression may just append to it. An exit
        is an error.

        Args:
            code: the definitions under test; may be empty, to test the session's own.
            cases: 1 to 200 cases.
            timeout: seconds that the code, and each case, may take.
            approver: decides about the tests, as in ``execute``.

        Raises:
            InvalidCode, InvalidRequest, InvalidTimeout, QueueFull, Closed: before anything ran.
            SecurityError: the tests were refused; nothing ran.
            ExecutionFailed: the tests were interrupted, or the kernel ended.
        """
        context = self._context
        context.scope.check_open()
        limit = check_seconds(timeout, "timeout")
        texts = _check_texts(code, cases, context.config.capacity.code_bytes)
        case_runs = [context.make_run(CodeCell(text), limit) for text in texts if text.strip()]
        await context.approve(context.make_run(CodeCell("\n\n".join(texts)), limit, approver=approver), case_runs)
        code, *sources = [*([] if texts[0].strip() else [""]), *(case_run.cell.source for case_run in case_runs)]
        call = protocol.run_tests_source(code, sources, limit)
        answer = (await context.call_launcher(call, (limit + _SLACK_SECONDS) * len(texts))).get("tests")
        report = self._build_report(code, sources, answer if isinstance(answer, dict) else {})
        context.dispatch(TestsRun(context.name, report))
        return report

    def _build_report(self, code: str, sources: list[str], answer: dict[str, Any]) -> TestReport:
        """Return a report from the launcher's answer, and check all types."""
        # a case can end the process that answers: missing answers count as errors of their cases
        cases = map(self._build_case, sources, [*read_list(answer.get("cases")), *[{}] * len(sources)])
        error = answer.get("error")
        failed = None if error is None else self._build_case(code, error)
        output = read_text(answer.get("output"), _OUTPUT_CHARS)
        return TestReport(self._context.masking.mask_text(code), tuple(cases), failed, output)

    def _build_case(self, source: str, reply: object) -> TestCase:
        entry = reply if isinstance(reply, dict) else {}
        verdict, line = entry.get("verdict"), entry.get("line")
        return TestCase(
            self._context.masking.mask_text(source),
            verdict if verdict in ("PASS", "FAIL", "ERROR") else "ERROR",
            read_text(entry.get("message"), _TEXT_CHARS),
            line if is_count(line) and line else None,
            read_text(entry.get("line_text"), _TEXT_CHARS) or None,
            entry.get("in_code") is True,
            read_text(entry.get("output"), _OUTPUT_CHARS),
            read_seconds(entry.get("seconds")),
        )


def _check_texts(code: object, cases: object, limit_bytes: int) -> list[str]:
    """Return the code and the cases; raise ``InvalidCode`` or ``InvalidRequest`` if one is not source text."""
    texts = list(cases) if isinstance(cases, Iterable) and not isinstance(cases, str | bytes) else []
    if not 0 < len(texts) <= CASES_MAX:
        raise InvalidRequest(f"cases={cases!r:.100} must be a list of 1 to {CASES_MAX} texts.")
    if not isinstance(code, str) or code.strip():
        cells.check(code, limit_bytes=limit_bytes)
    for number, case in enumerate(texts, 1):
        cells.check(case, limit_bytes=limit_bytes, label=f"case {number}")
    return [code, *texts] if isinstance(code, str) else texts
