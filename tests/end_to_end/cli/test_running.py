"""The command while it runs: output as it comes, Ctrl+C, and what is left when it ends."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from pathlib import Path

import pytest

from kernelexec import ExecutionResult
from tests.support.command_line import (
    BOUND,
    IMPATIENT,
    LOCAL,
    SWALLOW,
    WAITS,
    appears,
    cells_of,
    names,
    next_line,
    notebook,
    script,
    started,
    until,
)
from tests.support.night import at_night, named_cases

#: A cell that prints the ids of its kernel and of a process that it started.
FAMILY = "import os, subprocess, time\nprint(os.getpid(), subprocess.Popen(['sleep', '600']).pid)\n"
#: The same with a process in a session of its own.
STRANGER = FAMILY.replace("'600']", "'600'], start_new_session=True")


def has_ended(pid: int) -> bool:
    """Whether a process ends by itself, which need not be our child; one that does not is ended."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        if select.select([fd], [], [], BOUND)[0]:
            return True
        signal.pidfd_send_signal(fd, signal.SIGKILL)
        return False
    finally:
        os.close(fd)


@pytest.mark.parametrize("command", ["exec", *at_night("run")])
def test_output_comes_while_the_cell_runs(command: str, tmp_path: Path) -> None:
    code = f"print('first')\n{WAITS}print('second')"
    with started(tmp_path, command, script(tmp_path, code) if command == "run" else code, *LOCAL) as process:
        assert next_line(process) == "first\n"
        (tmp_path / "go").touch()
        assert next_line(process) == "second\n"
        assert process.wait(BOUND) == 0


def test_a_result_comes_as_json_when_its_cell_ends(tmp_path: Path) -> None:
    with started(tmp_path, "run", script(tmp_path, "1", WAITS + "2"), *LOCAL, "--json") as process:
        assert ExecutionResult.from_json(next_line(process)).text == "1"
        (tmp_path / "go").touch()
        assert ExecutionResult.from_json(next_line(process)).text == "2"
        assert process.wait(BOUND) == 0


def test_the_notebook_is_whole_after_every_cell(tmp_path: Path) -> None:
    with started(tmp_path, "run", script(tmp_path, "print('first')", f"print('second')\n{WAITS}", "3"), *LOCAL) as process:
        assert (next_line(process), next_line(process)) == ("first\n", "second\n")
        cells = cells_of(tmp_path / "given.executed.ipynb")
        (tmp_path / "go").touch()
        assert process.wait(BOUND) == 0
    assert [cell.execution_count for cell in cells] == [1, None, None]
    assert cells[0].outputs[0].text == "first\n"
    assert [cell.execution_count for cell in cells_of(tmp_path / "given.executed.ipynb")] == [1, 2, 3]


def test_an_interrupt_keeps_what_was_there_and_leaves_nothing_running(tmp_path: Path) -> None:
    name = script(tmp_path, "print('before')", STRANGER + "time.sleep(60)", "print('never')")
    with started(tmp_path, "run", name, *LOCAL) as process:
        assert next_line(process) == "before\n"
        line = next_line(process)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=BOUND)
    assert process.returncode == 130
    assert stdout == ""
    assert "kernelexec: ended by request (interrupt); state kept\n" in stderr
    assert stderr.endswith("kernelexec: wrote given.executed.ipynb\n")
    first, second, third = cells_of(tmp_path / "given.executed.ipynb")
    assert first.outputs[0].text == "before\n"
    assert (second.outputs[0].text, second.outputs[-1].ename) == (line, "KeyboardInterrupt")
    assert (third.outputs, third.execution_count) == ([], None)
    assert [has_ended(int(pid)) for pid in line.split()] == [True, True]


@pytest.mark.parametrize("args", [("run", "given.py", "--allow-errors"), ("run", "given.py", "--json"), *at_night(("exec",))])
def test_every_way_to_run_can_be_interrupted(args: tuple[str, ...], tmp_path: Path) -> None:
    code = f"{FAMILY}open('begun', 'w').close()\ntime.sleep(60)"
    script(tmp_path, code, "open('never', 'w')")
    with started(tmp_path, *args, *([code] if args == ("exec",) else []), *LOCAL) as process:
        appears(process, tmp_path / "begun")
        process.send_signal(signal.SIGINT)
        stdout, _ = process.communicate(timeout=BOUND)
    assert process.returncode == 130
    if "--json" in args:
        result = ExecutionResult.from_json(stdout)
        assert (result.interrupted, result.state) == ("request", "kept")
        stdout = result.stdout
    assert all(has_ended(int(pid)) for pid in stdout.split())
    assert not (tmp_path / "never").exists()


def test_a_cell_that_swallows_the_interrupt_is_ended(tmp_path: Path) -> None:
    with started(tmp_path, "run", script(tmp_path, FAMILY + SWALLOW), *LOCAL, *IMPATIENT) as process:
        line = next_line(process)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=BOUND)
    assert process.returncode == 130
    assert "kernelexec: ended by request (kill); state lost\n" in stderr
    assert cells_of(tmp_path / "given.executed.ipynb")[0].outputs[0].text == line
    assert [has_ended(int(pid)) for pid in line.split()] == [True, True]


