"""Test cases, each in a forked process of its own, so the session's variables do not change.

The kernel forks a watcher, which runs no user code, adopts all orphans and keeps the time limits. The watcher forks the runner.
The runner runs the code under test, and forks a process for each case on the watcher's order.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import io
import json
import linecache
import os
import secrets
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial

# By name: a test may replace functions of these modules, such as the clock, for the rest of its process.
from os import _exit, getpid, read, waitpid, write
from time import monotonic
from types import CodeType
from typing import Any
from warnings import catch_warnings, simplefilter

from ..output.kept_output import truncate
from ..platform import fork
from ..processes import proc, tree

#: The list to which cases append their results, as in tutorials.
RESULTS = "test_results"
CODE = "<code under test>"
#: Limits of the output of the code and of each case in bytes, and of texts in characters.
_OUTPUT_BYTES, _MESSAGE_CHARS, _VALUE_CHARS = 16 * 1024, 2000, 300
#: Seconds that a killed process may take to end, and the most milliseconds between two looks at a limit.
_END_SECONDS, _LOOK_MILLISECONDS = 2.0, 20
#: Most bytes of one read, and most reads of the output of a process that has ended: others may go on writing.
_READ_BYTES, _READS = 64 * 1024, 16
#: Most bytes of reports that wait to be read: user code can write to their pipe.
_REPORTS_BYTES = 1024 * 1024
#: Variable with a mark in the environment of the watcher and its descendants.
_MARK = "KERNELEXEC_TESTS"
#: None is no failure from functions whose names begin so, and from the methods that IPython calls for magics and commands.
_ASSERTING = ("assert", "check", "expect", "test", "verify")
_SHELL_METHODS = ("run_line_magic", "run_cell_magic", "system", "getoutput")
_ENCODE, _EVALUATE, _SET_HANDLER = json.JSONEncoder().encode, eval, signal.signal
_NOT_RUN = {"verdict": "ERROR", "message": "It was not run."}


def run(code: str, cases: list[str], seconds: float, shell: Any) -> dict[str, Any]:
    """Run the code and then each case, with a limit in seconds for each.

    The result has ``error`` (the verdict on failed code, or None), ``output`` (the text printed by the code) and ``cases``.
    """
    kernel_end, watcher_end = socket.socketpair()
    mark, content = secrets.token_hex(16), b""

    def work() -> None:
        kernel_end.close()
        os.environ[_MARK] = mark
        _watch(_Runner(partial(_serve_cases, code, cases, shell), seconds, watcher_end), watcher_end, len(cases))

    watcher = _fork(work)
    watcher_end.close()
    with kernel_end:
        kernel_end.settimeout(None)
        try:
            # Only the watcher, which runs no user code, holds the other end: the runner closes its copy. So all content is
            # the watcher's, and the end of the stream is the watcher's end.
            while piece := kernel_end.recv(_READ_BYTES):
                content += piece
        finally:
            with suppress(OSError):
                kernel_end.shutdown(socket.SHUT_WR)  # the watcher ends now, if it has not yet
                kernel_end.settimeout(_END_SECONDS)
                while kernel_end.recv(_READ_BYTES):
                    pass
            with suppress(ChildProcessError):
                if not waitpid(watcher, os.WNOHANG)[0]:
                    tree.kill_tree(watcher)
                    waitpid(watcher, 0)
            tree.kill_marked(_MARK, mark)
    first, *verdicts = [json.loads(line) for line in content.splitlines()] or [{"error": _NOT_RUN}]
    return {**first, "cases": [*verdicts, *[_NOT_RUN] * (len(cases) - len(verdicts))]}


def _fork(work: Callable[[], None]) -> int:
    """Fork a process to call ``work`` and end; return the id."""
    with catch_warnings():
        simplefilter("ignore", DeprecationWarning)  # the child has no other threads, and waits for none
        pid: int = fork()
    if pid:
        return pid
    try:
        # Out of the kernel's group, where an interrupt would end this process half-way. The watcher ends with its socket.
        os.setsid()
        for signum in (signal.SIGINT, signal.SIGCHLD):
            _SET_HANDLER(signum, signal.SIG_DFL)
        work()
    finally:
        _exit(1)  # the code is used only without a verdict


def _watch(runner: _Runner, kernel: socket.socket, count: int) -> None:
    """Report the verdicts on the code and ``count`` cases to the kernel, and end all descendants. Runs in the watcher."""
    try:
        failed = runner.run_code()
        kernel.sendall(_ENCODE({"error": failed, "output": runner.take_output()}).encode() + b"\n")
        for number in range(1, count + 1):
            verdict = _NOT_RUN if failed or runner.has_ended() else runner.run_case(number)
            kernel.sendall(_ENCODE(verdict).encode() + b"\n")
    finally:
        _end_descendants()
        with suppress(ChildProcessError):
            while waitpid(-1, os.WNOHANG)[0]:
                pass


def _end_descendants(spared: Collection[int] = ()) -> None:
    """Kill the descendants of this process, adopted orphans included, except spared ones."""
    wait_milliseconds = int(_END_SECONDS * 1000)
    proc.kill_rounds(lambda table: proc.find_descendants(getpid(), table), spared=spared, wait_milliseconds=wait_milliseconds)


class _Runner:
    """The watcher's side of the runner: the process of the code, which forks a process for each case."""

    def __init__(self, serve: Callable[[int, int], None], seconds: float, kernel: socket.socket) -> None:
        """Adopt orphans, and fork the runner, with descriptors for reports and orders."""
        tree.adopt_orphans()
        reports, output, orders = os.pipe(), os.pipe(), os.pipe()

        def work() -> None:
            kernel.close()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output[1], 1)
            os.dup2(output[1], 2)
            printed = io.FileIO(1, "w", closefd=False)
            sys.stdout = sys.stderr = io.TextIOWrapper(printed, "utf-8", "replace", write_through=True)
            for fd in (reports[0], *output, orders[1]):
                os.close(fd)
            serve(reports[1], orders[0])

        self._pid = _fork(work)
        for fd in (reports[1], output[1], orders[0]):
            os.close(fd)
        self._seconds, self._kernel = seconds, kernel
        self._reports, self._output, self._orders = reports[0], output[0], orders[1]
        self._exit_code: int | None = None
        self._received, self._printed = b"", bytearray()
        self._poll = select.poll()
        for source in (reports[0], output[0], kernel):
            self._poll.register(source, select.POLLIN)

    def has_ended(self) -> bool:
        """Return whether the runner has ended, perhaps by user code."""
        # Not reaped (WNOWAIT): the id stays the runner's, and a second call finds the same end.
        info = os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if info is not None:
            self._exit_code = info.si_status if info.si_code == os.CLD_EXITED else -info.si_status
        return info is not None

    def run_code(self) -> dict[str, Any] | None:
        """Wait for the code; return the verdict on failed code, else None."""
        report = self._collect(0, "verdict", self._seconds)
        if "verdict" not in report:
            report = self._describe_end("It ended its process", self._exit_code, over=not self.has_ended())
        return None if report["verdict"] == "PASS" else report

    def run_case(self, number: int) -> dict[str, Any]:
        """Run the next case, and end all its processes."""
        # Those from before stay: the runner, and processes of the code under test.
        spared, began = proc.find_descendants(getpid(), proc.read_processes()), monotonic()
        self._printed.clear()
        with suppress(BrokenPipeError):  # the runner has just ended
            write(self._orders, b"\n")
        report = self._collect(number, "ended", self._seconds)
        over = "ended" not in report and not self.has_ended()
        _end_descendants(spared)
        if over:
            with suppress(OSError, KeyError):
                os.killpg(report["pid"], signal.SIGKILL)  # where the system shows no descendants
            report |= self._collect(number, "ended", _END_SECONDS)
        is_lost = "ended" not in report
        if over or is_lost or "verdict" not in report:
            subject = "The code's process ended" if is_lost else "It ended its process"
            report = self._describe_end(subject, self._exit_code if is_lost else report["ended"], over=over)
        return {**report, "seconds": monotonic() - began, "output": self.take_output()}

    def take_output(self) -> str:
        """Return the printed text so far, within the limit."""
        for _ in range(_READS):
            if self._output not in self._read_ready(0):
                break
        return self._printed.decode("utf-8", "replace")

    def _collect(self, number: int, last: str, seconds: float) -> dict[str, Any]:
        """Return the merged reports on a case, up to a report with the field ``last``, the limit, or the runner's end."""
        report: dict[str, Any] = {}
        deadline = monotonic() + seconds
        while last not in report:
            while b"\n" not in self._received:
                ended = self.has_ended()
                ready = self._read_ready(_LOOK_MILLISECONDS)
                if monotonic() > deadline or (ended and not ready):
                    return report
            line, _, self._received = self._received.partition(b"\n")
            report |= _parse_report(line, number)
        return report

    def _read_ready(self, milliseconds: int) -> list[int]:
        """Read pending reports and output; return their descriptors. Exit if the kernel has ended, or ends the tests."""
        ready = [fd for fd, _ in self._poll.poll(milliseconds)]
        if self._kernel.fileno() in ready:
            sys.exit()
        for fd in ready:
            content = read(fd, _READ_BYTES)
            if not content:
                self._poll.unregister(fd)
            elif fd == self._reports:
                # Bounded, since user code can write to this pipe too: the newest bytes stay, as the next report comes last.
                self._received = (self._received + content)[-_REPORTS_BYTES:]
            else:
                self._printed += content[: max(_OUTPUT_BYTES - len(self._printed), 0)]
        return ready

    def _describe_end(self, subject: str, code: int | None, *, over: bool) -> dict[str, Any]:
        """Return the verdict on a process that gave none before its end or its limit."""
        if over:
            return {"verdict": "ERROR", "message": f"It took longer than {self._seconds:g} s."}
        names = {-signum: signum.name for signum in signal.Signals}
        how = "" if code is None else f", with exit code {code}" if code >= 0 else f", by {names.get(code, f'signal {-code}')}"
        return {"verdict": "ERROR", "message": f"{subject}{how}."}


