"""Too few file descriptors: a clear error before anything runs, and never a wait without an end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.night import at_night

COMMAND = [sys.executable, "-m", "kernelexec", "exec", "--isolation", "local", "print(6 * 7)"]


def run_limited(limit: int, directory: Path) -> subprocess.CompletedProcess[str]:
    command = ["sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh", *COMMAND]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("limit", [24, *at_night(32, 40, 48), 63])
def test_a_low_limit_is_a_clear_error(limit: int, tmp_path: Path) -> None:
    ended = run_limited(limit, tmp_path)
    assert ended.returncode != 0
    assert ended.stdout == ""
    assert f"The limit of open files is {limit}, and " in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("limit", [64, *at_night(80)])
def test_the_smallest_limit_suffices_for_a_session(limit: int, tmp_path: Path) -> None:
    ended = run_limited(limit, tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "42\n"), ended.stderr


def test_sessions_beyond_the_limit_are_errors_and_the_others_go_on(tmp_path: Path) -> None:
    code = """
from kernelexec import Executor, KernelexecError
with Executor("local", config={"preload": ()}) as executor:
    sessions, errors = [], []
    for number in range(40):
        try:
            session = executor.session(f"s{number}")
            session.execute("x = 1").raise_for_error()
            sessions.append(session)
        except KernelexecError as exc:
            errors.append(str(exc))
            if len(errors) == 3:
                break
    assert sessions and errors and all("Too many open files" in error for error in errors), errors
    assert sessions[0].execute("x").text == "1"
"""
    command = ["sh", "-c", 'ulimit -n 100; exec "$@"', "sh", sys.executable, "-c", code]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stderr
