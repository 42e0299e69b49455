"""The code, commands, options and figures of the README and the guide are true."""

from __future__ import annotations

import doctest
import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import nbformat
import pytest

import kernelexec
from kernelexec import Config
from kernelexec.cli.application import ENTRIES, load_application
from kernelexec.mcp.clients import make_server_entry
from kernelexec.session.cells.runner import SPILL_BYTES
from tests.conftest import Command
from tests.fuzz.test_mcp_calls import TOOLS
from tests.support import session_picture
from tests.support.command_line import BOUND, COMMAND, environment
from tests.support.engine import needs_engine
from tests.support.kernelspecs import write_all
from tests.support.paths import ROOT

GUIDE = ROOT / "kernelexec" / "guide"
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(GUIDE.glob("[a-z]*.md"))}
FRONT = (ROOT / "README.md").read_text(encoding="utf-8")
README = "\n".join([FRONT, *PAGES.values()])
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


PYTHON = blocks("python")
#: Blocks that run in the gate: those of the front page, and the first one of each page of the guide.
IN_GATE = {*blocks("python", FRONT), *chain.from_iterable(blocks("python", page)[:1] for page in PAGES.values())}
#: The words of every command, one list each.
COMMANDS = [shlex.split(part, comments=True) for line in "".join(blocks("console")).splitlines() for part in line.split("&&")]
OURS = [words[1:] for words in COMMANDS if Path(words[0]).name == "kernelexec"]
#: Commands that have commands of their own.
_TYPERS = [load_application(reference) for reference in sorted({entry.application for entry in ENTRIES.values()})]
GROUPS = {part.info.name for part in _TYPERS if isinstance(part.info.name, str)}
HELP: dict[tuple[str, ...], str] = {}


def run(directory: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    env = environment(COLUMNS="200", NO_COLOR="1", TERM="dumb", **more)
    return subprocess.run(words, cwd=directory, env=env, capture_output=True, text=True, check=False, timeout=BOUND)


def write_program(code: str, directory: Path) -> Path:
    """Write a block as a program, and the files of deno's kernel."""
    write_all(directory / "jupyter")
    program = directory / "jupyter" / "program.py"
    program.write_text(code, encoding="utf-8")
    return program


def run_block(code: str, directory: Path) -> list[str]:
    """Run a block as a program of its own, with deno's kernel installed, and return its lines of output without empty ones."""
    program = write_program(code, directory)
    done = run(directory, sys.executable, "-W", "error", str(program), JUPYTER_PATH=str(directory / "jupyter"))
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line]


def claims(code: str) -> list[str]:
    """Return the comments of calls of print, up to a semicolon."""
    return [comment.split(";")[0].strip() for comment in re.findall(r"^ *print\(.*\) +# (.*)$", code, re.MULTILINE)]


def help_of(in_process: Command, *command: str) -> str:
    if command not in HELP:
        HELP[command] = in_process(ROOT, *command, "--help", COLUMNS="200", NO_COLOR="1", TERM="dumb").stdout
    return HELP[command]


def test_the_first_example_prints_the_output_below_it(tmp_path: Path) -> None:
    assert run_block(PYTHON[0], tmp_path) == [line for line in blocks("text")[0].splitlines() if line]


def marks_of(code: str) -> list[pytest.MarkDecorator]:
    return [*([needs_engine] if "container" in code else []), *([] if code in IN_GATE else [pytest.mark.nightly])]


@pytest.fixture
def run_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[str], list[str]]:
    """Run a block in this process, without a program's imports, and return its lines of output without empty ones."""

    def run_code(code: str) -> list[str]:
        exec(compile(code, write_program(code, tmp_path), "exec"), {"__name__": "__main__"})  # noqa: S102 - it is the README's
        return [line for line in capsys.readouterr().out.splitlines() if line]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    return run_code


@pytest.mark.parametrize("code", [pytest.param(code, marks=marks_of(code)) for code in PYTHON[1:]])
def test_a_block_prints_the_values_in_its_comments(code: str, run_here: Callable[[str], list[str]]) -> None:
    assert claims(code) != []
    assert run_here(code) == claims(code)


def test_cd_and_export_last(tmp_path: Path, run_here: Callable[[str], list[str]]) -> None:
    [code] = [block for block in PYTHON if "cd and export last" in block]
    directory, mode = run_here(code.replace(".exit_code)", ".stdout)"))
    assert directory == str(tmp_path / "workspaces" / "build" / "sub")
    assert mode == "fast"


def test_the_docstring_of_the_package_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    results = doctest.testmod(kernelexec)
    assert results.attempted >= 2
    assert results.failed == 0


def test_the_first_command_runs_the_analysis_from_a_fresh_checkout(tmp_path: Path) -> None:
    *_, (program, *words) = [shlex.split(part) for part in blocks("console")[0].split("&&")]
    assert program == ".venv/bin/kernelexec"
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks", ignore=shutil.ignore_patterns("*.executed.ipynb"))
    done = run(tmp_path, COMMAND, *words)
    assert done.returncode == 0, done.stderr
    [path] = re.findall(r"The executed notebook,[^`]* is `([^`]+)`", README)
    text = (tmp_path / path).read_text(encoding="utf-8")
    nbformat.validate(json.loads(text))
    cells: list[Any] = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = list(chain.from_iterable(cell["outputs"] for cell in cells))
    assert not [output for output in outputs if output["output_type"] == "error"]
    tables = [output for output in outputs if "<table" in "".join(output.get("data", {}).get("text/html", ""))]
    images = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(tables) >= 3
    assert len(images) >= 3


