"""Completion in a shell: commands, options and open sessions, as the script of typer asks for them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kernelexec import Executor
from kernelexec.cli.application import PANELS
from tests.conftest import Command
from tests.support.command_line import COMMAND, environment, kernelexec


def complete(command: Command, cwd: Path, words: str) -> list[str]:
    count = len(words.split(" ")) - 1
    done = command(cwd, _KERNELEXEC_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(count))
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_commands_are_completed_and_hidden_ones_are_not(tmp_path: Path, in_process: Command) -> None:
    assert complete(kernelexec, tmp_path, "kernelexec ") == [name for entries in PANELS.values() for name in entries]
    assert complete(in_process, tmp_path, "kernelexec lo") == ["logs"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("kernelexec run --no", ["--no-output"]),
        ("kernelexec exec --isol", ["--isolation"]),
        ("kernelexec image bui", ["build"]),
        ("kernelexec nothing --x", []),
    ],
)
def test_options_and_commands_below_are_completed(tmp_path: Path, words: str, expected: list[str], in_process: Command) -> None:
    assert complete(in_process, tmp_path, words) == expected


def test_names_of_open_sessions_are_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short_path: Path, in_process: Command
) -> None:
    for name in ("KERNELEXEC_RUNTIME_DIR", "TMPDIR"):
        monkeypatch.setenv(name, str(short_path))
    monkeypatch.setattr("tempfile.tempdir", str(short_path))
    with Executor("local", workspace=tmp_path) as executor:
        executor.session("zz-analysis").execute("1")
        executor.session("zz-other")
        for command in ("attach", "stop", "variables", "logs"):
            assert complete(in_process, tmp_path, f"kernelexec {command} zz-a") == ["zz-analysis"]
            assert complete(in_process, tmp_path, f"kernelexec {command} zz-") == ["zz-analysis", "zz-other"]


def test_a_script_for_the_shell_is_printed(tmp_path: Path) -> None:
    words = ["bash", "-c", f"{COMMAND} --show-completion; exit $?"]  # the program asks which shell has started it
    done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "_KERNELEXEC_COMPLETE=complete_bash" in done.stdout
