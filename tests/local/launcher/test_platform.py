"""What differs between systems in the kernel's process: each choice for each system, and what comes of it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernelexec.launcher import platform
from kernelexec.launcher.features.virtualenv import VirtualEnv
from kernelexec.launcher.platform import LauncherPlatform
from kernelexec.launcher.processes import proc
from kernelexec.launcher.processes.background_commands import Jobs
from kernelexec.launcher.processes.command import RunningCommand
from kernelexec.launcher.processes.shell_session import ShellSession
from tests.support.takeovers import wait_until
from tests.unit.launcher.test_platform import GROUP, become, system

__all__ = ["system"]


class Runs:
    """Stands where the interactive shell runs a command, and keeps the commands."""

    programs = VirtualEnv({})

    def __init__(self, scratch: Path) -> None:
        self.scratch = str(scratch)
        self.reported: list[tuple[list[str], str | None]] = []

    def run_argv(
        self, argv: list[str], *, text: str, stdin: str | None, cwd: str | None, env: dict[str, str], **_streams: Any
    ) -> None:
        assert text in argv[-2 if platform.PLATFORM.keeps_shell_state else -1]
        self.reported.append((argv, cwd))
        if platform.PLATFORM.keeps_shell_state:
            subprocess.run(argv, cwd=cwd, env=env, input=stdin, text=True, check=True)


def test_changes_of_a_command_last_where_the_shell_can_save_them(
    system: LauncherPlatform, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shell, lasting = Runs(tmp_path), ShellSession()
    lasting.run(shell, f"cd {tmp_path}; export KX_LASTS=1", None, None)
    lasting.run(shell, "true", None, None)
    directory, env = lasting.next_start(shell)
    (_, first), (argv, second) = shell.reported
    assert first is None
    if system.keeps_shell_state:
        assert (directory, second, env["KX_LASTS"]) == (str(tmp_path), str(tmp_path), "1")
    else:
        assert argv == ["cmd", "/c", "true"]
        assert (directory, second, "KX_LASTS" in env) == (None, None, False)
    assert capsys.readouterr().err.count("do not last on this system") == (not system.keeps_shell_state)


@pytest.mark.parametrize("name", ["linux", "darwin"])
def test_a_command_runs_with_and_without_descriptors_of_processes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    become(name, monkeypatch)
    out: list[str] = []
    err: list[str] = []
    code = RunningCommand(["sh", "-c", "cat; printf err >&2; exit 7"], out=out.append, err=err.append, stdin="in").run()
    assert (code, "".join(out), "".join(err)) == (7, "in", "err")


def test_a_command_for_which_there_is_no_descriptor_left_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    out: list[str] = []
    assert RunningCommand(["sh", "-c", "exec >&- 2>&-; sleep 0.2; exit 7"], out=out.append, err=None).run() == 7


@pytest.mark.parametrize("name", ["linux", "darwin"])
def test_an_interrupted_command_ends_with_its_group(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    become(name, monkeypatch)
    pids: list[int] = []

    def interrupt(text: str) -> None:
        pids.extend(map(int, text.split()))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        RunningCommand(["sh", "-c", "trap '' INT; sleep 600 & echo $$ $!; wait"], out=interrupt, err=None).run()
    assert len(pids) == 2
    wait_until(lambda: all((status := proc.read_status(pid)) is None or status.has_ended for pid in pids))


LIMITED = "from kernelexec.launcher import owner, platform; {gone}owner.apply_limits({{'nofile': 99, 'odd': 1}}); {reported}"


SHOW_LIMITS = (
    "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], resource.getrlimit(resource.RLIMIT_CORE)[0])"
)


def test_limits_are_lowered_where_the_system_has_any() -> None:
    def reported(code: str) -> str:
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert reported(LIMITED.format(gone="", reported=SHOW_LIMITS)) == "99 0\n"
    assert reported(LIMITED.format(gone="platform.resource = None; ", reported=SHOW_LIMITS)) == reported(SHOW_LIMITS)


def test_a_command_beside_the_cells_is_ended_by_its_group(system: LauncherPlatform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "PLATFORM", replace(system, new_group_options=GROUP))  # it runs on this machine all the same
    jobs = Jobs(set())

    def start(*_: object) -> tuple[list[str], None, dict[str, str]]:
        return ["sleep", "600"], None, dict(os.environ)

    assert jobs.answer({"action": "start", "name": "a", "command": "sleep 600"}, start)["job"]["status"] == "running"
    jobs.answer({"action": "kill", "name": "a"}, start)
    wait_until(lambda: jobs.answer({"action": "list"}, start)["jobs"][0]["status"] == "killed")
