"""Test cases, each in a forked process of its own, so that the session's variables stay as they are.

The kernel forks a watcher, which runs no user code. The watcher forks the runner. The runner runs the code under test and forks
a process for each case when the watcher asks for it. The watcher keeps the time limits and adopts all orphans.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from warnings import catch_warnings, simplefilter

from .. import platform
from ..processes import tree
from ..processes.child_watcher import OwnerGone, WatchedChild
from .assertions import CaseRunner, CaseVerdict
from .pristine_modules import ModuleNames, PristineModules, reinstate_changes, restore_originals

#: Limits in bytes: the output of a case, the runner's reports, and the watcher's report of one case.
_OUTPUT_BYTES, _RUNNER_REPORT_BYTES, _REPORT_BYTES = 16 * 1024, 64 * 1024, 256 * 1024
#: Seconds: to start and end a process, beside its limit; to wait for ended processes; between two looks at them.
_SLACK_SECONDS, _END_SECONDS, _PAUSE_SECONDS = 5.0, 2.0, 0.002
#: Variable with a mark in the environment of the watcher and all its descendants.
_MARK = "KERNELEXEC_TESTS"
_MISSING = CaseVerdict("ERROR", "It was not run.").as_dict()
_ITS_PROCESS = "It ended its process"
_ENCODE = json.JSONEncoder().encode


@dataclass(frozen=True)
class TestPlan:
    """The code under test, its cases, and the limit in seconds of the code and of each case."""

    code: str
    cases: list[str]
    seconds: float
    shell: Any
    user_names: ModuleNames


def run(code: str, cases: list[str], seconds: float, shell: Any) -> dict[str, Any]:
    """Run the code and then each case, with a limit in seconds for each.

    The result has ``error``, the verdict of failed code or None, ``output``, the text that the code printed, and ``cases``.
    """
    user_names = restore_originals()
    try:
        return _run_in_watcher(TestPlan(code, cases, seconds, shell, user_names))
    finally:
        reinstate_changes(user_names)


def _run_in_watcher(tests: TestPlan) -> dict[str, Any]:
    """Fork the watcher and return its report. Runs in the kernel."""
    report_pipe, owner, mark, count = os.pipe(), os.pipe(), secrets.token_hex(16), len(tests.cases)

    def work() -> None:
        for fd in (report_pipe[0], owner[1]):
            os.close(fd)
        os.environ[_MARK] = mark
        _run_watcher(tests, owner[0], report_pipe[1])

    pid = _fork(work)
    for fd in (report_pipe[1], owner[0]):
        os.close(fd)
    watched = WatchedChild(pid, {"reports": (report_pipe[0], _REPORT_BYTES * (count + 2))})
    try:
        over = not watched.watch((tests.seconds + _SLACK_SECONDS) * (count + 1))
    finally:
        os.close(owner[1])  # the watcher ends when this pipe is closed
        try:
            watched.watch(_END_SECONDS)
        finally:
            watched.end()
            tree.kill_marked(_MARK, mark)
    reports = watched.lines()
    error, *results = reports or [_describe_end(watched.exit_code, over=tests.seconds if over else None)]
    cases = [*results[:count], *[_MISSING] * (count - len(results))]
    return {"error": error, "output": results[count] if len(results) > count else "", "cases": cases}


def _run_watcher(tests: TestPlan, owner: int, report_fd: int) -> None:
    """Start the runner, report each verdict, and end all descendants. Runs in the watcher."""
    tree.adopt_orphans()
    runner = RunnerProcess(tests, signal.signal(signal.SIGCHLD, signal.SIG_DFL), owner, report_fd)
    try:
        with suppress(OwnerGone):
            error = runner.run_code()
            _write_report(report_fd, error)
            for number in range(1, len(tests.cases) + 1):
                _write_report(report_fd, _MISSING if error or runner.has_ended() else runner.run_case(number))
            _write_report(report_fd, _decode(runner.received["output"]))
    finally:
        runner.end()
        _end_descendants()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _serve_cases(tests: TestPlan, report_fd: int, shown: int, orders: int) -> None:
    """Run the code in this process, and each case in a forked one when the watcher asks for it. Runs in the runner."""
    asyncio._set_running_loop(None)  # noqa: SLF001 - the running loop is the kernel's, not this process's; as of Python 3.14
    modules = PristineModules(tests.user_names)
    runner = CaseRunner(tests.shell, modules)
    verdict = runner.run_code(tests.code)
    with suppress(BaseException):
        sys.stdout.flush()
    modules.exit_if_forked()
    _write_report(report_fd, {"case": 0, **verdict.as_dict()})
    before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # the code may have set a timer

    def work(number: int, source: str) -> None:
        modules.adopt_process()
        os.close(orders)
        _write_report(report_fd, {"case": number, "pid": os.getpid()})
        _handle_children(before)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        verdict = runner.run_case(source, f"<case {number}>")
        modules.exit_if_forked()
        _write_report(report_fd, {"case": number, **verdict.as_dict()})

    for number, source in enumerate(tests.cases, 1):
        if not os.read(orders, 1):
            break
        _write_report(report_fd, {"case": number, "ended": _wait_for(_fork(partial(work, number, source), shown))})


def _handle_children(handler: Any) -> None:
    if handler is not None:  # None: the handler was not set by Python
        signal.signal(signal.SIGCHLD, handler)


def _wait_for(pid: int) -> int | None:
    """Wait for a child and return its exit code; None if a thread of user code has waited for it."""
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return None


def _end_descendants(spared: frozenset[int] = frozenset()) -> None:
    """Kill the descendants of this process, adopted orphans included, except spared ones."""
    deadline = time.monotonic() + _END_SECONDS
    while tree.find_descendants(os.getpid()) - spared and time.monotonic() < deadline:
        tree.kill_others(spared)
        time.sleep(_PAUSE_SECONDS)  # the system reports no end of a process that is not a child


def _fork(work: Callable[[], None], output: int | None = None) -> int:
    """Fork a process that calls ``work`` and ends. It has no stdin; its output and its children's go to ``output``."""
    with catch_warnings():
        simplefilter("ignore", DeprecationWarning)  # the child has no other threads, and waits for none
        pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if output is not None:
            _redirect(output)
        work()
        code = 0
    finally:
        with suppress(BaseException):
            sys.stdout.flush()
        os._exit(code)


