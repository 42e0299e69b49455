"""Programs that exit: `run` ends there with their status, and a session keeps its state."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kernelexec import Session
from tests.conftest import Command
from tests.support.command_line import BOUND, LOCAL, WAITS, cells_of, next_line, notebook, script, started
from tests.support.night import named_cases
from tests.support.pace import slow

#: What runs in containers in the gate too: how a kernel is had makes no difference to the other tests here.
ALSO_CONFINED = ("test_without_a_status_exit_ends_the_kernel_and_the_cell[container-exit()]",)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("import sys; sys.exit()", 0),
        ("quit()", 0),
        ("exit", 0),
        ("exit(3)", 3),
        ("import sys; sys.exit('why')", 1),
        ("import os; os._exit(0)", 0),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137),
        ("import asyncio; await asyncio.sleep(0); raise SystemExit(4)", 4),
        *(
            pytest.param(code, status, marks=pytest.mark.nightly)
            for code, status in (
                ("import sys; sys.exit(main())", 0),
                ("raise SystemExit", 0),
                ("exit()", 0),
                ("import sys; sys.exit(256)", 0),
                ("exit(0)", 0),
                ("exit(True)", 1),
                ("quit(3)", 3),
                ("import sys; sys.exit(-1)", 255),
                ("import os; os._exit(3)", 3),
                ("import argparse; argparse.ArgumentParser().parse_args(['-z'])", 2),
            )
        ),
    ],
)
def test_a_program_that_exits_ends_there_with_its_status(code: str, status: int, tmp_path: Path, in_process: Command) -> None:
    before = "def main(): return 0\nprint('before')\n"
    name = script(tmp_path, before, code if code == "exit" else f"print('in')\n{code}\nprint('after')", "print('after')")
    done = in_process(tmp_path, "run", name, *LOCAL)
    assert (done.returncode, done.stdout.replace("in\n", "")) == (status, "before\n")
    assert "To exit" not in done.stderr
    assert status or "state" not in done.stderr
    plain = subprocess.run([sys.executable, tmp_path / name], capture_output=True, text=True, check=False)
    expected = 128 - plain.returncode if plain.returncode < 0 else plain.returncode  # as a shell has it
    assert expected == status or code == "exit" or "await" in code


@pytest.mark.parametrize("is_tagged", [True, False])
def test_an_expected_failure_by_exit_is_no_end(is_tagged: bool, tmp_path: Path, in_process: Command) -> None:  # noqa: FBT001
    cells = ("raise SystemExit(3)", "print('on')", "raise SystemExit", "print('never')")
    name = notebook(tmp_path, *cells, tags=["raises-exception"] if is_tagged else [])
    done = in_process(tmp_path, "run", name, *LOCAL, *([] if is_tagged else ["--allow-errors"]))
    assert (done.returncode, done.stdout) == (0, "on\n")


@pytest.mark.parametrize(
    ("code", "status", "exit_status"),
    [
        ("import sys; sys.exit()", "ok", 0),
        ("raise SystemExit", "ok", 0),
        ("import sys; sys.exit(False)", "ok", 0),
        ("import sys; sys.exit(3)", "error", 3),
        ("raise SystemExit('why')", "error", 1),
        ("exit(3)", "error", 3),
        ("class Odd(SystemExit):\n    code = property(lambda self: 1 / 0)\nraise Odd", "error", 1),
        ("import asyncio; await asyncio.sleep(0); raise SystemExit", "ok", 0),
        ("%%time\nraise SystemExit", "ok", 0),
        ("%%capture\nraise SystemExit", "ok", 0),
        ("%%capture\nraise SystemExit(3)", "error", 3),
        ("exit(0)", "ok", 0),
        ("quit(0)", "ok", 0),
        ("exit(None)", "ok", 0),
        ("exit(True)", "error", 1),
        ("class Odd(SystemExit):\n    def __str__(self): return 1 / 0\nraise Odd(4)", "error", 4),
    ],
)
@pytest.mark.shared_session
def test_an_exit_keeps_the_state_of_a_session(session: Session, code: str, status: str, exit_status: int | None) -> None:
    session.execute("x = 'kept'")
    head, _, rest = code.partition("\n") if code.startswith("%%") else ("print('in')", "", code)
    result = session.execute(f"{head}\nprint('in')\n{rest}\nprint('after')")
    assert (result.status, result.exit_code, result.exit_status) == (status, int(status == "error"), exit_status)
    assert (result.state, result.cause, "after" in result.text) == ("kept", None, False)
    assert "To exit" not in result.text
    assert (result.error is None) == (status == "ok")
    assert session.execute("x").value == "kept"


@pytest.mark.shared_session
def test_a_script_within_a_cell_exits_with_its_status(session: Session) -> None:
    (session.workspace / "exits.py").write_text("raise SystemExit(3)")
    result = session.execute("%run exits.py\nprint('after')")
    assert (result.status, result.exit_status, result.stdout) == ("error", 3, "after\n")
    nested = "get_ipython().run_cell('raise SystemExit')\n1 / 0"
    assert (session.execute(nested).status, session.execute(nested).exit_status) == ("error", None)


@pytest.mark.parametrize("code", ["exit()", "quit()", "exit"])
def test_without_a_status_exit_ends_the_kernel_and_the_cell(session: Session, code: str) -> None:
    session.execute("x = 1")
    result = session.execute(code if code == "exit" else f"print('in')\n{code}\nprint('after')")
    assert (result.status, result.exit_code, result.exit_status) == ("error", 1, 0)
    assert (result.state, result.cause, result.lost_names) == ("lost", "exited", ("x",))
    assert "after" not in result.text


@pytest.mark.shared_session
def test_a_forked_child_exits_with_its_status(session: Session) -> None:
    code = "import os, sys\nchild = os.fork()\nif not child: sys.exit(3)\nos.waitstatus_to_exitcode(os.waitpid(child, 0)[1])"
    assert session.execute(code).value == 3


#: A last line of a script that reads the arguments of its program and ends with 0.
READ_ARGUMENTS = {
    "argparse": "import argparse; options = argparse.ArgumentParser().parse_args()",
    "unittest": "import unittest\nclass Test(unittest.TestCase):\n    def test(self): pass\nunittest.main()",
}


@pytest.mark.parametrize("code", named_cases(READ_ARGUMENTS, gate=("argparse",)))
def test_a_script_has_no_argument_but_its_name(code: str, tmp_path: Path, in_process: Command) -> None:
    name = script(tmp_path, "import sys; print(sys.argv)", code)
    done = in_process(tmp_path, "run", name, *LOCAL)
    assert (done.returncode, done.stdout) == (0, "['given.py']\n"), done.stderr
    done = in_process(tmp_path, "run", "-", *LOCAL, stdin=(tmp_path / name).read_bytes())
    assert (done.returncode, done.stdout) == (0, "['-']\n"), done.stderr


#: A script that ends while a thread of it waits for a file.
THREADS = f"""
import threading
from concurrent.futures import ThreadPoolExecutor
def work():
    {WAITS.replace(chr(10), chr(10) + "    ")}
    print('worked')
