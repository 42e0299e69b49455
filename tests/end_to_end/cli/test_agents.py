"""Configuration files: every example loads and runs, every typo is named, and the schema takes what the reader takes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kernelexec import Executor
from kernelexec.config.dialects.agents import read_agents
from tests.conftest import Command
from tests.support.engine import IMAGE, needs_engine
from tests.support.paths import ROOT
from tests.unit.config.test_agents import EXAMPLES, MASSGEN

#: One of each kind runs in the gate, where all of them are read: on this machine and in a container, behind the programs that
#: files name as a prefix, with limits, permissions and secrets.
IN_GATE = {
    *("code_execution_config-executor", "conda-agent_a", "limits-coder", "permissions-writer", "prefix-builder"),
    *("secrets-client", "several_agents-builder"),
}


def _marks(case: str, isolation: str | None) -> list[pytest.MarkDecorator]:
    return [*([needs_engine] if isolation == "container" else []), *([] if case in IN_GATE else [pytest.mark.nightly])]


AGENTS = [
    pytest.param(path, name, marks=_marks(f"{path.stem}-{name}", config.isolation), id=f"{path.stem}-{name}")
    for path in (*EXAMPLES, *MASSGEN)
    for name, config in read_agents(path, environ={}).items()
]


def programs(directory: Path) -> Path:
    """What files name as a prefix and not every machine has: it runs what follows its own words, as the real ones do."""
    directory.mkdir()
    for name, words in {"uv": 1, "conda": 3}.items():
        (directory / name).write_text(f'#!/bin/sh\nshift {words}\nexec "$@"\n', encoding="utf-8")
        (directory / name).chmod(0o755)
    return directory


@pytest.mark.parametrize(("path", "name"), AGENTS)
def test_every_example_runs_a_command(path: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("API_TOKEN", "what-nobody-sees")
    monkeypatch.setenv("PATH", str(programs(tmp_path / "bin")), prepend=os.pathsep)
    config = read_agents(path, environ={})[name]
    if config.isolation == "container":  # the tests' own image: the default one is made for users
        container = config.container.model_copy(update={"image": (IMAGE,), "credentials": ()})
        config = config.model_copy(update={"container": container})
    with Executor(config=config, workspace=tmp_path / "w", isolation=config.isolation) as executor:
        result = executor.session(name).execute_command("echo hi")
    assert result.stdout == "hi\n", result.text


def test_the_command_line_checks_a_file_and_prints_the_schema(tmp_path: Path, in_process: Command) -> None:
    (tmp_path / "bad.yaml").write_text("isolatoin: local\n", encoding="utf-8")
    done = in_process(tmp_path, "config", "check", str(ROOT / "notebooks" / "configs" / "several_agents.yaml"))
    assert (done.returncode, done.stdout) == (0, "analyst: container\nbuilder: local\n")
    done = in_process(tmp_path, "config", "check", "bad.yaml")
    assert (done.returncode, done.stdout) == (125, "")
    assert "did you mean 'isolation'?" in done.stderr
    assert '"kernelexec agents"' in in_process(tmp_path, "config", "schema").stdout