def _redirect(output: int) -> None:
    none = os.open(os.devnull, os.O_RDONLY)
    for fd, stream in ((none, 0), (output, 1), (output, 2)):
        os.dup2(fd, stream)
    os.close(none)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - to the end of the process
    sys.stdout = sys.stderr = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), "utf-8", "replace", write_through=True)


def _write_report(fd: int, report: Any) -> None:
    text, sent = f"{_ENCODE(report)}\n".encode(), 0
    while sent < len(text):
        sent += os.write(fd, text[sent:])


class RunnerProcess(WatchedChild):
    """The process that runs the code and forks one for each case."""

    def __init__(self, tests: TestPlan, handler: Any, *closed: int) -> None:
        """Fork the runner, with a handler of SIGCHLD and without the ``closed`` descriptors; the first is the owner's."""
        report_pipe, output, shown, orders = (os.pipe() for _ in range(4))
        own_ends, child_ends = (
            (report_pipe[0], output[0], shown[0], orders[1]),
            (report_pipe[1], output[1], shown[1], orders[0]),
        )

        def work() -> None:
            for fd in (*own_ends, *closed, output[1]):
                os.close(fd)
            _handle_children(handler)
            _serve_cases(tests, report_pipe[1], shown[1], orders[0])

        pid = _fork(work, output[1])
        for fd in child_ends:
            os.close(fd)
        room = {
            "reports": (report_pipe[0], _RUNNER_REPORT_BYTES),
            "output": (output[0], _OUTPUT_BYTES),
            "shown": (shown[0], _OUTPUT_BYTES),
        }
        super().__init__(pid, room, closed[0])
        self._orders, self._seconds = orders[1], tests.seconds

    def run_code(self) -> dict[str, Any] | None:
        """Wait for the code; return its verdict if it failed."""
        over = not self.watch(self._seconds, lambda: "verdict" in self._collect_report(0))
        self.drain()
        verdict = _parse_verdict(self._collect_report(0)) or _describe_end(self.exit_code, over=self._seconds if over else None)
        return None if verdict["verdict"] == "PASS" else verdict

    def run_case(self, number: int) -> dict[str, Any]:
        """Run a case, and end all processes that it started."""
        spared, began = frozenset(tree.find_descendants(os.getpid())), time.monotonic()
        for name in ("reports", "shown"):
            self.received[name].clear()
        with suppress(BrokenPipeError):  # it has just ended
            os.write(self._orders, b"\n")
        over = not self.watch(self._seconds, lambda: "ended" in self._collect_report(number))
        _end_descendants(spared)
        if over and not platform.PLATFORM.adopts_orphans and isinstance(pid := self._collect_report(number).get("pid"), int):
            with suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
        if over:
            self.watch(_END_SECONDS, lambda: "ended" in self._collect_report(number))
        self.drain()
        report = self._collect_report(number)
        lost = not over and "ended" not in report
        code, subject = (self.exit_code, "The code's process ended") if lost else (report.get("ended"), _ITS_PROCESS)
        verdict = (None if lost else _parse_verdict(report)) or _describe_end(
            code, subject, over=self._seconds if over else None
        )
        return {**verdict, "seconds": time.monotonic() - began, "output": _decode(self.received["shown"])}

    def end(self) -> None:
        """End the runner, and close the pipe of its orders."""
        super().end()
        os.close(self._orders)

    def _collect_report(self, number: int) -> dict[str, Any]:
        """Return all reports of one case as one; the code has the number 0."""
        report: dict[str, Any] = {}
        for line in self.lines():
            if isinstance(line, dict) and line.get("case") == number:
                report |= line
        return report


def _parse_verdict(report: dict[str, Any]) -> dict[str, Any] | None:
    return {name: report.get(name) for name in vars(CaseVerdict("PASS"))} if "verdict" in report else None


def _describe_end(code: Any, subject: str = _ITS_PROCESS, *, over: float | None = None) -> dict[str, Any]:
    """Return the verdict on a process that ended, or exceeded its limit, without a verdict of its own."""
    if over is not None:
        return CaseVerdict("ERROR", f"It took longer than {over:g} s.").as_dict()
    how = "" if not isinstance(code, int) else f", with exit code {code}" if code >= 0 else f", by {_signal_name(-code)}"
    return CaseVerdict("ERROR", f"{subject}{how}.").as_dict()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time one
        return f"signal {number}"


def _decode(printed: bytearray) -> str:
    return printed.decode("utf-8", "replace")