def _parse_report(line: bytes, number: int) -> dict[str, Any]:
    """Return a report on a case; nothing for other lines: user code can write to the pipe, and earlier cases can write late."""
    with suppress(ValueError, RecursionError):
        report = json.loads(line)
        if isinstance(report, dict) and report.get("case") == number:
            return report if all(isinstance(report.get(name, 0), int) for name in ("pid", "ended")) else {}
    return {}


def _serve_cases(code: str, cases: list[str], shell: Any, reports: int, orders: int) -> None:
    """Run the code in this process, and each case in a forked process on the watcher's order. Runs in the runner."""
    asyncio._set_running_loop(None)  # noqa: SLF001 - the running loop is the kernel's, not this process's; as of Python 3.14
    runner = CaseRunner(shell)

    def report(number: int, fields: dict[str, Any]) -> None:
        write(reports, f"{_ENCODE({**fields, 'case': number})}\n".encode())

    def work(number: int, source: str) -> None:
        report(number, {"pid": getpid()})
        report(number, runner.run_case(source, f"<case {number}>"))

    report(0, runner.run_code(code))
    _SET_HANDLER(signal.SIGCHLD, signal.SIG_DFL)  # the code may have it ignored, and so lose exit codes
    for number, source in enumerate(cases, 1):
        if not read(orders, 1):
            break
        status = waitpid(_fork(partial(work, number, source)), 0)[1]
        report(number, {"ended": os.waitstatus_to_exitcode(status)})


