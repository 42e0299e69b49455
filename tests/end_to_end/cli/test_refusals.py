"""What the command does not take is one line on stderr and exit status 125, before anything runs."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.conftest import Command
from tests.support.command_line import LOCAL, cells_of, kernelexec, names, refused, script
from tests.support.night import at_night
from tests.support.paths import ROOT

GUIDE = (ROOT / "kernelexec" / "guide" / "command_line.md").read_text(encoding="utf-8")
RAN = b"open('ran', 'w')"
LONG = "x" * 300
#: A name that is short enough itself, but not with what is put before and after it while it is written.
NEARLY = "x" * 248
REFUSED: dict[str, tuple[str, bytes, tuple[str, ...], str]] = {
    "no name": ("", RAN, (), "'FILE...': must not be empty"),
    "a missing file": ("missing.py", RAN, (), "missing.py cannot be read: No such file"),
    "a name that is too long": (LONG, RAN, (), "cannot be read: File name too long"),
    "a directory": (".", RAN, (), "cannot be read: Is a directory"),
    "no utf-8": ("given.py", RAN + b"\xff", (), "given.py cannot be read: 'utf-8' codec"),
    "an empty file": ("given.py", b"", (), "given.py must contain a code cell"),
    "an empty notebook": ("given.ipynb", b"", (), "given.ipynb is no notebook"),
    "no json": ("given.ipynb", RAN, (), "given.ipynb is no notebook"),
    "no cells": ("given.ipynb", b'{"nbformat": 4, "nbformat_minor": 5, "metadata": {}}', (), "is no notebook"),
    "an empty stdin": ("-", b" \n", (), "stdin must contain a code cell"),
    "a stdin that is no utf-8": ("-", RAN + b" # \xff", (), "stdin is not UTF-8 (byte 19)"),
    "no time": ("given.py", RAN, ("--timeout", "0"), "timeout=0.0"),
    "less than no time": ("given.py", RAN, ("--timeout", "-1"), "timeout=-1.0"),
    "no number": ("given.py", RAN, ("--timeout", "nan"), "timeout=nan"),
    "no such work dir": ("given.py", RAN, ("--work-dir", "missing"), "'missing' does not exist"),
    "an empty work dir": ("given.py", RAN, ("--work-dir", ""), "'--work-dir': must not be empty"),
    "a work dir that is a file": ("given.py", RAN, ("--work-dir", "given.py"), "'given.py' is not a directory"),
    "no such interpreter": ("given.py", RAN, ("--python", "/missing/python"), "/missing/python cannot be started: No such"),
    "an empty interpreter": ("given.py", RAN, ("--python", ""), "'--python': must not be empty"),
    "a blank interpreter": ("given.py", RAN, ("--python", " "), "'--python': must not be empty"),
    "an interpreter that is none": ("given.py", RAN, ("--python", "/bin/false"), "The kernel ended while it started"),
    "an interpreter that is a directory": ("given.py", RAN, ("--python", "/"), "/ cannot be started: Permission denied"),
    "an unknown isolation": ("given.py", RAN, ("--isolation", "lokal"), "did you mean 'local'"),
    "an empty isolation": ("given.py", RAN, ("--isolation", ""), "'--isolation': must not be empty"),
    "a second cell with a NUL": ("given.py", RAN + b"\n# %%\n'\0'", (), "NUL"),
    "an empty output": ("given.py", RAN, ("--output", ""), "'-o': must not be empty"),
    "an output without a directory": (
        "given.py",
        RAN,
        ("--output", "missing/out.ipynb"),
        "missing/out.ipynb cannot be written",
    ),
    "an output below a file": ("given.py", RAN, ("--output", "given.py/out.ipynb"), "cannot be written: Not a directory"),
    "an output where no file can be": ("given.py", RAN, ("--output", "/proc/out.ipynb"), "/proc/out.ipynb cannot be written"),
    "an output with a long name": ("given.py", RAN, ("--output", f"{LONG}.ipynb"), "cannot be written: File name too long"),
    "an output that gets a long name": ("given.py", RAN, ("--output", f"{NEARLY}.ipynb"), "written: File name too long"),
    "an output that is a directory": ("given.py", RAN, ("--output", "taken.ipynb"), "taken.ipynb is not a regular file"),
    "an output that is a pipe": ("given.py", RAN, ("--output", "pipe.ipynb"), "pipe.ipynb is not a regular file"),
    "an output that is a link to a device": ("given.py", RAN, ("--output", "link.ipynb"), "link.ipynb is not a regular file"),
    "an output of another kind": ("given.py", RAN, ("--output", "out.html"), "--output must end in .ipynb"),
    "an output that is the file": ("given.ipynb", b"", ("--output", "given.ipynb"), "given.ipynb is"),
    "an output that nobody named": (f"{NEARLY[:240]}.py", RAN, (), "File name too long. Choose another path with --output"),
}


@pytest.mark.parametrize(("name", "content", "args", "reason"), REFUSED.values(), ids=REFUSED)
def test_invalid_files_are_refused_in_one_line_before_anything_runs(
    name: str, content: bytes, args: tuple[str, ...], reason: str, tmp_path: Path, in_process: Command
) -> None:
    settings = name if name.startswith("x") and name != LONG else f"given{Path(name).suffix or '.py'}"
    (tmp_path / settings).write_bytes(content)
    (tmp_path / "taken.ipynb").mkdir()
    os.mkfifo(tmp_path / "pipe.ipynb")
    (tmp_path / "link.ipynb").symlink_to("/dev/null")
    before = names(tmp_path)
    isolation = () if "--isolation" in args else LOCAL
    done = in_process(tmp_path, "run", name, *isolation, *args, stdin=content, PYTHONIOENCODING="utf-8:strict")
    assert reason in refused(done)
    assert names(tmp_path) == before
    assert (tmp_path / "link.ipynb").is_symlink()


@pytest.mark.parametrize(
    ("code", "args", "reason"),
    [
        ("", (), "code is empty"),
        (" ", (), "code is empty"),
        ("'\udcff'", (), "lone surrogate at position 1"),
        ("1", ("--timeout", "0"), "timeout=0.0"),
        ("1", ("--timeout", ""), "'--timeout'"),
        ("1", ("--work-dir", ""), "'--work-dir': must not be empty"),
        ("1", ("--python", ""), "'--python': must not be empty"),
    ],
)
def test_exec_refuses_what_it_cannot_run(
    code: str, args: tuple[str, ...], reason: str, tmp_path: Path, in_process: Command
) -> None:
    assert reason in refused(in_process(tmp_path, "exec", code, *LOCAL, *args))


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (("run",), "Missing argument 'FILE...'. See `kernelexec run --help`."),
        (("exec",), "code is empty: there is nothing to run, so a loop goes on without it."),
        (("exec", "1", "2"), "unexpected extra argument"),
        (("jump",), "No such command 'jump'"),
        (("run", "-", "--jump"), "No such option: --jump"),
        (("exec", "1", "--timeout"), "Option '--timeout' requires an argument"),
        (("exec", "1", "--timeout", "soon"), "Invalid value for '--timeout'"),
        (("doctor", "--python", ""), "Invalid value for '--python': must not be empty"),
    ],
)
def test_wrong_usage_is_reported_in_one_line(args: tuple[str, ...], reason: str, tmp_path: Path, in_process: Command) -> None:
    assert reason in refused(in_process(tmp_path, *args))


def test_without_a_command_the_help_is_shown(tmp_path: Path, in_process: Command) -> None:
    done = in_process(tmp_path)
    assert (done.returncode, done.stderr) == (125, "")
    assert all(command in done.stdout for command in ("run", "exec", "doctor"))


@pytest.mark.parametrize("args", [("run", "-"), ("exec", "1", "--work-dir", "/"), *at_night(("exec", "1"), ("doctor",))])
def test_a_current_directory_that_is_gone_is_reported(args: tuple[str, ...], tmp_path: Path) -> None:
    done = kernelexec(tmp_path, *args, *LOCAL, stdin=b"1", via='mkdir gone; cd gone; rmdir ../gone; exec "$@"')
    assert "The current directory cannot be used: No such file or directory." in refused(done)


def test_a_relative_interpreter_counts_from_the_current_directory(tmp_path: Path, in_process: Command) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "python").symlink_to("/missing/python")
    done = in_process(tmp_path, "exec", "1", *LOCAL, "--python", "./python", "--work-dir", "inner")
    assert (
        f"{tmp_path}/python cannot be started: No such file or directory (/missing/python, which it is a link to)"
        in refused(done)
    )


def test_a_notebook_that_can_no_longer_be_written_ends_the_run(tmp_path: Path, in_process: Command) -> None:
    (tmp_path / "out").mkdir()
    sources = ("1", "import shutil; shutil.rmtree('out')", "open('never', 'w')")
    done = in_process(tmp_path, "run", script(tmp_path, *sources), *LOCAL, "--output", "out/out.ipynb")
    assert done.returncode == 125
    assert "kernelexec: out/out.ipynb cannot be written after cell 2: No such file or directory." in done.stderr.splitlines()
    assert "Traceback" not in done.stderr
    assert names(tmp_path) == ["given.py"]


def test_a_file_that_is_there_is_replaced_and_nothing_else_is_left(tmp_path: Path, in_process: Command) -> None:
    (tmp_path / "out.ipynb").write_text("before")
    done = in_process(tmp_path, "run", script(tmp_path, "1"), *LOCAL, "--output", "out.ipynb")
    assert done.returncode == 0
    assert len(cells_of(tmp_path / "out.ipynb")) == 1
    assert names(tmp_path) == ["given.py", "out.ipynb"]


@pytest.mark.parametrize("command", ["run", "exec"])
def test_the_help_and_the_guide_name_the_same_exit_statuses(command: str, tmp_path: Path, in_process: Command) -> None:
    [section] = re.findall(r"^## Exit status\n(.*?)^## ", GUIDE, re.MULTILINE | re.DOTALL)
    statuses = {"0", "1", "124", "125", "126", "130"}
    assert set(re.findall(r"^\| (\d+) \|", section, re.MULTILINE)) == statuses
    shown = " ".join(in_process(tmp_path, command, "--help", COLUMNS="200").stdout.partition("Exit status:")[2].split())
    assert set(re.findall(r"\b(?:0|1|\d{3})\b", shown)) == statuses
    for status in (
        "124 after a timeout",
        "125 if kernelexec itself failed: wrong usage, bad input, no kernel",
        "126 for a command that the rules refuse",
        "130 after Ctrl+C",
    ):
        assert status in shown
    for cause in ("timeout", "kernelexec itself failed: wrong usage, bad input, no kernel", "the rules refuse", "Ctrl+C"):
        assert cause in section
    assert ("that of the command" in shown) is (command == "exec")
