"""Test cases: each verdict is right, whatever a case does, and the session sees nothing of it."""

from __future__ import annotations

import json
import math
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kernelexec import Approval, ExecutionFailed, Executor, SecurityError, Session
from kernelexec.errors import InvalidCode, InvalidRequest, InvalidTimeout
from tests.conftest import EVERY_KIND, KINDS
from tests.support.night import named_cases
from tests.support.pace import BOUND, RunningCell, slow, until
from tests.support.remains import marked_processes

#: What runs in containers and namespaces in the gate too: how a kernel is had makes no difference to the other tests here.
ALSO_CONFINED = ("test_the_tutorials_example",)

#: The seconds that a case has where one of them hangs, and in which the others begin and end.
LIMIT = math.ceil(slow(2))
TOO_LONG = f"It took longer than {LIMIT} s."
FIBONACCI = """
def fibonacci(n):
    if n < 2:
        return n
    return fibonacci(n - 1) + fibonacci(n - 2)
"""


@pytest.fixture(scope="module", params=EVERY_KIND)
def session(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    kind = str(request.param)
    with Executor(kind, workspace=tmp_path_factory.mktemp("workspaces"), config=KINDS[kind]) as executor:
        session = executor.session()
        assert session.execute("y = [1]; test_results = 'mine'; import os, threading, time").ok
        yield session
        result = session.execute("y, test_results, __name__")
        assert result.text == "([1], 'mine', '__main__')"


HELPERS = """
import asyncio, os

def valid(n):
    n > 3

def check(n):
    assert n > 3

async def verify_soon(n):
    assert n > 3
"""

#: What a case comes to behind the helpers.
VERDICTS = {
    "expressions": {
        "valid(1)": ("FAIL", "valid(1) is None"),
        "print(1)": ("FAIL", "print(1) is None"),
        "await asyncio.sleep(0)": ("FAIL", "await asyncio.sleep(0) is None"),
        "check(4)": ("PASS", ""),
        "check(3)": ("FAIL", "assert n > 3 does not hold"),
        "await verify_soon(4)": ("PASS", ""),
        "import unittest; unittest.TestCase().assertEqual(1, 1)": ("PASS", ""),
    },
    "results": {
        "test_results.append(1 == 1)": ("PASS", ""),
        "test_results.append(1 == 2)": ("FAIL", "Of 1 results not true: 1."),
        "test_results = (1 == 2,)": ("FAIL", "Of 1 results not true: 1."),
        "test_results = {'a': 1, 'b': 0}": ("FAIL", "Of 2 results not true: 2."),
        "test_results = test_results.append(True)": ("FAIL", "Of 1 results not true: 1."),
        "test_results.append(True)\nx = 1\nx == 2": ("FAIL", "x == 2 is False"),
    },
    "exits and commands": {
        "exit()": ("ERROR", "It exits."),
        "quit()\nassert False": ("ERROR", "It exits."),
        "!exit 3": ("ERROR", "!exit 3 ended with exit code 3."),
        "x = 1\n!false": ("ERROR", "!false ended with exit code 1."),
        "!true": ("PASS", ""),
        "!exit 3\n_exit_code == 3": ("PASS", ""),
        "%%bash\nexit 3": ("ERROR", "CalledProcessError: Command 'b'exit 3\\n'' returned non-zero exit status 3."),
    },
    "magics": {
        "%%time\n1 == 2": ("FAIL", "%%time is False"),
        "%time 1 == 2": ("FAIL", "%time 1 == 2 is False"),
        "%time 1 == 1": ("PASS", ""),
        "%%time\nx = 1": ("PASS", ""),
        "%%time\nassert 1 == 2": ("FAIL", "an assertion does not hold"),
        "%%time\nassert 1 == 2, 'six'": ("FAIL", "six"),
        "%%capture\nassert False, 'six'": ("FAIL", "six"),
        "%%capture\n1 / 0": ("ERROR", "ZeroDivisionError: division by zero"),
    },
}

#: Replacements that break or blind their users, and those that IPython's kernel does not survive.
MOCKS = {
    "a clock that stands": "import time\ntime.monotonic = time.time = lambda: 0.0",
    "no children": "import signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "no calls": "import json, os, select\njson.dumps = os.write = os.fork = os.waitpid = os.getpid = select.poll = None",
    "no shell": "get_ipython = None",
    "a len of its own": "import builtins\nbuiltins.len = lambda x: 7",
}
KERNELS_OWN = ("no calls", "a len of its own")


def verdict_of(session: Session, case: str, code: str = FIBONACCI, timeout: float = 60) -> tuple[str, str]:
    [actual] = session.run_tests(code, [case], timeout=timeout).cases
    return actual.verdict, actual.message


COUNT = """
import contextlib, os
def count(word):
    total = 0
    for pid in filter(str.isdigit, os.listdir('/proc')):
        with contextlib.suppress(OSError), open(f'/proc/{pid}/cmdline', 'rb') as file:  # it may end meanwhile
            total += word in file.read()
    return total
"""


def count_with(session: Session, word: str) -> int:
    """How many processes that a session sees were started with a word."""
    return int(session.execute(f"{COUNT}\ncount({word.encode()!r})").text)


def test_the_tutorials_example(session: Session) -> None:
    cases = [f"test_results.append(fibonacci({n}) == {value})" for n, value in ((0, 0), (1, 1), (5, 5), (10, 55))]
    report = session.run_tests(FIBONACCI, cases)
    assert (report.ok, report.summary, report.error) == (True, "4 PASS", None)
    assert [case.source for case in report.cases] == cases
    assert report.code == FIBONACCI


@pytest.mark.parametrize(
    ("case", "verdict", "message"),
    [
        ("fibonacci(5) == 5", "PASS", ""),
        ("assert fibonacci(5) == 5", "PASS", ""),
        ("x = fibonacci(5)\nassert x", "PASS", ""),
        ("x = fibonacci(5)\nx == 5", "PASS", ""),
        ("fibonacci(5)", "PASS", ""),
        ("import asyncio\nawait asyncio.sleep(0.01)\n1 == 1", "PASS", ""),
        ("found = !echo a\nfound == ['a']", "PASS", ""),
        ("y.append(2)\ny == [1, 2]", "PASS", ""),
        ("__name__ == '__main__' and 'fibonacci' in globals()", "PASS", ""),
        ("fibonacci(5) == 6", "FAIL", "fibonacci(5) == 6 does not hold; fibonacci(5) is 5"),
        (
            "fibonacci(5) not in [y, 5]",
            "FAIL",
            "fibonacci(5) not in [y, 5] does not hold; fibonacci(5) is 5; [y, 5] is [[1], 5]",
        ),
        ("not fibonacci", "FAIL", "not fibonacci is False"),
        ("x = fibonacci(5)\nx == 6", "FAIL", "x == 6 is False"),
        ("assert fibonacci(5) == 6, 'six'", "FAIL", "six"),
        ("assert fibonacci(5) == 6", "FAIL", "assert fibonacci(5) == 6 does not hold"),
        ("for n in range(3): test_results.append(n)", "FAIL", "Of 3 results not true: 1."),
        ("1 / 0", "ERROR", "ZeroDivisionError: division by zero"),
        ("raise SystemExit(2)", "ERROR", "It exits, with 2."),
        ("os._exit(3)", "ERROR", "It ended its process, with exit code 3."),
        ("os.kill(os.getpid(), 11)", "ERROR", "It ended its process, by SIGSEGV."),
        ("raise KeyboardInterrupt", "ERROR", "KeyboardInterrupt"),
        ("nothing", "ERROR", "NameError: name 'nothing' is not defined"),
    ],
)
def test_a_verdict(session: Session, case: str, verdict: str, message: str) -> None:
    assert verdict_of(session, case) == (verdict, message)


def test_a_case_that_is_no_python_says_where(session: Session) -> None:
    [case] = session.run_tests("", ["\nx = 1\ndef x(:\n"]).cases
    assert (case.verdict, case.line, case.line_text, case.in_code) == ("ERROR", 3, "def x(:", False)
    assert case.message.startswith("SyntaxError")


def test_the_line_of_the_case_or_of_the_code(session: Session) -> None:
    report = session.run_tests(FIBONACCI, ["\n\n1 / 0", "fibonacci('a')"])
    first, second = report.cases
    assert (first.line, first.line_text, first.in_code) == (3, "1 / 0", False)
    assert (second.line, second.line_text, second.in_code) == (3, "if n < 2:", True)


def test_raising_hanging_exiting_and_passing_cases_in_one_run(session: Session) -> None:
    cases = ["1 / 0", "while True: pass", "os._exit(0)", "fibonacci(3) == 2", "time.sleep(600)"]
    report = session.run_tests(FIBONACCI, cases, timeout=LIMIT)
    assert [case.verdict for case in report.cases] == ["ERROR", "ERROR", "ERROR", "PASS", "ERROR"]
    assert [case.message for case in report.cases][1::3] == [TOO_LONG] * 2
    assert report.summary == "1 PASS, 4 ERROR"
    assert report.cases[1].duration >= LIMIT


def test_code_that_fails_runs_no_case(session: Session) -> None:
    report = session.run_tests("x = 1\nprint('a')\n1 / 0", ["x == 1", "True"])
    assert report.error is not None
    assert (report.error.message, report.error.line, report.output) == ("ZeroDivisionError: division by zero", 3, "a\n")
    assert [(case.verdict, case.message) for case in report.cases] == [("ERROR", "It was not run.")] * 2
    assert not report.ok


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("while True: pass", "It took longer than {limit} s."),  # no number: workers measure their own, and name tests by it
        ("import os\nos._exit(7)", "It ended its process, with exit code 7."),
        ("raise SystemExit", "It exits."),
        ("exit()\nraise ValueError", "It exits."),
        ("def x(:", "SyntaxError: invalid syntax (<code under test>, line 1)"),
    ],
)
def test_code_that_does_not_end_well(session: Session, code: str, message: str) -> None:
    report = session.run_tests(code, ["True"], timeout=LIMIT)
    assert report.error is not None
    assert report.error.message == message.format(limit=LIMIT)


