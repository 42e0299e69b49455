"""Test cases, each in a process of its own that is forked for it: whatever one does, the session's variables stay as they are.

The kernel forks a watcher, in which nothing of the user's runs; that one forks the runner, which runs the code under test and,
each time that the watcher says so, forks another process for the next case. The watcher has the clock, and all orphans.
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

#: How much of what a case prints is kept, how much is read of what it tells, and of what is told of it to the kernel.
_OUTPUT_BYTES, _TOLD_BYTES, _REPORT_BYTES = 16 * 1024, 64 * 1024, 256 * 1024
#: In seconds: what starting and ending a process may take beside its limit; how long an end is waited for, at which pace.
_SLACK_SECONDS, _END_SECONDS, _PAUSE_SECONDS = 5.0, 2.0, 0.002
#: In the environment of all that they start.
_MARK = "KERNELEXEC_TESTS"
_MISSING = CaseVerdict("ERROR", "It was not run.").as_dict()
_ITS_PROCESS = "It ended its process"
_ENCODE = json.JSONEncoder().encode


@dataclass(frozen=True)
class TestPlan:
    """What is to be tested; the code and each case may take so many seconds. ``theirs``: see `pristine_modules`."""

    code: str
    cases: list[str]
    seconds: float
    shell: Any
    theirs: ModuleNames


def run(code: str, cases: list[str], seconds: float, shell: Any) -> dict[str, Any]:
    """Run the code, and each case after it; each may take so many seconds.

    What came of it: ``error``, a verdict of the code where it failed, or None; ``output``, what it printed; ``cases``.
    """
    theirs = restore_originals()
    try:
        return _report(TestPlan(code, cases, seconds, shell, theirs))
    finally:
        reinstate_changes(theirs)


def _report(tests: TestPlan) -> dict[str, Any]:
    """Have it done, and hear of it; called in the kernel."""
    report_pipe, owner, mark, count = os.pipe(), os.pipe(), secrets.token_hex(16), len(tests.cases)

    def work() -> None:
        for fd in (report_pipe[0], owner[1]):
            os.close(fd)
        os.environ[_MARK] = mark
        _watch_over(tests, owner[0], report_pipe[1])

    pid = _forked(work)
    for fd in (report_pipe[1], owner[0]):
        os.close(fd)
    watched = WatchedChild(pid, {"told": (report_pipe[0], _REPORT_BYTES * (count + 2))})
    try:
        over = not watched.watch((tests.seconds + _SLACK_SECONDS) * (count + 1))
    finally:
        os.close(owner[1])  # which it takes for the word to end
        try:
            watched.watch(_END_SECONDS)
        finally:
            watched.end()
            tree.kill_marked(_MARK, mark)
    reports = watched.lines()
    error, *results = reports or [_ended(watched.exit_code, over=tests.seconds if over else None)]
    cases = [*results[:count], *[_MISSING] * (count - len(results))]
    return {"error": error, "output": results[count] if len(results) > count else "", "cases": cases}


def _watch_over(tests: TestPlan, owner: int, report_fd: int) -> None:
    """Have the code and the cases run, tell of each, and leave nothing of them; called in the watcher."""
    tree.adopt_orphans()
    runner = RunnerProcess(tests, signal.signal(signal.SIGCHLD, signal.SIG_DFL), owner, report_fd)
    try:
        with suppress(OwnerGone):
            error = runner.result_of_code()
            _tell(report_fd, error)
            for number in range(1, len(tests.cases) + 1):
                _tell(report_fd, _MISSING if error or runner.has_ended() else runner.result_of_case(number))
            _tell(report_fd, _text(runner.kept["output"]))
    finally:
        runner.end()
        _end_descendants()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _serve(tests: TestPlan, report_fd: int, shown: int, orders: int) -> None:
    """Run the code in this process, and each case in another when the watcher says so; called in the runner."""
    asyncio._set_running_loop(None)  # noqa: SLF001 - that of the kernel, which this process is not; as of Python 3.14
    modules = PristineModules(tests.theirs)
    judge = CaseRunner(tests.shell, modules)
    verdict = judge.of_code(tests.code)
    with suppress(BaseException):
        sys.stdout.flush()
    modules.exit_if_forked()
    _tell(report_fd, {"case": 0, **verdict.as_dict()})
    before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # the code may have set a timer

    def work(number: int, source: str) -> None:
        modules.adopt_process()
        os.close(orders)
        _tell(report_fd, {"case": number, "pid": os.getpid()})
        _handle_children(before)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        verdict = judge.of_case(source, f"<case {number}>")
        modules.exit_if_forked()
        _tell(report_fd, {"case": number, **verdict.as_dict()})

    for number, source in enumerate(tests.cases, 1):
        if not os.read(orders, 1):
            break
        _tell(report_fd, {"case": number, "ended": _waited(_forked(partial(work, number, source), shown))})


def _handle_children(handler: Any) -> None:
    if handler is not None:  # one that is not Python's
        signal.signal(signal.SIGCHLD, handler)


def _waited(pid: int) -> int | None:
    """The exit code of a child that has ended by now; None where a thread of the user's has waited for it."""
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return None


