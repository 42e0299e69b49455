"""The command as a whole: output, files, exit statuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernelexec import ExecutionResult
from tests.conftest import Command
from tests.support.command_line import (
    AWAY,
    IMPATIENT,
    LOCAL,
    SWALLOW,
    cells_of,
    kernelexec,
    names,
    notebook,
    refused,
    script,
)
from tests.support.pace import slow

#: Stands for a time in which something is printed: as a parameter it must be the same text in each worker.
ENOUGH = "enough"


def test_a_script_runs_in_one_session(tmp_path: Path) -> None:
    done = kernelexec(tmp_path, "run", script(tmp_path, "x = 40", "print('a')\nx + 2", "!echo b"), *LOCAL)
    assert (done.returncode, done.stdout) == (0, "a\n42\nb\n")
    assert done.stderr.splitlines()[-1] == "kernelexec: wrote given.executed.ipynb"
    assert [cell.source for cell in cells_of(tmp_path / "given.executed.ipynb")] == ["x = 40", "print('a')\nx + 2", "!echo b"]
    assert names(tmp_path) == ["given.executed.ipynb", "given.py"]


def test_a_notebook_runs_and_stays_as_it_was(tmp_path: Path, in_process: Command) -> None:
    name = notebook(tmp_path, "x = 1", "%%bash\necho b", "x")
    before = (tmp_path / name).read_bytes()
    done = in_process(tmp_path, "run", name, *LOCAL)
    assert (done.returncode, done.stdout) == (0, "b\n1\n")
    assert (tmp_path / name).read_bytes() == before
    written = json.loads((tmp_path / "given.executed.ipynb").read_text())
    assert [cell["cell_type"] for cell in written["cells"]] == ["markdown", "code", "code", "code"]
    assert [cell.execution_count for cell in cells_of(tmp_path / "given.executed.ipynb")] == [1, 2, 3]


def test_stdin_runs_and_is_written_only_to_the_given_file(tmp_path: Path, in_process: Command) -> None:
    text = "print('\u65e5')\n# %%\nimport os\nos.getcwd()".encode()
    done = kernelexec(tmp_path, "run", "-", *LOCAL, stdin=text)
    assert (done.returncode, done.stdout) == (0, f"\u65e5\n'{tmp_path}'\n")
    assert names(tmp_path) == []
    in_process(tmp_path, "run", "-", *LOCAL, "--output", "out.ipynb", stdin=text)
    assert len(cells_of(tmp_path / "out.ipynb")) == 2


@pytest.mark.parametrize(
    ("source", "args", "status", "stdout"),
    [
        ("print('a')", (), 0, "a\nend\n"),
        ("print('a')\n1/0", (), 1, "a\n"),
        ("!exit 7", (), 7, ""),
        ("import os; os._exit(0)", (), 0, ""),
        ("import time\nprint('a')\ntime.sleep(60)", ("--timeout", ENOUGH), 124, "a\n"),
        (f"import time\nprint('a')\n{SWALLOW}", (*IMPATIENT, "--timeout", ENOUGH), 124, "a\n"),
        ("print('a')\n1/0", ("--allow-errors",), 0, "a\nend\n"),
        ("import os; os._exit(3)", ("--allow-errors",), 0, "end\n"),
        pytest.param(
            "import time; time.sleep(60)", ("--timeout", ENOUGH, "--allow-errors"), 0, "end\n", marks=pytest.mark.nightly
        ),
    ],
)
def test_the_exit_status_says_how_the_cells_ended(
    source: str, args: tuple[str, ...], status: int, stdout: str, tmp_path: Path, in_process: Command
) -> None:
    words = [str(slow(2)) if word == ENOUGH else word for word in args]
    done = in_process(tmp_path, "run", script(tmp_path, source, "print('end')"), *LOCAL, *words)
    assert (done.returncode, done.stdout) == (status, stdout)
    _, last = cells_of(tmp_path / "given.executed.ipynb")
    assert bool(last.outputs) is ("end" in stdout)


def test_a_cell_may_be_tagged_to_fail(tmp_path: Path, in_process: Command) -> None:
    done = in_process(tmp_path, "run", notebook(tmp_path, "1/0", "print('end')", tags=["raises-exception"]), *LOCAL)
    assert (done.returncode, done.stdout) == (0, "end\n")
    assert "hint:" not in done.stderr


def test_json_is_a_result_a_line(tmp_path: Path, in_process: Command) -> None:
    done = in_process(tmp_path, "run", script(tmp_path, "print('a\\nb')", "42", "1/0", "1"), *LOCAL, "--json")
    results = [ExecutionResult.from_json(line) for line in done.stdout.splitlines()]
    assert [(result.text, result.status) for result in results[:2]] == [("a\nb\n", "ok"), ("42", "ok")]
    assert [result.status for result in results] == ["ok", "ok", "error"]
    assert done.returncode == 1
    assert "ZeroDivisionError" not in done.stderr


def test_code_runs_beside_its_file_or_in_the_given_directory(tmp_path: Path, in_process: Command) -> None:
    for name in ("beside", "told"):
        (tmp_path / name).mkdir()
    path = f"beside/{script(tmp_path / 'beside', 'import os; os.getcwd()')}"
    assert in_process(tmp_path, "run", path, *LOCAL).stdout == f"'{tmp_path / 'beside'}'\n"
    (tmp_path / "beside" / "given.executed.ipynb").unlink()
    done = in_process(tmp_path, "run", path, *LOCAL, "--work-dir", "told", "--output", "told/out.ipynb")
    assert done.stdout == f"'{tmp_path / 'told'}'\n"
    assert (names(tmp_path / "told"), names(tmp_path / "beside")) == (["out.ipynb"], ["given.py"])
    done = in_process(tmp_path, "exec", "import os; os.getcwd()", *LOCAL, "--work-dir", "told")
    assert done.stdout == f"'{tmp_path / 'told'}'\n"


@pytest.mark.parametrize("source", ["open('ran', 'w')", "1"])
def test_without_a_choice_nothing_runs_and_the_message_names_the_ways_out(
    source: str, tmp_path: Path, in_process: Command
) -> None:
    for args in (("run", script(tmp_path, source)), ("exec", source)):
        line = refused(in_process(tmp_path, *args, KERNELEXEC_FORCE_CONTAINER="1", DOCKER_HOST=AWAY))
        assert "Solutions" in line
        assert "KERNELEXEC_USE_DOCKER=0" in line
    assert names(tmp_path) == ["given.py"]


def test_the_choice_may_be_in_the_environment(tmp_path: Path, in_process: Command) -> None:
    assert in_process(tmp_path, "exec", "1 + 1", KERNELEXEC_USE_DOCKER="0").stdout == "2\n"
    refused(in_process(tmp_path, "exec", "1 + 1", KERNELEXEC_USE_DOCKER="1", KERNELEXEC_FORCE_CONTAINER="1", DOCKER_HOST=AWAY))


@pytest.mark.parametrize(
    ("code", "args", "status", "stdout"),
    [
        ("1 + 1", (), 0, "2\n"),
        ("print('a')\n1/0", (), 1, "a\n"),
        ("!exit 7", (), 7, ""),
        ("!exit 2", (), 2, ""),
        ("%%bash\necho b\nexit 9", (), 9, "b\n"),
        ("!kill -9 $$", (), 137, ""),
        ("import os; os._exit(3)", (), 3, ""),
        ("import os; os._exit(0)", (), 1, ""),
        ("exit()", (), 1, ""),
        ("import time; time.sleep(60)", ("--timeout", "0.5"), 124, ""),
        ("!sleep 60", ("--timeout", "0.5"), 124, ""),
    ],
)
def test_exec_ends_with_the_cells_own_exit_code(
    code: str, args: tuple[str, ...], status: int, stdout: str, tmp_path: Path, in_process: Command
) -> None:
    done = in_process(tmp_path, "exec", code, *LOCAL, *args)
    assert (done.returncode, done.stdout) == (status, stdout)
    assert "Traceback (most recent call last):\n  File" not in done.stderr
    assert names(tmp_path) == []


def test_exec_prints_its_result_as_json(tmp_path: Path, in_process: Command) -> None:
    done = in_process(tmp_path, "exec", "!echo a; exit 7", *LOCAL, "--json")
    result = ExecutionResult.from_json(done.stdout)
    assert (done.returncode, result.exit_code, result.stdout) == (7, 7, "a\n")
    assert done.stdout.count("\n") == 1


def test_exec_takes_a_language(tmp_path: Path, in_process: Command) -> None:
    done = in_process(tmp_path, "exec", "process.stdout.write('a'); process.exit(7)", *LOCAL, "--language", "js")
    assert (done.returncode, done.stdout) == (7, "a")
    assert "language='pyton' is not known here" in refused(in_process(tmp_path, "exec", "1", *LOCAL, "--language", "pyton"))


def test_output_that_stdout_cannot_encode_ends_nothing(tmp_path: Path) -> None:
    done = kernelexec(tmp_path, "exec", "print('\u65e5')\nprint('end')", *LOCAL, PYTHONIOENCODING="latin-1")
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["end"])