def test_a_case_sees_nothing_of_another(session: Session) -> None:
    cases = ["found.append(1)\nfound == [1]", "found.append(2)\nfound == [2]", "test_results == []"]
    assert session.run_tests("found = []", cases).summary == "3 PASS"


def test_output_of_each_test_case_is_separate(session: Session) -> None:
    code = "import subprocess\nprint('code')"
    cases = [
        "print('é')\nTrue",
        "subprocess.run(['echo', 'b'])\nTrue",
        "import sys\nprint('c', file=sys.stderr)",
        "print('x' * 10**7)\nTrue",
    ]
    report = session.run_tests(code, cases)
    assert report.summary == "4 PASS"
    assert (report.output, [case.output for case in report.cases[:3]]) == ("code\n", ["é\n", "b\n", "c\n"])
    assert report.cases[3].output == "x" * 16384
    assert session.execute("1").text == "1"


def test_a_flood_ends_with_its_case(session: Session) -> None:
    assert verdict_of(session, "while True: print('x' * 1000)", timeout=LIMIT) == ("ERROR", TOO_LONG)


def test_nothing_that_a_case_started_is_left(session: Session) -> None:
    number = f"4321.{uuid.uuid4().int % 10**9}"  # other kinds' programs may be seen from here
    stay = f"import subprocess\nsubprocess.Popen(['sleep', '{number}'])\n"
    apart = f"subprocess.run('setsid sleep {number} & sleep 0.1', shell=True)\nTrue"
    report = session.run_tests(stay, [apart, f"{stay}time.sleep(600)", "os._exit(0)"], timeout=LIMIT)
    assert [case.verdict for case in report.cases] == ["PASS", "ERROR", "ERROR"]
    until(lambda: count_with(session, number) == 0)