def test_the_command_for_the_tests_runs_them() -> None:
    *_, (program, *words) = [words for words in COMMANDS if "pytest" in words]
    assert program == ".venv/bin/python"
    assert words[:2] == ["-m", "pytest"]
    done = run(ROOT, sys.executable, *words, "--collect-only", "tests/unit/test_tiers.py")
    assert done.returncode == 0, done.stdout
    assert "test_a_test_without_processes_passes" in done.stdout


@pytest.mark.parametrize("words", OURS, ids=" ".join)
def test_a_command_has_the_options_that_are_shown(words: list[str], in_process: Command) -> None:
    assert words[0] in re.findall(r"^\W*([\w-]+) ", help_of(in_process), re.MULTILINE)
    command = words[: 2 if words[0] in GROUPS else 1] if words[0] != "mcp-config" else ["mcp"]  # whose options it takes
    for option in (word for word in words if word.startswith("-") and word != "-"):
        assert option in help_of(in_process, *command).replace(",", " ").split()


def test_every_command_is_shown() -> None:
    parts = [part for part in _TYPERS if not isinstance(part.info.name, str)]
    commands = {
        command.name or getattr(command.callback, "__name__", "")
        for part in parts
        for command in part.registered_commands
        if not command.hidden
    }
    assert {words[0] for words in OURS} == commands | GROUPS


def test_the_server_that_is_pasted_into_clients_is_a_command_with_these_options(in_process: Command) -> None:
    [server] = [json.loads(block)["mcpServers"]["kernelexec"] for block in blocks("json")]
    *program, command = server["args"][:4]
    options = server["args"][4:]
    assert (program, command) == (["-P", "-m", "kernelexec"], "mcp")
    assert server.keys() == make_server_entry(options, cwd="/path/to").keys() - {"env"}
    shown = help_of(in_process, command).replace(",", " ").split()
    assert [option for option in options if option.startswith("--") and option not in shown] == []


def test_every_tool_of_the_server_is_shown() -> None:
    [part] = re.findall(r"^## Tools\n(.*?)^## ", PAGES["mcp"], re.MULTILINE | re.DOTALL)
    named = re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in part.splitlines() if line.startswith("|")))
    assert named == list(TOOLS)


def test_the_command_exec_prints_a_result_as_json(tmp_path: Path, in_process: Command) -> None:
    words = next(words for words in OURS if words[0] == "exec" and "local" in words)
    done = in_process(tmp_path, *words)
    assert kernelexec.ExecutionResult.from_json(done.stdout).text == "2"


def test_every_extra_that_is_installed_exists() -> None:
    named = {extra for extras in re.findall(r"'\.\[([\w,]+)\]'", README) for extra in extras.split(",")}
    assert {"notebooks"} <= named <= set(PROJECT["optional-dependencies"])


def test_every_dependency_group_that_is_installed_exists() -> None:
    groups = set(re.findall(r"--group (\w+)", README))
    assert {"test", "docs", "benchmark"} <= groups <= set(PYPROJECT["dependency-groups"])


def test_every_module_that_is_run_exists() -> None:
    for module in re.findall(r"python -m ([\w.]+)", README):
        assert importlib.util.find_spec(module) is not None, module


def test_every_page_of_the_guide_is_listed_by_its_title() -> None:
    index = (GUIDE / "README.md").read_text(encoding="utf-8")
    listed = {name: title for title, name in re.findall(r"^- \[(.*)\]\((\w+)\.md\)$", index, re.MULTILINE)}
    assert listed == {name: page.partition("\n")[0].removeprefix("# ") for name, page in PAGES.items()}


def test_the_front_page_is_short() -> None:
    assert len(FRONT.splitlines()) <= 150


def test_every_file_that_is_linked_exists() -> None:
    for directory, page in [(ROOT, FRONT), *((GUIDE, page) for page in PAGES.values())]:
        links = [link for link in re.findall(r"\]\(([^)#]+)\)", page) if "://" not in link]
        assert [link for link in links if not (directory / link).exists()] == []


def test_the_figures_are_the_defaults() -> None:
    budgets = dict(re.findall(r"^\| `(\w+)` \|.*\| (\d+) s \|$", README, re.MULTILINE))
    assert {name: float(value) for name, value in budgets.items()} == {
        name: getattr(Config().budgets, name) for name in ("timeout", "grace", "compiled")
    }
    kept = re.search(r"stdout and stderr keeps (\d+) MiB.*?up to (\d+) MiB a cell", " ".join(README.split()))
    assert kept is not None
    output = Config().output
    assert [int(size) * 2**20 for size in kept.groups()] == [output.stream_bytes, SPILL_BYTES]


@pytest.mark.nightly
def test_the_picture_of_a_session_shows_a_real_one(tmp_path: Path) -> None:
    assert session_picture.texts(session_picture.PICTURE.read_text(encoding="utf-8")) == session_picture.record(tmp_path)


def test_every_name_that_is_configured_is_an_option() -> None:
    named = set(re.findall(r"`Config\((\w+)=", README))
    assert named
    assert named <= set(Config.model_fields)
