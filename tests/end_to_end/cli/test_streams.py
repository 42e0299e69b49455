"""The command's three streams as a shell may hand them over: closed, full, for the other direction, or unread."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernelexec import ExecutionResult
from tests.support.command_line import LOCAL, kernelexec, names, refused, script
from tests.support.night import at_night, named_cases

CODE = "open('ran', 'w'); print('out')"
COMMANDS = {
    "exec": ("exec", CODE, *LOCAL),
    "exec as json": ("exec", CODE, *LOCAL, "--json"),
    "run": ("run", "given.py", *LOCAL),
    "run as json": ("run", "given.py", *LOCAL, "--json"),
    "doctor": ("doctor", *LOCAL),
    "doctor as json": ("doctor", "--json", *LOCAL),
    "version": ("--version",),
}
#: The same as parameters, one each.
_SINGLE = {name: (words,) for name, words in COMMANDS.items()}
NOT_OPEN = "stdout must be open for writing."


@pytest.mark.parametrize("how", [">&-", *(pytest.param(how, marks=pytest.mark.nightly) for how in ("1</dev/null", ">&- <&-"))])
@pytest.mark.parametrize("args", COMMANDS.values(), ids=COMMANDS)
def test_a_stdout_that_takes_nothing_is_reported_before_anything_runs(args: tuple[str, ...], how: str, tmp_path: Path) -> None:
    script(tmp_path, CODE)
    assert NOT_OPEN in refused(kernelexec(tmp_path, *args, via=f'exec "$@" {how}'))
    assert names(tmp_path) == ["given.py"]


@pytest.mark.parametrize("buffered", ["", pytest.param("1", marks=pytest.mark.nightly)], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("args", named_cases(_SINGLE, gate=("exec", "run as json", "version")))
def test_a_full_disk_behind_stdout_is_reported_and_nothing_else(args: tuple[str, ...], buffered: str, tmp_path: Path) -> None:
    script(tmp_path, CODE)
    done = kernelexec(tmp_path, *args, via='exec "$@" >/dev/full', PYTHONUNBUFFERED=buffered)
    assert done.returncode == 125
    assert done.stderr.splitlines()[-1] == "kernelexec: stdout cannot be written: No space left on device."
    assert all(line.startswith("kernelexec: ") for line in done.stderr.splitlines())


@pytest.mark.parametrize("buffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_help_that_cannot_be_written_is_reported_in_one_line(buffered: str, tmp_path: Path) -> None:
    done = kernelexec(tmp_path, "--help", via='exec "$@" >/dev/full', PYTHONUNBUFFERED=buffered)
    assert "No space left on device" in refused(done)


@pytest.mark.parametrize("how", ["2>&- <&-", *at_night("2>&-")])
def test_a_closed_stderr_costs_only_its_own_text(how: str, tmp_path: Path) -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr)"
    done = kernelexec(tmp_path, "exec", code, *LOCAL, via=f'exec "$@" {how}')
    assert (done.returncode, done.stdout, done.stderr) == (0, "out\n", "")
    done = kernelexec(tmp_path, "run", script(tmp_path, code), *LOCAL, via=f'exec "$@" {how}')
    assert (done.returncode, done.stdout, done.stderr) == (0, "out\n", "")


def test_nothing_open_at_all_is_reported_by_the_exit_status(tmp_path: Path) -> None:
    assert kernelexec(tmp_path, *COMMANDS["exec"], via='exec "$@" <&- >&- 2>&-').returncode == 125
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("<&-", "stdin is closed: there is nothing to run."),
        ("0>made", "stdin cannot be read: Bad file descriptor."),
        ("</dev/null", "stdin must contain a code cell: there is nothing to run."),
    ],
)
def test_a_stdin_that_gives_nothing_is_reported(how: str, reason: str, tmp_path: Path) -> None:
    assert refused(kernelexec(tmp_path, "run", "-", *LOCAL, via=f'exec "$@" {how}')) == f"kernelexec: {reason}"


def test_an_unread_stdin_may_be_closed(tmp_path: Path) -> None:
    done = kernelexec(tmp_path, "exec", "!cat; echo end", *LOCAL, via='exec "$@" <&-')
    assert (done.returncode, done.stdout) == (0, "end\n")


@pytest.mark.parametrize("args", [("--version",), ("exec", "while True: print(1)", *LOCAL)])
def test_a_reader_that_goes_away_is_reported_as_by_a_shell(args: tuple[str, ...], tmp_path: Path) -> None:
    done = kernelexec(tmp_path, *args, via='{ "$@"; echo "status $?" >&2; } | true')
    assert done.stderr.splitlines()[-1] == "status 141"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("encoding", ["ascii", *at_night("latin-1", "utf-8")])
def test_json_is_json_whatever_stdout_can_encode(encoding: str, tmp_path: Path) -> None:
    text = "caf\u00e9 \u65e5 \U0001f389"
    done = kernelexec(tmp_path, "exec", f"print({text!r})", *LOCAL, "--json", PYTHONIOENCODING=encoding)
    assert json.loads(done.stdout)["status"] == "ok"
    assert ExecutionResult.from_json(done.stdout).stdout == f"{text}\n"
