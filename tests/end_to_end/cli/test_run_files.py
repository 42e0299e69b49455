"""``kernelexec run`` with parameters, several files, and copies and reports where the caller wants them."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import nbformat
import pytest
from papermill.execute import execute_notebook

from kernelexec.cli.run_files import join_parameters
from tests.conftest import Command
from tests.support.command_line import (
    BOUND,
    LOCAL,
    appears,
    cells_of,
    kernelexec,
    names,
    next_line,
    notebook,
    refused,
    script,
    started,
)
from tests.support.night import at_night

QUIET = (*LOCAL, "--quiet")


def parametrised(cwd: Path, name: str = "p.ipynb") -> Path:
    """A notebook with a cell of parameters."""
    cells = [
        nbformat.v4.new_markdown_cell("# The report\n\ntext\n## A part ##"),
        nbformat.v4.new_code_cell("x = 1\nname = 'none'", metadata={"tags": ["parameters"]}),
        nbformat.v4.new_code_cell("print(x, repr(name))"),
    ]
    metadata = {"kernelspec": {"name": "python3", "language": "python", "display_name": "Python 3"}}
    (cwd / name).write_text(nbformat.writes(nbformat.v4.new_notebook(cells=cells, metadata=metadata)))
    return cwd / name


def test_parameters_give_what_papermill_gives(tmp_path: Path, in_process: Command) -> None:
    path = parametrised(tmp_path)
    done = in_process(tmp_path, "run", path.name, "-p", "x", "41.5", "-p", "name", "a b=c", *QUIET)
    assert (done.returncode, done.stdout) == (0, "41.5 'a b=c'\n"), done.stderr
    execute_notebook(path, tmp_path / "o.ipynb", {"x": 41.5, "name": "a b=c"}, progress_bar=False, cwd=tmp_path)
    actual, expected = cells_of(tmp_path / "p.executed.ipynb"), cells_of(tmp_path / "o.ipynb")
    for cell, other in zip(actual, expected, strict=True):
        assert (cell.source.strip(), cell.outputs, cell.execution_count) == (
            other.source.strip(),
            other.outputs,
            other.execution_count,
        )
        assert cell.metadata.get("tags", []) == other.metadata.tags


def test_a_file_of_parameters_is_overridden_by_the_command_line(tmp_path: Path, in_process: Command) -> None:
    parametrised(tmp_path)
    (tmp_path / "p.yaml").write_text("x: [1, {a: null}]\nname: file\n")
    done = in_process(tmp_path, "run", "p.ipynb", "--params", "p.yaml", "--parameter", "name=line", "--no-output", *QUIET)
    assert (done.returncode, done.stdout) == (0, "[1, {'a': None}] 'line'\n"), done.stderr
    assert names(tmp_path) == ["p.ipynb", "p.yaml"]


def test_a_parameter_that_the_notebook_does_not_have_is_set_and_named(tmp_path: Path, in_process: Command) -> None:
    parametrised(tmp_path)
    done = in_process(tmp_path, "run", "p.ipynb", "-p", "nane", "typo", *QUIET)
    assert (done.returncode, done.stdout) == (0, "1 'none'\n")
    assert "p.ipynb: its cell of parameters, if there is one, does not have nane" in done.stderr


def test_a_script_has_parameters_too(tmp_path: Path, in_process: Command) -> None:
    done = in_process(tmp_path, "run", script(tmp_path, "print(x)"), "-p", "x", "3", *QUIET)
    assert (done.returncode, done.stdout) == (0, "3\n")


@pytest.mark.parametrize(
    ("words", "joined"),
    [
        (["a.ipynb", "-p", "x", "1"], ["a.ipynb", "-p", "x=1"]),
        (["-p", "x=1", "a.ipynb"], ["-p", "x=1", "a.ipynb"]),
        (["--parameter", "x", "-1", "-p", "y", "a=b"], ["--parameter", "x=-1", "-p", "y=a=b"]),
        (["-p", "x"], ["-p", "x"]),
        (["-p"], ["-p"]),
        (["--", "-p", "x", "1"], ["--", "-p", "x", "1"]),
    ],
)
def test_a_parameter_is_two_words_or_one(words: list[str], joined: list[str]) -> None:
    assert join_parameters(words) == joined


def test_a_notebook_is_replaced_by_the_executed_one(tmp_path: Path, in_process: Command) -> None:
    done = in_process(tmp_path, "run", notebook(tmp_path, "1 + 1"), "--inplace", *QUIET)
    assert done.returncode == 0, done.stderr
    assert names(tmp_path) == ["given.ipynb"]
    assert cells_of(tmp_path / "given.ipynb")[0].outputs[0].data["text/plain"] == "2"


@pytest.mark.nightly  # in the gate the job of the operators' page makes reports, of a failure too
def test_a_report_is_a_page_of_the_notebook(tmp_path: Path, in_process: Command) -> None:
    path = parametrised(tmp_path)
    done = in_process(tmp_path, "run", path.name, "-p", "x", "77", "--html", "report.html", "--no-output", *QUIET)
    assert done.returncode == 0, done.stderr
    assert "wrote report.html" in done.stderr
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<html" in page
    assert "The report" in page
    assert "77 'none'" in page
    failing = in_process(tmp_path, "run", notebook(tmp_path, "print('before')", "1/0"), "--html", "f.html", *QUIET)
    assert failing.returncode == 1
    assert "ZeroDivisionError" in (tmp_path / "f.html").read_text(encoding="utf-8"), "a report of a failure is one too"


def test_eight_notebooks_run_four_at_a_time(tmp_path: Path, in_process: Command) -> None:
    barrier = (
        "import os, time\nfrom pathlib import Path\nPath(f'{number}.began').touch()\ngroup = (number - 1) // 4\n"
        "others = [f'{n}.began' for n in range(4 * group + 1, 4 * group + 5)]\n"
        "while not all(map(os.path.exists, others)): time.sleep(0.01)\nprint(number)"
    )
    files = []
    for number in range(1, 9):
        cells = [nbformat.v4.new_code_cell(f"number = {number}"), nbformat.v4.new_code_cell(barrier)]
        (tmp_path / f"n{number}.ipynb").write_text(nbformat.writes(nbformat.v4.new_notebook(cells=cells)))
        files.append(f"n{number}.ipynb")
    (tmp_path / "out").mkdir()
    done = in_process(tmp_path, "run", *files, "--jobs", "4", "-o", "out", "--timeout", "600", *QUIET)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert names(tmp_path / "out") == files
    for number in range(1, 9):
        assert cells_of(tmp_path / "out" / f"n{number}.ipynb")[1].outputs[0].text == f"{number}\n"
        assert f"n{number}.ipynb: 2 cells in " in done.stderr
        assert f"wrote out/n{number}.ipynb" in done.stderr


def test_of_several_files_each_runs_and_the_first_failure_is_the_status(tmp_path: Path, in_process: Command) -> None:
    for name, code in (("a", "print('a')"), ("b", "1/0"), ("c", "print('c')")):
        (tmp_path / f"{name}.py").write_text(code)
    done = in_process(tmp_path, "run", "a.py", "b.py", "c.py", *QUIET)
    assert (done.returncode, done.stdout) == (1, "a\nc\n")
    assert "ZeroDivisionError" in done.stderr
    assert [name for name in names(tmp_path) if "executed" in name] == [f"{name}.executed.ipynb" for name in "abc"]
    together = in_process(tmp_path, "run", "a.py", "b.py", "c.py", "-j", "3", "--no-output", *QUIET)
    assert (together.returncode, together.stdout) == (1, "")
    assert "b.py: cell 1 failed: error" in together.stderr


def test_a_kernelspec_that_is_missing_is_named_and_the_other_files_run(tmp_path: Path, in_process: Command) -> None:
    cells = [nbformat.v4.new_code_cell("1")]
    other = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": {"name": "ir", "language": "R", "display_name": "R"}})
    (tmp_path / "r.ipynb").write_text(nbformat.writes(other))
    (tmp_path / "a.py").write_text("print('a')")
    done = in_process(tmp_path, "run", "r.ipynb", "a.py", *QUIET)
    assert (done.returncode, done.stdout) == (1, "a\n")
    assert "r.ipynb: " in done.stderr
    assert "'ir'" in done.stderr
    assert "Parameters are Python assignments" in refused(in_process(tmp_path, "run", "r.ipynb", "-p", "x", "1", *QUIET))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("a.py", "--output", "o.ipynb", "--no-output"), "--output and --no-output contradict each other"),
        (("a.py", "--output", "a.py"), "a.py : --output must end in .ipynb"),
        (("n.ipynb", "--output", "./n.ipynb"), "n.ipynb is the input file: --output must be another file, or use --inplace"),
        (("a.py", "--inplace"), "--inplace is for notebooks (.ipynb), and a.py is none"),
        (("a.py", "-", "--no-output"), "- (stdin) is for one file"),
        (("a.py", "b.py", "--json"), "--json is for one file"),
        (("a.py", "sub/a.py", "-o", "out"), "out/a.ipynb would be written for two files"),
        (("a.py", "b.py", "-o", "missing"), "missing/a.ipynb cannot be written: No such file or directory"),
        (("a.py", "-p", "a b", "1"), "The parameter 'a b' must have the name of a Python variable"),
        (("a.py", "--params", "missing.yaml"), "--params missing.yaml cannot be read: No such file or directory"),
        (("a.py", "--params", "a.py"), "--params a.py must be a mapping"),
        (("a.py", "--params", "bad.yaml"), "--params bad.yaml must be YAML"),
        (("a.py", "--html", "missing/r.html"), "missing/r.html cannot be written"),
        (("a.py", "b.py", "missing.py"), "missing.py cannot be read"),
    ],
)
def test_invalid_options_of_run_are_refused_before_anything_runs(
    tmp_path: Path, words: tuple[str, ...], reason: str, in_process: Command
) -> None:
    for name in ("a.py", "b.py", "sub/a.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("open('ran', 'w')")
    (tmp_path / "out").mkdir()
    (tmp_path / "n.ipynb").write_text(nbformat.writes(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1")])))
    (tmp_path / "bad.yaml").write_text("a: [")
    before = names(tmp_path)
    assert reason in refused(in_process(tmp_path, "run", *words, *QUIET))
    assert names(tmp_path) == before


@pytest.mark.parametrize("words", [("exec",), *at_night(("exec", "-"))])
def test_a_cell_comes_from_a_pipe(tmp_path: Path, words: tuple[str, ...], in_process: Command) -> None:
    done = kernelexec(tmp_path, *words, *QUIET, stdin="x = 'ä'\nprint(x)".encode())
    assert (done.returncode, done.stdout) == (0, "ä\n"), done.stderr
    assert "stdin is not UTF-8" in refused(in_process(tmp_path, *words, *QUIET, stdin=b"\xff"))
    assert "code is empty" in refused(in_process(tmp_path, *words, *QUIET)).lower()


def test_results_of_one_file_are_json_lines(tmp_path: Path, in_process: Command) -> None:
    done = in_process(tmp_path, "run", script(tmp_path, "1", "2"), "--json", "--no-output", *QUIET)
    assert [json.loads(line)["execution_count"] for line in done.stdout.splitlines()] == [1, 2]


def test_a_cell_that_plants_links_writes_nothing_elsewhere(tmp_path: Path, in_process: Command) -> None:
    (tmp_path / "done").mkdir()
    (tmp_path / "outside").mkdir()
    victim = tmp_path / "outside" / "victim.html"
    victim.write_text("mine")
    planted = (
        f"import os\nos.symlink({str(victim)!r}, 'report.html')\nos.rename('done', 'moved')\n"
        f"os.symlink({str(tmp_path / 'outside')!r}, 'done')"
    )
    words = ("run", script(tmp_path, planted), "--output", "done", "--html", "report.html", *QUIET)
    done = in_process(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert (victim.read_text(), names(tmp_path / "outside")) == ("mine", ["victim.html"])
    assert names(tmp_path / "moved") == ["given.ipynb"]
    report = tmp_path / "report.html"
    assert not report.is_symlink()
    assert "<html" in report.read_text(encoding="utf-8")


def test_an_interrupt_ends_all_cells_and_every_notebook_has_what_they_printed(tmp_path: Path) -> None:
    for name in ("a", "b"):
        code = f"print('{name}: partial', flush=True)\nopen('{name}.began', 'w').close()\nimport time; time.sleep(600)"
        (tmp_path / f"{name}.py").write_text(code)
    (tmp_path / "c.py").write_text("open('c.began', 'w').close()")
    with started(tmp_path, "run", "a.py", "b.py", "c.py", "--jobs", "2", *QUIET) as process:
        for name in ("a", "b"):
            appears(process, tmp_path / f"{name}.began")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=BOUND)
    assert process.returncode == 130
    assert "interrupting the cells" in errors
    for name in ("a", "b"):
        [cell] = cells_of(tmp_path / f"{name}.executed.ipynb")
        assert cell.outputs[0].text == f"{name}: partial\n"
        assert cell.outputs[1].ename == "KeyboardInterrupt"
    assert "c.began" not in names(tmp_path), "a file that has not begun does not begin"


def test_the_end_of_each_file_is_shown_with_its_own_time(tmp_path: Path) -> None:
    (tmp_path / "fast.py").write_text("1")
    (tmp_path / "slow.py").write_text("import time\nwhile not __import__('os').path.exists('go'): time.sleep(0.01)")
    with started(tmp_path, "run", "fast.py", "slow.py", "--jobs", "2", "--no-output", *QUIET) as process:
        assert next_line(process, "stderr").startswith("kernelexec: fast.py: 1 cell in ")
        (tmp_path / "go").touch()
        assert next_line(process, "stderr").startswith("kernelexec: slow.py: 1 cell in ")
        assert process.wait(BOUND) == 0


def test_two_paths_of_one_file_are_one(tmp_path: Path, in_process: Command) -> None:
    (tmp_path / "a.py").write_text("1")
    (tmp_path / "link").symlink_to(tmp_path)
    for other in ("./a.py", f"../{tmp_path.name}/a.py", "link/a.py"):
        assert "would be written for two files" in refused(in_process(tmp_path, "run", "a.py", other, *QUIET))


def test_a_pipe_without_an_end_is_read_as_far_as_a_cell_may_go(tmp_path: Path) -> None:
    done = kernelexec(tmp_path, "exec", *QUIET, via='head -c 50000000 /dev/zero | "$@"')
    assert done.returncode == 125
    assert "code" in done.stderr