class _CaseError(Exception):
    """A case without a decision; the message has the reason."""


class CaseRunner:
    """A runner of code and cases in the namespace of the shell, which keeps their changes.

    Verdicts are PASS, FAIL or ERROR. FAIL and ERROR have a ``message``, and the ``line`` and ``line_text`` of the case, or with
    ``in_code`` of the code under test.
    """

    def __init__(self, shell: Any) -> None:
        self._shell, self._namespace = shell, shell.user_ns

    def run_code(self, source: str) -> dict[str, Any]:
        """Run the code under test; return PASS or ERROR."""
        return self._run(lambda: self._execute(self._parse(source, CODE), CODE), CODE)

    def run_case(self, source: str, name: str) -> dict[str, Any]:
        """Run a case, with ``name`` as the file name in tracebacks; return the verdict."""
        return self._run(lambda: self._check(source, name), name)

    def _run(self, check: Callable[[], None], name: str) -> dict[str, Any]:
        pid, verdict = getpid(), {"verdict": "PASS"}
        code: str | int | None = None
        try:
            check()
        except BaseException as exc:
            verdict = self._describe_failure(exc, name)
            code = exc.code if isinstance(exc, SystemExit) else 1
        if getpid() != pid:  # a child that user code forked: it must not report, nor run the next case
            _exit(code & 0xFF if isinstance(code, int) else int(code is not None))
        return verdict

    def _parse(self, source: str, name: str) -> list[ast.stmt]:
        """Parse Python, or else Python with IPython's commands and magics."""
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        try:
            tree = ast.parse(source, name)
        except SyntaxError as exc:
            try:
                tree = ast.parse(self._shell.transform_cell(source), name)
            except SyntaxError:
                raise exc from None
        return tree.body

    def _execute(self, statements: list[ast.stmt], name: str) -> None:
        self._evaluate(compile(ast.Module(statements, []), name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))

    def _evaluate(self, code: CodeType, namespace: dict[str, Any] | None = None) -> Any:
        self._shell.inner_error = self._shell.last_exit_code = None
        value = _EVALUATE(code, self._namespace if namespace is None else namespace)
        if code.co_flags & inspect.CO_COROUTINE:
            value = asyncio.run(value)
        if error := self._shell.inner_error:  # IPython only shows this error, as for %run and %%capture
            if error["ename"] == "AssertionError":
                raise AssertionError(error["evalue"])
            raise _CaseError(f"{error['ename']}: {error['evalue']}".removesuffix(": "))
        return value

    def _check(self, source: str, name: str) -> None:
        """Run a case; raise AssertionError for a false last value or a false result, ``_CaseError`` for a failed command."""
        self._namespace[RESULTS] = []
        *statements, last = self._parse(source, name) or [ast.Pass()]
        if not isinstance(last, ast.Expr):
            self._execute([*statements, last], name)
            self._check_results()
            return
        self._execute(statements, name)
        compares = not statements and isinstance(last.value, ast.Compare)
        value, operands = self._evaluate_expression(last.value, name, compares=compares)
        has_results, code = self._check_results(), self._shell.last_exit_code
        called = _find_called_name(last.value)
        is_magic = called in _SHELL_METHODS
        text = linecache.getline(name, last.lineno).strip() if is_magic else ast.unparse(last.value)
        if value is None and code:
            raise _CaseError(f"{text} ended with exit code {code}.")
        if value is None and (statements or has_results or is_magic or called.startswith(_ASSERTING)):
            return
        if not value and (not statements or type(value).__name__ in ("bool", "bool_")):  # numpy's False too
            explained = [f"{side} is {_show(operand)}" for side, operand in operands.items()]
            raise AssertionError("; ".join([f"{text} does not hold", *explained]) if compares else f"{text} is {_show(value)}")

    def _evaluate_expression(self, node: ast.expr, name: str, *, compares: bool) -> tuple[Any, dict[str, Any]]:
        """Return the value of an expression and, for a comparison if ``compares``, its operands without literals."""

        def evaluate(part: ast.expr, namespace: dict[str, Any] | None = None) -> Any:
            code = compile(ast.Expression(part), name, "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            return self._evaluate(code, namespace)

        match node:
            case ast.Compare(left=left, ops=[operator], comparators=[right]) if compares:
                values = {"left": evaluate(left), "right": evaluate(right)}
                names = (ast.Name(side, ast.Load()) for side in values)
                comparison = ast.fix_missing_locations(ast.Compare(next(names), [operator], [*names]))
                sides = zip((left, right), values.values(), strict=True)
                operands = {ast.unparse(side): value for side, value in sides if not isinstance(side, ast.Constant)}
                return evaluate(comparison, values), operands
        return evaluate(node), {}

    def _check_results(self) -> bool:
        """Return whether there are results; raise AssertionError for a false result."""
        content = self._namespace.get(RESULTS, ())
        results = content.values() if isinstance(content, dict) else content if isinstance(content, list | tuple) else [content]
        truths = [bool(result) for result in results]
        false = [str(position) for position, truth in enumerate(truths, 1) if not truth]
        if false:
            raise AssertionError(f"Of {len(truths)} results not true: {', '.join(false)}.")
        return bool(truths)

    def _describe_failure(self, exc: BaseException, name: str) -> dict[str, Any]:
        """Return the verdict on a case or code with this exception."""
        places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(exc.__traceback__)]
        if isinstance(exc, SyntaxError):
            places.append((exc.filename or "", exc.lineno or 0))
        file, line = next((entry for entry in reversed(places) if entry[0] in (name, CODE)), (name, 0))
        text = linecache.getline(file, line).strip()
        is_failed = isinstance(exc, AssertionError) and name != CODE
        if is_failed or isinstance(exc, _CaseError):
            is_known = text and not text.startswith("%%")
            message = truncate(exc) or f"{text if is_known else 'an assertion'} does not hold"
        elif isinstance(exc, SystemExit):
            message = "It exits." if exc.code is None else f"It exits, with {_show(exc.code)}."
        else:
            message = f"{type(exc).__name__}: {truncate(exc)}".removesuffix(": ")
        verdict = {"verdict": "FAIL" if is_failed else "ERROR", "message": _cut(message, _MESSAGE_CHARS)}
        return verdict | ({"line": line, "line_text": _cut(text, _MESSAGE_CHARS), "in_code": file == CODE} if line else {})


def _find_called_name(node: ast.expr) -> str:
    """Return the lower-case name of the function or method called by an expression; empty for other expressions."""
    match node.value if isinstance(node, ast.Await) else node:
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
            return name.lstrip("_").lower()
    return ""


def _show(value: Any) -> str:
    return _cut(repr(value), _VALUE_CHARS)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"
