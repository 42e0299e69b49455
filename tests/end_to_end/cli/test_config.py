"""Commands that take their settings from a configuration file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Command
from tests.support.mcp_clients import connected
from tests.support.mcp_in_memory import InMemory
from tests.support.pace import slow

ONE = f"""
isolation: local
preload: []
budgets: {{timeout: {slow(2)}}}
rules: {{blocked_commands: ["curl"]}}
environment: {{set: {{MODE: file, KEPT: kept}}}}
"""
MANY = """
defaults: {isolation: local}
agents:
  - {id: first, environment: {set: {WHO: first}}}
  - {id: second, environment: {set: {WHO: second}}}
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "one.yaml").write_text(ONE)
    (tmp_path / "many.yaml").write_text(MANY)
    return tmp_path


def test_a_file_says_where_and_how(directory: Path, in_process: Command) -> None:
    done = in_process(directory, "exec", "import os; os.environ['MODE'], os.environ['KEPT']", "--config", "one.yaml", "--json")
    actual = json.loads(done.stdout)
    assert (actual["isolation"], actual["outputs"][0]["data"]["text/plain"]) == ("local", "('file', 'kept')")
    assert in_process(directory, "exec", "import time; time.sleep(60)", "--config", "one.yaml").returncode == 124
    assert in_process(directory, "exec", "!curl x", "--config", "one.yaml").returncode == 126


def test_options_go_over_it(directory: Path, in_process: Command) -> None:
    (directory / "one.yaml").write_text("isolation: local\nbudgets: {timeout: 600}\n")
    config = "--config", "one.yaml"
    assert in_process(directory, "exec", "import time; time.sleep(300)", *config, "--timeout", "0.5").returncode == 124
    assert in_process(directory, "exec", "!echo said", *config, "--blocked-commands", "echo").returncode == 126


def test_one_of_several_agents_is_named(directory: Path, in_process: Command) -> None:
    code = "import os; print(os.environ['WHO'])"
    assert in_process(directory, "exec", code, "--config", "many.yaml#second").stdout == "second\n"
    for value, answer in (
        ("many.yaml", "it has several agents: use many.yaml#AGENT with one of first, second."),
        ("many.yaml#secnd", "no agent 'secnd' (did you mean 'second'?)"),
        ("missing.yaml", "missing.yaml"),
    ):
        done = in_process(directory, "exec", code, "--config", value)
        assert (done.returncode, done.stdout) == (125, "")
        assert answer in done.stderr


def test_a_server_takes_it_too(directory: Path) -> None:
    with connected(InMemory(directory, "--config", str(directory / "one.yaml")), "auto") as agent:
        assert "'file'" in agent.text("execute_code", code="import os; os.environ['MODE']")
        assert "do not run: `curl`." in (agent.client.instructions or "")
