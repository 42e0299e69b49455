"""``kernelexec logs`` shows what a journal holds, to people and to programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernelexec import Executor, InvalidCode
from kernelexec.workspace.directory import make_owner_prefix
from tests.conftest import Command
from tests.support.command_line import kernelexec


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("place")
    with Executor("local", workspace=path / "workspaces", config={"checkpoints": "named"}) as executor:
        session = executor.session("analysis")
        session.execute("x = 1\nx + 1")
        session.execute("1/0  # \x1b[31mred")
        session.execute_command("exit 7", request_id="r")
        with pytest.raises(InvalidCode):
            session.execute("")
        session.execute("import os; os._exit(3)")
    return path


def test_each_cell_is_a_line_with_its_outcome(workspace: Path) -> None:
    done = kernelexec(workspace, "logs")
    assert (done.returncode, done.stderr) == (0, "")
    title, *lines = done.stdout.splitlines()
    assert title.split() == ["time", "what", "outcome", "exit", "seconds", "code", "or", "reason", "output"]
    assert [line[21:].split()[0:2] for line in lines] == [
        ["opened"],
        ["kernel", "started"],
        ["code", "ok"],
        ["code", "error"],
        ["command", "error"],
        ["code", "refused"],
        ["code", "error,"],
        ["kernel", "died"],
        ["closing"],
        ["closed"],
    ]
    assert lines[2].split("x = 1 ...")[1].strip() == "-> 2"
    assert lines[3].endswith("# ZeroDivisionError: division by zero")
    assert "\x1b" not in done.stdout
    assert lines[4].split()[4] == "7"
    assert lines[4].endswith("exit 7")
    assert "code is empty" in lines[5]
    assert "error, state lost" in lines[6]


def test_programs_get_the_journals_own_lines(workspace: Path, in_process: Command) -> None:
    done = in_process(workspace, "logs", "analysis", "--json", "--last", "3")
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [item["event"] for item in records][-2:] == ["closing", "closed"]
    assert len(records) == 3
    path = workspace / "workspaces" / ".journals" / "analysis.jsonl"
    assert in_process(workspace, "logs", str(path), "--json", "-n", "3").stdout == done.stdout


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("analysys",), "No journal of a session 'analysys' in workspaces (did you mean 'analysis'?)."),
        (("./none.jsonl",), "No journal ./none.jsonl."),
        (("--workspace", "elsewhere"), "No journals are in elsewhere: choose another workspace with --workspace."),
        (
            ("--last", "0"),
            "Invalid value for '--last' / '-n': Input should be greater than or equal to 1. See `kernelexec logs --help`.",
        ),
    ],
)
def test_missing_journals_are_reported(workspace: Path, words: tuple[str, ...], problem: str, in_process: Command) -> None:
    done = in_process(workspace, "logs", *words)
    assert (done.returncode, done.stdout, done.stderr) == (125, "", f"kernelexec: {problem}\n")


def test_several_journals_of_a_name_are_listed(tmp_path: Path, in_process: Command) -> None:
    names = [make_owner_prefix(owner, owner.encode() * 4) + "default" for owner in ("alice", "bob")]
    for name in (*names, "other"):
        path = tmp_path / "workspaces" / ".journals" / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    done = in_process(tmp_path, "logs", "default")
    problem = f"2 journals of 'default' are in workspaces: choose one of {', '.join(names)}."
    assert (done.returncode, done.stdout, done.stderr) == (125, "", f"kernelexec: {problem}\n")
    assert in_process(tmp_path, "logs", "alice/default").returncode == 0


def test_statistics_of_cells_are_shown(workspace: Path, in_process: Command) -> None:
    done = in_process(workspace, "logs", "analysis", "--statistics", "-n", "3")
    assert (done.returncode, done.stderr) == (0, "")
    [summary, *calls] = [line.split("\t") for line in done.stdout.splitlines() if line]
    assert summary[:2] == ["4", "25%"]
    assert [call[1:3] for call in calls] == [["python", "no"], ["bash", "no"], ["python", "no"]]
    answer = json.loads(in_process(workspace, "logs", "--statistics", "--json").stdout)
    assert (answer["count"], answer["succeeded"], len(answer["calls"])) == (4, 1, 4)
    assert answer["p50"] <= answer["p95"] <= answer["execution_time"]


def test_statistics_of_a_broken_journal_are_bounded(tmp_path: Path, in_process: Command) -> None:
    finished = {"event": "finished", "execution_id": "a", "seconds": "NaN", "cpu_seconds": -1, "total_bytes": 1e300}
    lines = [
        json.dumps(finished),
        '{"event": "finished", "execution_id": "b", "seconds": Infinity}',
        '{"event": "finished"}',
        "x",
    ]
    path = tmp_path / "broken.jsonl"
    path.write_text("\n".join(lines))
    answer = json.loads(in_process(tmp_path, "logs", str(path), "--statistics", "--json").stdout)
    assert (answer["count"], answer["succeeded"], answer["p95"], answer["output_bytes"]) == (2, 0, 0, 0)