def _end_descendants(spared: frozenset[int] = frozenset()) -> None:
    """Leave no descendant of this process but those that are spared; orphans come to this one."""
    deadline = time.monotonic() + _END_SECONDS
    while tree.descendants(os.getpid()) - spared and time.monotonic() < deadline:
        tree.kill_others(spared)
        time.sleep(_PAUSE_SECONDS)  # nobody is told of the end of processes that are not their own children


def _forked(work: Callable[[], None], output: int | None = None) -> int:
    """Have a new process do something and end; it has no stdin, and what it and its children print goes to ``output``."""
    with catch_warnings():
        simplefilter("ignore", DeprecationWarning)  # threads are not taken along, and nothing waits for one
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


def _tell(fd: int, report: Any) -> None:
    text, sent = f"{_ENCODE(report)}\n".encode(), 0
    while sent < len(text):
        sent += os.write(fd, text[sent:])


class RunnerProcess(WatchedChild):
    """The process that runs the code, and forks one for each case."""

    def __init__(self, tests: TestPlan, handler: Any, *closed: int) -> None:
        """Fork it, with a handler for its children's ends and without some descriptors, the first of which is the owner's."""
        report_pipe, output, shown, orders = (os.pipe() for _ in range(4))
        ours, its = (report_pipe[0], output[0], shown[0], orders[1]), (report_pipe[1], output[1], shown[1], orders[0])

        def work() -> None:
            for fd in (*ours, *closed, output[1]):
                os.close(fd)
            _handle_children(handler)
            _serve(tests, report_pipe[1], shown[1], orders[0])

        pid = _forked(work, output[1])
        for fd in its:
            os.close(fd)
        room = {"told": (report_pipe[0], _TOLD_BYTES), "output": (output[0], _OUTPUT_BYTES), "shown": (shown[0], _OUTPUT_BYTES)}
        super().__init__(pid, room, closed[0])
        self._orders, self._seconds = orders[1], tests.seconds

    def result_of_code(self) -> dict[str, Any] | None:
        """The verdict of the code where it failed."""
        over = not self.watch(self._seconds, lambda: "verdict" in self._said(0))
        self.drain()
        verdict = _verdict(self._said(0)) or _ended(self.exit_code, over=self._seconds if over else None)
        return None if verdict["verdict"] == "PASS" else verdict

    def result_of_case(self, number: int) -> dict[str, Any]:
        """Have a case run, and end all that it started."""
        spared, began = frozenset(tree.descendants(os.getpid())), time.monotonic()
        for name in ("told", "shown"):
            self.kept[name].clear()
        with suppress(BrokenPipeError):  # it has just ended
            os.write(self._orders, b"\n")
        over = not self.watch(self._seconds, lambda: "ended" in self._said(number))
        _end_descendants(spared)
        if over and not platform.PLATFORM.adopts and isinstance(pid := self._said(number).get("pid"), int):
            with suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
        if over:
            self.watch(_END_SECONDS, lambda: "ended" in self._said(number))
        self.drain()
        report = self._said(number)
        lost = not over and "ended" not in report
        code, what = (self.exit_code, "The code's process ended") if lost else (report.get("ended"), _ITS_PROCESS)
        verdict = (None if lost else _verdict(report)) or _ended(code, what, over=self._seconds if over else None)
        return {**verdict, "seconds": time.monotonic() - began, "output": _text(self.kept["shown"])}

    def end(self) -> None:
        """See Watched."""
        super().end()
        os.close(self._orders)

    def _said(self, number: int) -> dict[str, Any]:
        """All that was told of one case; the code's number is 0."""
        report: dict[str, Any] = {}
        for line in self.lines():
            if isinstance(line, dict) and line.get("case") == number:
                report |= line
        return report


def _verdict(report: dict[str, Any]) -> dict[str, Any] | None:
    return {name: report.get(name) for name in vars(CaseVerdict("PASS"))} if "verdict" in report else None


def _ended(code: Any, what: str = _ITS_PROCESS, *, over: float | None = None) -> dict[str, Any]:
    """What is said of a process that said nothing itself: it ended, or its seconds are over."""
    if over is not None:
        return CaseVerdict("ERROR", f"It took longer than {over:g} s.").as_dict()
    how = "" if not isinstance(code, int) else f", with exit code {code}" if code >= 0 else f", by {_signal_name(-code)}"
    return CaseVerdict("ERROR", f"{what}{how}.").as_dict()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time one
        return f"signal {number}"


def _text(printed: bytearray) -> str:
    return printed.decode("utf-8", "replace")