def test_the_code_has_children_that_serve_its_cases(session: Session) -> None:
    code = "import subprocess\nserver = subprocess.Popen(['cat'], stdin=-1, stdout=-1)"
    case = "server.stdin.write(b'a\\n')\nserver.stdin.flush()\nserver.stdout.readline() == b'a\\n'"
    assert session.run_tests(code, [case, case]).summary == "2 PASS"


def test_test_cases_run_after_the_running_cell(session: Session) -> None:
    cell = RunningCell(session, "print('begun', flush=True); time.sleep(0.5); y.append(9)")
    assert session.run_tests("", ["y == [1, 9]"]).ok
    assert cell.result().ok
    assert session.execute("y.pop()").ok


BEGIN = "open('begun', 'w').close()\n"


@contextmanager
def once_begun(session: Session, call: Callable[[], object]) -> Iterator[None]:
    """Call it when a case has begun, which ends the tests."""
    begun = session.workspace / "begun"

    def watch() -> None:
        until(begun.exists)
        call()

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    with pytest.raises(ExecutionFailed):
        yield
    watching.join(BOUND)
    begun.unlink()


def test_test_cases_can_be_interrupted(session: Session) -> None:
    with once_begun(session, session.interrupt):
        session.run_tests("", [f"{BEGIN}time.sleep(600)"], timeout=600)
    assert session.execute("1").text == "1"


