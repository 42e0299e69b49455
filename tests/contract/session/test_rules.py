"""Rules in a session: what they refuse never runs, whichever way it is sent, and the result says why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kernelexec import Executor, InvalidConfig, Session
from kernelexec.config import Config
from kernelexec.rules.policy import CommandRules

#: Nothing runs in containers in the gate: commands are refused before a kernel gets them.
ALSO_CONFINED = ()

WAYS = [
    "!chmod 777 marked",
    "%%bash\nchmod 777 marked",
    "%%sh\nchmod 777 marked",
    "found = !chmod 777 marked",
    "%sx chmod 777 marked",
    "%system chmod 777 marked",
    "%%script bash\nchmod 777 marked",
    "get_ipython().system('chmod 777 marked')",
    "import os; os.system('chmod 777 marked')",
    "import subprocess; subprocess.run(['chmod', '777', 'marked'])",
    "sp.run(['chmod', '777', 'marked'])",
    "if True:\n    !env chmod 777 marked",
    "%%time\n!chmod 777 marked",
]


@pytest.mark.parametrize("code", WAYS)
@pytest.mark.shared_session
def test_a_refused_command_never_runs_in_any_way(session: Session, code: str) -> None:
    (session.workspace / "marked").write_text("")
    before = (session.workspace / "marked").stat().st_mode
    result = session.execute(code)
    assert (result.status, result.exit_code, result.outputs) == ("aborted", -1, ())
    assert result.diagnosis is not None
    assert (result.diagnosis.kind, result.diagnosis.cause) == ("refused", "rule 'chmod'")
    assert "'chmod 777 marked'" in result.notes[0]
    assert (session.workspace / "marked").stat().st_mode == before


def test_nothing_of_a_cell_runs_that_holds_a_refused_command(session: Session) -> None:
    assert session.execute("before = 1\n!sudo true").status == "aborted"
    assert session.execute("'before' in dir()").text == "False"


def test_a_refused_shell_command_says_what_would_be_allowed(session: Session) -> None:
    result = session.execute_command("cd / && dd if=/dev/zero of=x count=1")
    assert (result.status, result.exit_code, result.stdout) == ("aborted", -1, "")
    assert "rule 'dd'" in result.notes[0]
    assert result.work_dir is None
    assert session.execute("chmod 777 x", language="bash").status == "aborted"
    assert session.execute_command("echo dd").stdout == "dd\n"
    assert "not understood as the language of bash" in session.execute_command("echo 1\nif").notes[0]


def test_lists_are_of_the_executors_configuration_and_the_journal_has_the_refusals(tmp_path: Path) -> None:
    rules = {"allowed_commands": ["pytest", "echo.*"], "blocked_commands": ["echo secret"]}
    with Executor("local", workspace=tmp_path, config={"rules": rules, "quiet": True}) as executor:
        session = executor.session("judged")
        assert session.execute_command("echo hi").stdout == "hi\n"
        for refused in ("echo hi; ls", "echo secret"):
            assert session.execute_command(refused).status == "aborted"
        assert session.execute("1 + 1").text == "2"
    lines = (tmp_path / ".journals" / "judged.jsonl").read_text().splitlines()
    reported = [answer for answer in map(json.loads, lines) if answer["event"] == "aborted"]
    assert [(answer["decision"], answer["rule"]) for answer in reported] == [
        ("refused", "rule 'allowed-commands'"),
        ("refused", "rule 'blocked-commands'"),
    ]
    assert "'ls' was not run" in reported[0]["why"]


def test_code_rules_are_of_the_executors_configuration(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path, config={"rules": {"code": "tutorial"}, "quiet": True}) as executor:
        session = executor.session()
        refused = session.execute("x = 1\nimport os")
        assert (refused.status, refused.exit_code) == ("aborted", -1)
        assert refused.diagnosis is not None
        assert refused.diagnosis.cause == "rule 'forbidden-module'"
        assert session.execute("import operator; 'x' in dir()").text == "False"


def test_without_rules_all_that_a_shell_takes_runs(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path, config={"rules": {"dangers": False}, "quiet": True}) as executor:
        session = executor.session()
        assert session.execute_command("touch f; chmod 777 f; $(echo echo) done").stdout == "done\n"
        assert (session.workspace / "f").stat().st_mode & 0o777 == 0o777


@pytest.mark.parametrize(
    ("config", "sudo"),
    [
        ({"isolation": "container", "container": {"sudo": True}}, True),
        ({"isolation": "container"}, False),
        ({"isolation": "local"}, False),
    ],
)
def test_sudo_is_allowed_in_containers_that_have_it(config: dict[str, Any], sudo: bool) -> None:  # noqa: FBT001 - a parameter
    rules = CommandRules.from_config(Config.model_validate(config))
    assert (rules.check("sudo apt-get update") is None) == sudo
    assert rules.check("sudo rm -rf /") is not None


def test_a_pattern_that_is_none_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="allowed_commands"):
        Executor("local", workspace=tmp_path, config={"rules": {"allowed_commands": ["("]}})
