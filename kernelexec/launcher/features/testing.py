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
from ..processes.child_watcher import OwnerLeft, Watched
from .assertions import Judge, Verdict
from .pristine_modules import Border, Names, give_names, take_names

#: How much of what a case prints is kept, how much is read of what it tells, and of what is told of it to the kernel.
_OUTPUT_BYTES, _TOLD_BYTES, _REPORT_BYTES = 16 * 1024, 64 * 1024, 256 * 1024
#: In seconds: what starting and ending a process may take beside its limit; how long an end is waited for, at which pace.
_SLACK_SECONDS, _END_SECONDS, _PAUSE_SECONDS = 5.0, 2.0, 0.002
#: In the environment of all that they start.
_MARK = "KERNELEXEC_TESTS"
_MISSING = Verdict("ERROR", "It was not run.").told()
_ITS_PROCESS = "It ended its process"
_ENCODE = json.JSONEncoder().encode


@dataclass(frozen=True)
class Tests:
    """What is to be tested; the code and each case may take so many seconds. ``theirs``: see ``border.take_names``."""

    code: str
    cases: list[str]
    seconds: float
    shell: Any
    theirs: Names


def run(code: str, cases: list[str], seconds: float, shell: Any) -> dict[str, Any]:
    """Run the code, and each case after it; each may take so many seconds.

    What came of it: ``error``, a verdict of the code where it failed, or None; ``output``, what it printed; ``cases``.
    """
    theirs = take_names()
    try:
        return _report(Tests(code, cases, seconds, shell, theirs))
    finally:
        give_names(theirs)


def _report(tests: Tests) -> dict[str, Any]:
    """Have it done, and hear of it; called in the kernel."""
    told, owner, mark, count = os.pipe(), os.pipe(), secrets.token_hex(16), len(tests.cases)

    def work() -> None:
        for fd in (told[0], owner[1]):
            os.close(fd)
        os.environ[_MARK] = mark
        _watch_over(tests, owner[0], told[1])

    pid = _forked(work)
    for fd in (told[1], owner[0]):
        os.close(fd)
    watched = Watched(pid, {"told": (told[0], _REPORT_BYTES * (count + 2))})
    try:
        over = not watched.watch((tests.seconds + _SLACK_SECONDS) * (count + 1))
    finally:
        os.close(owner[1])  # which it takes for the word to end
        try:
            watched.watch(_END_SECONDS)
        finally:
            watched.end()
            tree.sweep(_MARK, mark)
    said = watched.lines()
    error, *found = said or [_ended(watched.exit_code, over=tests.seconds if over else None)]
    cases = [*found[:count], *[_MISSING] * (count - len(found))]
    return {"error": error, "output": found[count] if len(found) > count else "", "cases": cases}


def _watch_over(tests: Tests, owner: int, told: int) -> None:
    """Have the code and the cases run, tell of each, and leave nothing of them; called in the watcher."""
    tree.adopt_orphans()
    runner = Runner(tests, signal.signal(signal.SIGCHLD, signal.SIG_DFL), owner, told)
    try:
        with suppress(OwnerLeft):
            error = runner.result_of_code()
            _tell(told, error)
            for number in range(1, len(tests.cases) + 1):
                _tell(told, _MISSING if error or runner.has_ended() else runner.result_of_case(number))
            _tell(told, _text(runner.kept["output"]))
    finally:
        runner.end()
        _end_descendants()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _serve(tests: Tests, told: int, shown: int, orders: int) -> None:
    """Run the code in this process, and each case in another when the watcher says so; called in the runner."""
    asyncio._set_running_loop(None)  # noqa: SLF001 - that of the kernel, which this process is not; as of Python 3.14
    border = Border(tests.theirs)
    judge = Judge(tests.shell, border)
    found = judge.of_code(tests.code)
    with suppress(BaseException):
        sys.stdout.flush()
    border.keep_out()
    _tell(told, {"case": 0, **found.told()})
    before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # the code may have set a timer

    def work(number: int, source: str) -> None:
        border.settle()
        os.close(orders)
        _tell(told, {"case": number, "pid": os.getpid()})
        _handle_children(before)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        found = judge.of_case(source, f"<case {number}>")
        border.keep_out()
        _tell(told, {"case": number, **found.told()})

    for number, source in enumerate(tests.cases, 1):
        if not os.read(orders, 1):
            break
        _tell(told, {"case": number, "ended": _waited(_forked(partial(work, number, source), shown))})


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
        tree.end_others(spared)
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


