"""The files of the operators' page: their commands have the options that they use, and the jobs do what they are for."""

from __future__ import annotations

import configparser
import re
import shlex
from pathlib import Path
from typing import Any

import nbformat
import pytest
import yaml

from tests.conftest import Command
from tests.support.command_line import names

PAGE = (Path(__file__).resolve().parents[2] / "kernelexec/guide/operations.md").read_text(encoding="utf-8")
BLOCKS = {language: re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL) for language in ("ini", "yaml")}


def service_command() -> list[str]:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    [text] = BLOCKS["ini"]
    parser.read_string(text)
    assert parser["Service"]["KillMode"] == "mixed", "SIGTERM is for the server only"
    return shlex.split(parser["Service"]["ExecStart"])


def workflow_steps() -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = yaml.safe_load(BLOCKS["yaml"][0])["jobs"]["notebooks"]["steps"]
    return steps


def pod_command() -> list[str]:
    pod = yaml.safe_load(BLOCKS["yaml"][1])
    [container] = pod["spec"]["containers"]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["spec"]["volumes"]}
    command: list[str] = container["command"]
    return command


def workflow_commands() -> list[list[str]]:
    lines = [step["run"] for step in workflow_steps() if "run" in step]
    commands = [shlex.split(part) for line in lines for part in line.split("&&")]
    return [words for words in commands if words[0] == "kernelexec"]


ALL = [service_command(), pod_command(), *workflow_commands()]


@pytest.mark.parametrize("words", ALL, ids=[f"{words[1]} {number}" for number, words in enumerate(ALL)])
def test_a_command_has_its_options(tmp_path: Path, in_process: Command, words: list[str]) -> None:
    program, command, *rest = words
    assert Path(program).name == "kernelexec"
    group = [word for word in rest[:1] if command == "image"]
    text = in_process(tmp_path, command, *group, "--help").stdout
    for word in rest:
        if word.startswith("--"):
            assert re.search(rf"{word}\b", text), word


def test_the_job_keeps_every_executed_notebook_and_fails_if_one_fails(tmp_path: Path, in_process: Command) -> None:
    (tmp_path / "notebooks").mkdir()
    for name, code in (("a", "print('a')"), ("b", "1/0")):
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
        (tmp_path / "notebooks" / f"{name}.ipynb").write_text(nbformat.writes(notebook))
    [words] = [words for words in workflow_commands() if words[1] == "run"]
    position = words.index("--image")
    options = words[3:position] + words[position + 2 :]
    (tmp_path / "done").mkdir()
    done = in_process(tmp_path, "run", "notebooks/a.ipynb", "notebooks/b.ipynb", *options, "--isolation", "local")
    assert done.returncode == 1
    assert names(tmp_path / "done") == ["a.html", "a.ipynb", "b.html", "b.ipynb"]
    assert "ZeroDivisionError" in (tmp_path / "done" / "b.html").read_text(encoding="utf-8")