@pytest.mark.parametrize(
    ("code", "cases", "timeout", "error"),
    [
        (1, ["True"], 1, InvalidCode),
        ("x = 1", [], 1, InvalidRequest),
        ("x = 1", "True", 1, InvalidRequest),
        ("x = 1", ["True"] * 201, 1, InvalidRequest),
        ("x = 1", ["True", ""], 1, InvalidCode),
        ("x = 1", ["True", "\x00"], 1, InvalidCode),
        ("x = 1", ["True"], 0, InvalidTimeout),
        ("x = 1", ["True"], "1", InvalidTimeout),
    ],
)
def test_bad_input_is_refused(session: Session, code: Any, cases: Any, timeout: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        session.run_tests(code, cases, timeout=timeout)


@pytest.mark.parametrize("timeout", [10**9, 1e300])
def test_the_longest_time_is_none(session: Session, timeout: float) -> None:
    assert session.run_tests("x = 1", ["x == 1"], timeout=timeout).ok


def test_rules_validators_and_approvers_decide_about_code_and_cases(tmp_path: Path) -> None:
    asked: list[Any] = []

    def approve(request: Any) -> Approval:
        asked.append(request)
        return Approval(approved=len(asked) < 2)

    with Executor("local", workspace=tmp_path / "a") as executor:
        for code, case in (("!chmod 600 a", "True"), ("", "import os\nos.system('chmod 600 a')")):
            with pytest.raises(SecurityError, match="rule 'chmod'"):
                executor.session().run_tests(code, [case])
    with Executor("local", workspace=tmp_path / "b", approver=approve, config={"rules": {"ask": "always"}}) as executor:
        assert executor.session().run_tests("x = 1", ["x == 1", "x == 1"]).ok
        with pytest.raises(SecurityError, match="not approved"):
            executor.session().run_tests("x = 1", ["x == 1"])
    assert [request.proposal.source for request in asked] == ["x = 1\n\nx == 1\n\nx == 1", "x = 1\n\nx == 1"]


def test_secrets_are_masked_and_the_journal_has_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_TOKEN", "opensesame1234")
    config = {"secrets": {"TOKEN": {"env": "TEST_TOKEN"}}}
    with Executor("local", workspace=tmp_path, config=config) as executor:
        session = executor.session("a")
        report = session.run_tests("import os\nprint(os.environ['TOKEN'])", ["os.environ['TOKEN'] == 1"])
        assert session.journal is not None
        records = [json.loads(line) for line in session.journal.read_text().splitlines()]
    assert "opensesame" not in json.dumps([report.to_dict(), *records])
    assert report.cases[0].verdict == "FAIL"
    [tested] = [record for record in records if record["event"] == "tested"]
    assert tested["report"] == report.to_dict()


def test_no_process_is_left_when_the_kernel_dies_during_a_case(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path) as executor:
        session = executor.session()
        case = "subprocess.run(['sh', '-c', 'touch begun; exec sleep 4322'])"
        with once_begun(session, session.restart):
            session.run_tests("import subprocess", [case], timeout=600)
        assert session.execute("1").ok
        until(lambda: not any("4322" in words for words in marked_processes().values()))


@pytest.mark.parametrize("verdicts", VERDICTS.values(), ids=VERDICTS)
def test_verdicts_follow_the_value_of_a_case(session: Session, verdicts: dict[str, tuple[str, str]]) -> None:
    report = session.run_tests(HELPERS, list(verdicts))
    assert {case.source: (case.verdict, case.message) for case in report.cases} == verdicts


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("os.fork()", {"1 == 2": "FAIL", "1 == 1": "PASS"}),
        ("if not os.fork():\n    raise ValueError", {"1 == 2": "FAIL", "1 == 1": "PASS"}),
        (
            "",
            {"os.fork()\n1 == 2": "FAIL", "os.fork() > 0": "PASS", "1 == 2": "FAIL", "test_results.append(os.fork())": "PASS"},
        ),
        ("", {"assert not os.fork()": "FAIL", "pid = os.fork() or exit(3)\nos.waitpid(pid, 0)[1] >> 8 == 3": "PASS"}),
    ],
)
def test_a_child_of_the_code_or_a_case_says_nothing(session: Session, code: str, expected: dict[str, str]) -> None:
    report = session.run_tests(code, list(expected))
    assert (report.error, {case.source: case.verdict for case in report.cases}) == (None, expected)