def _tell(fd: int, said: Any) -> None:
    text, sent = f"{_ENCODE(said)}\n".encode(), 0
    while sent < len(text):
        sent += os.write(fd, text[sent:])


class Runner(Watched):
    """The process that runs the code, and forks one for each case."""

    def __init__(self, tests: Tests, handler: Any, *closed: int) -> None:
        """Fork it, with a handler for its children's ends and without some descriptors, the first of which is the owner's."""
        told, output, shown, orders = (os.pipe() for _ in range(4))
        ours, its = (told[0], output[0], shown[0], orders[1]), (told[1], output[1], shown[1], orders[0])

        def work() -> None:
            for fd in (*ours, *closed, output[1]):
                os.close(fd)
            _handle_children(handler)
            _serve(tests, told[1], shown[1], orders[0])

        pid = _forked(work, output[1])
        for fd in its:
            os.close(fd)
        room = {"told": (told[0], _TOLD_BYTES), "output": (output[0], _OUTPUT_BYTES), "shown": (shown[0], _OUTPUT_BYTES)}
        super().__init__(pid, room, closed[0])
        self._orders, self._seconds = orders[1], tests.seconds

    def result_of_code(self) -> dict[str, Any] | None:
        """The verdict of the code where it failed."""
        over = not self.watch(self._seconds, lambda: "verdict" in self._said(0))
        self.drain()
        found = _verdict(self._said(0)) or _ended(self.exit_code, over=self._seconds if over else None)
        return None if found["verdict"] == "PASS" else found

    def result_of_case(self, number: int) -> dict[str, Any]:
        """Have a case run, and end all that it started."""
        spared, began = frozenset(tree.descendants(os.getpid())), time.monotonic()
        for name in ("told", "shown"):
            self.kept[name].clear()
        with suppress(BrokenPipeError):  # it has just ended
            os.write(self._orders, b"\n")
        over = not self.watch(self._seconds, lambda: "ended" in self._said(number))
        _end_descendants(spared)
        if over and not platform.HERE.adopts and isinstance(pid := self._said(number).get("pid"), int):
            with suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
        if over:
            self.watch(_END_SECONDS, lambda: "ended" in self._said(number))
        self.drain()
        said = self._said(number)
        lost = not over and "ended" not in said
        code, what = (self.exit_code, "The code's process ended") if lost else (said.get("ended"), _ITS_PROCESS)
        found = (None if lost else _verdict(said)) or _ended(code, what, over=self._seconds if over else None)
        return {**found, "seconds": time.monotonic() - began, "output": _text(self.kept["shown"])}

    def end(self) -> None:
        """See Watched."""
        super().end()
        os.close(self._orders)

    def _said(self, number: int) -> dict[str, Any]:
        """All that was told of one case; the code's number is 0."""
        found: dict[str, Any] = {}
        for line in self.lines():
            if isinstance(line, dict) and line.get("case") == number:
                found |= line
        return found


def _verdict(said: dict[str, Any]) -> dict[str, Any] | None:
    return {name: said.get(name) for name in vars(Verdict("PASS"))} if "verdict" in said else None


def _ended(code: Any, what: str = _ITS_PROCESS, *, over: float | None = None) -> dict[str, Any]:
    """What is said of a process that said nothing itself: it ended, or its seconds are over."""
    if over is not None:
        return Verdict("ERROR", f"It took longer than {over:g} s.").told()
    how = "" if not isinstance(code, int) else f", with exit code {code}" if code >= 0 else f", by {_signal_name(-code)}"
    return Verdict("ERROR", f"{what}{how}.").told()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time one
        return f"signal {number}"


def _text(printed: bytearray) -> str:
    return printed.decode("utf-8", "replace")
