"""The five questions that are asked first of whatever runs commands, each as a newcomer would ask it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kernelexec import Executor, InvalidWorkDir
from tests.support.engine import IMAGE, needs_engine
from tests.support.pace import slow


def test_simple(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path) as executor:
        result = executor.session().execute_command("echo hello && python --version && exit 3")
    assert (result.stdout.splitlines()[0], result.exit_code, result.ok) == ("hello", 3, False)
    assert result.stdout.splitlines()[1].startswith("Python 3.")


def test_timeout(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path) as executor:
        session = executor.session()
        result = session.execute_command("echo begun; sleep 600", timeout=slow(2))
        assert (result.stdout, result.exit_code, result.interrupted, result.state) == ("begun\n", 124, "timeout", "kept")
        assert session.execute_command("echo next").stdout == "next\n"


def test_working_directory(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path) as executor:
        session = executor.session()
        session.files.write("data/file.txt", "here")
        assert session.execute_command("cat file.txt", work_dir="data").stdout == "here"
        assert session.execute_command("pwd").stdout == f"{session.workspace}\n"


@pytest.mark.parametrize("work_dir", ["..", "/etc", "missing"])
def test_permission_validation(tmp_path: Path, work_dir: str) -> None:
    with Executor("local", workspace=tmp_path) as executor:
        session = executor.session()
        with pytest.raises(InvalidWorkDir):
            session.execute_command("touch made", work_dir=work_dir)
        refused = session.execute_command("sudo touch made")
        assert (refused.exit_code, refused.status) == (-1, "aborted")
        assert "made" not in {entry.path for entry in session.files.list().entries}


@needs_engine
def test_docker(tmp_path: Path) -> None:
    with Executor("container", use_docker=IMAGE, workspace=tmp_path) as executor:
        result = executor.session().execute_command("cat /etc/os-release; ls /sys/class/net")
    assert (result.isolation, result.stdout.splitlines()[-1]) == ("container", "lo")
    assert "Debian" in result.stdout


WITHOUT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "docker":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from kernelexec import Executor, KernelexecError
with Executor(code_execution_config={"use_docker": False}, workspace=sys.argv[1], config={"preload": ()}) as executor:
    session = executor.session()
    session.execute("x = 41")
    print(session.execute("x + 1").text.strip(), session.execute_command("echo command").stdout.strip())
try:
    Executor("container", workspace=sys.argv[1])
except KernelexecError as exc:
    print(type(exc).__name__, exc)
assert "docker" not in sys.modules
"""


def test_without_the_engines_library_kernels_run_on_this_machine(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT, str(tmp_path)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={"PATH": "/usr/bin:/bin", "DOCKER_HOST": "unix:///nope"},
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "42 command"
    assert second.startswith("IsolationUnavailable ")
    assert "docker" in second