def test_a_long_message_is_cut_and_stays_what_it_is(session: Session) -> None:
    cases = [f"assert False, {char!r} * 70_000" for char in "xé😀"] + [f"assert {'x' * 70_000!r} == 1"]
    report = session.run_tests("", cases)
    assert [case.verdict for case in report.cases] == ["FAIL"] * 4
    assert [case.message for case in report.cases[:3]] == [f"{char * 2000}…" for char in "xé😀"]
    assert len(report.cases[3].message) < 2100


def test_detached_processes_of_test_cases_end_with_the_tests(session: Session) -> None:
    number = f"4323.{uuid.uuid4().int % 10**9}"
    apart = "start_new_session=True, env={'PATH': '/usr/bin:/bin'}, stdout=-3)\n"
    single = f"import subprocess\nsubprocess.Popen(['sleep', '{number}'], {apart}"
    double = f"import subprocess\nsubprocess.run(['sh', '-c', 'setsid sleep {number} &'], {apart}"
    children = "print(os.popen('cat /proc/%d/task/*/children' % os.getpid()).read())"
    before = len(session.execute(children).text.split())
    cases = [f"{single}True", f"{double}True", f"{double}os._exit(0)", f"{double}os.kill(os.getppid(), 9)"]
    for code in (single, double):
        report = session.run_tests(code, cases)
        assert [case.verdict for case in report.cases] == ["PASS", "PASS", "ERROR", "ERROR"]
        assert report.cases[3].message == "The code's process ended, by SIGKILL."
    until(lambda: len(session.execute(children).text.split()) == before)
    until(lambda: count_with(session, number) == 0)


@pytest.mark.parametrize("mock", named_cases(MOCKS, {"no calls"}))
def test_code_that_changes_what_the_watching_uses(session: Session, mock: str) -> None:
    report = session.run_tests(mock, ["1 == 1", "1 == 2", "while True: pass", "os.abort()"], timeout=LIMIT)
    assert report.error is None
    assert [(case.verdict, case.message) for case in report.cases] == [
        ("PASS", ""),
        ("FAIL", "1 == 2 does not hold"),
        ("ERROR", TOO_LONG),
        ("ERROR", "It ended its process, by SIGABRT."),
    ]


def test_the_code_and_its_cases_have_what_they_changed(session: Session) -> None:
    code = "import builtins, time\ntime.monotonic, builtins.twice = lambda: 0.0, lambda n: 2 * n"
    assert session.run_tests(code, ["time.monotonic() == 0.0", "twice(2) == 4", "del builtins.twice"]).summary == "3 PASS"
    assert session.execute("time.monotonic() > 0, hasattr(__builtins__, 'twice')").text == "(True, False)"


def test_a_session_that_has_changed_what_the_watching_uses(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path) as executor:
        session = executor.session()
        assert session.execute("\n".join(mock for name, mock in MOCKS.items() if name not in KERNELS_OWN)).ok
        report = session.run_tests("", ["1 == 1", "time.time() == 0", "while True: pass"], timeout=LIMIT)
        assert [case.verdict for case in report.cases] == ["PASS", "PASS", "ERROR"]
        assert session.execute("time.time()").text == "0.0"


def test_an_interrupt_leaves_nothing(session: Session) -> None:
    number = f"4324.{uuid.uuid4().int % 10**9}"
    case = f"import subprocess\nsubprocess.Popen(['sleep', '{number}'], start_new_session=True, env={{}})"
    with once_begun(session, session.interrupt):
        session.run_tests("", [f"{case}\n{BEGIN}time.sleep(600)"], timeout=600)
    until(lambda: count_with(session, number) == 0)


def test_lines_that_user_code_writes_to_the_reports_change_no_other_verdict(session: Session) -> None:
    writes = "import os\nfor fd in map(int, os.listdir('/proc/self/fd')):\n    try:\n"
    writes += "        if fd > 2 and os.readlink(f'/proc/self/fd/{fd}').startswith('pipe:'): os.write(fd, LINES)\n"
    writes += "    except OSError: pass\n"
    forged = [b"no json\n", b"[" * 50_000 + b"\n", b"5\n", b'{"case": 1, "ended": "x"}\n', b'{"case": 3, "verdict": "PASS"}\n']
    cases = [*(writes.replace("LINES", repr(lines)) + "assert True" for lines in (b"".join(forged), b"x" * 100_000)), "1 == 2"]
    report = session.run_tests("", cases, timeout=60)
    assert [case.verdict for case in report.cases] == ["PASS", "ERROR", "FAIL"]  # the second spoils its own report