def test_a_second_interrupt_ends_all_at_once(tmp_path: Path, short_path: Path) -> None:
    name = script(tmp_path, "print('before')", FAMILY + SWALLOW)
    with started(tmp_path, "run", name, *LOCAL, KERNELEXEC_RUNTIME_DIR=str(short_path)) as process:
        assert next_line(process) == "before\n"
        line = next_line(process)
        process.send_signal(signal.SIGINT)
        until(process, "interrupting the cell")
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=BOUND)
    assert process.returncode == 130
    assert "Traceback" not in stderr
    assert names(short_path) == []
    assert cells_of(tmp_path / "given.executed.ipynb")[0].outputs[0].text == "before\n"
    assert [has_ended(int(pid)) for pid in line.split()] == [True, True]


def test_an_interrupt_while_the_kernel_starts_ends_it(tmp_path: Path) -> None:
    interpreter = tmp_path / "python"
    interpreter.write_text("#!/bin/sh\necho $$ > pid.part && mv pid.part pid && exec sleep 600\n")
    interpreter.chmod(0o755)
    with started(tmp_path, "exec", "1", *LOCAL, "--python", str(interpreter)) as process:
        appears(process, tmp_path / "pid")
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=BOUND)
    assert (process.returncode, stdout) == (130, "")
    assert "Traceback" not in stderr
    assert has_ended(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize("how", ["all may fail", *at_night("each may fail")])
def test_an_interrupt_while_another_kernel_starts_ends_the_run(how: str, tmp_path: Path) -> None:
    interpreter = tmp_path / "python"
    slow = "echo $$ > pid.part && mv pid.part pid && exec sleep 600"
    interpreter.write_text(f'#!/bin/sh\nif [ -e begun ]; then {slow}; fi\nexec "{sys.executable}" "$@"\n')
    interpreter.chmod(0o755)
    cells = ("open('begun', 'w').close()\nimport os; os._exit(3)", "1", "open('never', 'w')")
    tagged = how == "each may fail"
    name = notebook(tmp_path, *cells, tags=["raises-exception"]) if tagged else script(tmp_path, *cells)
    with started(
        tmp_path, "run", name, *([] if tagged else ["--allow-errors"]), *LOCAL, "--python", str(interpreter)
    ) as process:
        appears(process, tmp_path / "pid")
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=BOUND)
    assert process.returncode == 130
    assert "Traceback" not in stderr
    assert has_ended(int((tmp_path / "pid").read_text()))
    assert not (tmp_path / "never").exists()


def test_late_code_of_a_pipe_is_run(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "given.py")
    with started(tmp_path, "run", "given.py", *LOCAL) as process:
        with (tmp_path / "given.py").open("w") as pipe:
            time.sleep(0.3)  # it is open now, and empty; a slow machine sees less of that
            pipe.write("print('piped')")
        stdout, stderr = process.communicate(timeout=BOUND)
    assert (process.returncode, stdout) == (0, "piped\n"), stderr


def test_an_interrupt_before_there_is_a_kernel_says_no_more(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "given.py")
    with started(tmp_path, "run", "given.py", *LOCAL) as process, (tmp_path / "given.py").open("w"):  # open: it is read now
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=BOUND)
    assert (process.returncode, stdout, stderr) == (130, "", "")


@pytest.mark.parametrize(
    ("signum", "code"),
    named_cases(
        {
            "SIGKILL": (signal.SIGKILL, FAMILY),
            "SIGKILL, own session": (signal.SIGKILL, STRANGER),
            "SIGTERM": (signal.SIGTERM, FAMILY),
            "SIGTERM, own session": (signal.SIGTERM, STRANGER),
            "SIGHUP": (signal.SIGHUP, FAMILY),
            "SIGHUP, own session": (signal.SIGHUP, STRANGER),
        },
        gate=("SIGKILL, own session", "SIGTERM, own session"),
    ),
)
def test_nothing_that_a_cell_started_outlives_the_command(signum: signal.Signals, code: str, tmp_path: Path) -> None:
    with started(tmp_path, "exec", code + "time.sleep(60)", *LOCAL) as process:
        line = next_line(process)
        process.send_signal(signum)
        process.communicate(timeout=BOUND)
    assert [has_ended(int(pid)) for pid in line.split()] == [True, True]


@pytest.mark.parametrize("signum", [None, signal.SIGTERM, *at_night(signal.SIGINT, signal.SIGHUP)])
def test_the_private_directory_goes_with_the_command(signum: signal.Signals | None, tmp_path: Path, short_path: Path) -> None:
    code = "print('begun')\n" + ("" if signum is None else "import time; time.sleep(60)")
    with started(tmp_path, "exec", code, *LOCAL, KERNELEXEC_RUNTIME_DIR=str(short_path)) as process:
        assert next_line(process) == "begun\n"
        if signum is not None:
            assert names(short_path) != []
            process.send_signal(signum)
        process.communicate(timeout=BOUND)
    assert names(short_path) == []


def test_a_reader_that_goes_away_ends_the_run_quietly(tmp_path: Path) -> None:
    endless = FAMILY + "while True:\n    print('more')\n    time.sleep(0.01)"
    name = script(tmp_path, endless, "open('never', 'w')")
    with started(tmp_path, "run", name, *LOCAL, "--timeout", "600") as process:
        line = next_line(process)
        assert process.stdout is not None
        process.stdout.close()
        process.wait(BOUND)
        assert process.returncode == 141
        assert "Traceback" not in str(process.stderr and process.stderr.read())
    assert [has_ended(int(pid)) for pid in line.split()] == [True, True]
    assert "never" not in names(tmp_path)