print('begun', flush=True)
ThreadPoolExecutor(1).submit(print, 'idle').result()
threading.Thread(target=work).start()
"""


@pytest.mark.parametrize(
    ("end", "status"),
    named_cases(
        {"the last line": ("", 0), "SystemExit": ("raise SystemExit", 0), "exit": ("exit(3)", 3), "an error": ("1 / 0", 1)},
        gate=("the last line", "exit"),
    ),
)
def test_a_script_ends_when_its_threads_have_ended(end: str, status: int, tmp_path: Path) -> None:
    with started(tmp_path, "run", script(tmp_path, THREADS + end), *LOCAL, "--timeout", "600") as process:
        assert (next_line(process), next_line(process)) == ("begun\n", "idle\n")
        (tmp_path / "go").touch()
        assert (next_line(process), process.wait(BOUND)) == ("worked\n", status)
    [cell] = cells_of(tmp_path / "given.executed.ipynb")
    assert "worked\n" in "".join(output.get("text", "") for output in cell.outputs)


def test_the_wait_for_threads_ends_with_the_timeout_or_an_interrupt(tmp_path: Path, in_process: Command) -> None:
    name = script(tmp_path, THREADS)
    done = in_process(tmp_path, "run", name, *LOCAL, "--timeout", str(slow(2)))
    assert "given.py: its threads have not ended" in done.stderr
    assert done.returncode == 124
    with started(tmp_path, "run", name, *LOCAL, "--timeout", "600") as process:
        assert (next_line(process), next_line(process)) == ("begun\n", "idle\n")
        process.send_signal(signal.SIGINT)
        assert process.wait(BOUND) == 130


def test_an_exit_that_ends_the_kernel_fails_if_threads_are_cut(tmp_path: Path, in_process: Command) -> None:
    done = in_process(tmp_path, "run", script(tmp_path, THREADS + "exit()"), *LOCAL)
    assert done.returncode == 1
    assert "its threads or exit handlers did not end in time" in done.stderr
